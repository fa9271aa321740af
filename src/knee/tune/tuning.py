"""The session as a state: ask for the next trial, add what came of it, until there is a reason to stop.

No clock, no server: the same results give the same trials again, which is how a journal is resumed.
"""

from collections.abc import Iterator

from msgspec import structs

from knee.tune.config import Flags, SimulatedServer, TuneConfig
from knee.tune.decide import Comparison, compare_knees, pooled_knee, undecided
from knee.tune.proposal import Change, Proposal
from knee.tune.stopping import stop_at, trades_of
from knee.tune.trial import Decision, Entry, Result, Stop, Trial

MOST_PAIRS = 4
CONFIRMATION = 1
"""Trials that are kept in reserve: a move that is kept is confirmed."""

ENOUGH = 1.5
"""Server time that must be left for a move and its confirmation, over that of the dearest trial so far: a
trial gets a third of what is left, so it may measure half as long as the dearest did."""

MOST_FAILED = 2
"""Values of one flag that may fail to start or die before no further one is tried in that direction."""


class Tuning:
    """A session in progress. `best` is the entry whose flags are kept so far."""

    def __init__(self, config: TuneConfig) -> None:
        self.config = config
        self.entries: list[Entry] = []
        self.best: Entry | None = None
        self.stop: Stop | None = None
        self._place: Entry | None = None
        self._barred: set[tuple[str, str]] = set()
        self._tried: set[tuple[tuple[str, str], ...]] = set()
        self._pairs = 0
        self._repeat: Entry | None = None
        self._over = False

    @property
    def spent_s(self) -> float:
        """Server time so far, in seconds."""
        return sum(entry.result.server_s for entry in self.entries)

    @property
    def left_s(self) -> float:
        """Server time left, in seconds."""
        return self.config.spend.server_s - self.spent_s

    def next_trial(self) -> Trial | None:
        """What to measure next; None when the session is over (`stop` says why)."""
        if not self.entries:
            return self._trial("baseline", self.config.flags, 0, None)
        if self._over or self.best is None or self._place is None:
            return None
        if self.stop is None:
            trial = self._next_move()
            if trial is not None:
                return trial
        return self._confirmation()

    def add(self, trial: Trial, result: Result) -> Decision:
        """Take what came of a trial, and decide what to make of it."""
        self._tried.add(_key(trial.flags))
        if trial.purpose == "baseline":
            decision = self._begin(trial, result)
        elif trial.purpose == "confirm":
            decision = self._confirm(trial, result)
        else:
            decision = self._judge(trial, result)
        entry = Entry(trial=trial, result=result, decision=decision)
        self.entries.append(entry)
        if decision.decided in ("baseline", "kept"):
            self.best = self._place = entry
        elif trial.purpose != "confirm":
            self._go_on(entry)
        return decision

    def _begin(self, trial: Trial, result: Result) -> Decision:
        if result.outcome in ("cannot start", "died"):
            self.stop = Stop(reason="server cannot start", why=result.cause)
            self._over = True
            return Decision(decided="baseline", why=result.cause)
        if result.outcome == "infeasible" and not result.proposals.moves:
            self.stop = Stop(reason="infeasible SLO", why=result.cause)
            self._over = True
        return Decision(decided="baseline", why=f"trial {trial.number} is what the others are held against")

    def _judge(self, trial: Trial, result: Result) -> Decision:
        assert self.best is not None
        assert trial.move is not None
        if result.outcome in ("cannot start", "died"):
            self._barred |= {(change.flag, change.to) for change in trial.move.changes}
            return Decision(decided="reverted", why=f"{result.outcome}: {result.cause}")
        before = self.best.result
        if result.knee is None:
            return Decision(decided="reverted", why=result.cause)
        if trial.purpose == "repeat":
            result = self._both(trial, result)
        found = self._compared(before, result)
        trades = trades_of(before, result)
        if found.verdict == "better":
            return Decision(decided="kept", why=_said(found, before, result), comparison=found, trades=trades)
        return Decision(decided="reverted", why=_said(found, before, result), comparison=found, trades=trades)

    def _confirm(self, trial: Trial, result: Result) -> Decision:
        self._over = True
        assert self.best is not None
        first = self.entries[0].result
        if result.knee is None:
            self.best = self.entries[0]
            return Decision(decided="not confirmed", why=f"{result.outcome}: {result.cause}")
        found = self._compared(first, result)
        said = _said(found, first, result)
        if found.verdict == "worse":
            self.best = self.entries[0]
            return Decision(decided="not confirmed", why=f"against the start: {said}", comparison=found)
        self.best = Entry(trial=trial, result=result, decision=Decision(decided="confirmed", why=said))
        return Decision(decided="confirmed", why=f"against the start: {said}", comparison=found)

    def _compared(self, before: Result, after: Result) -> Comparison:
        assert after.knee is not None
        if before.knee is None or before.rate <= 0:  # a single request broke the SLO
            return Comparison(verdict="better" if after.rate > 0 else "within noise")
        repeatable = isinstance(self.config.server, SimulatedServer)
        return compare_knees(before.knee, after.knee, repeatable=repeatable)

    def _both(self, trial: Trial, result: Result) -> Result:
        """The result of a repeated trial, with the knee of both sweeps."""
        first = next(e.result for e in reversed(self.entries) if e.trial.flags == trial.flags)
        if first.knee is None or result.knee is None:
            return result
        return structs.replace(result, knee=pooled_knee(first.knee, result.knee))

    def _go_on(self, entry: Entry) -> None:
        """After a move: measure again what was too wide to tell, follow up once what opened another limit.

        Else go back to the best.
        """
        comparison = entry.decision.comparison
        if entry.trial.purpose != "repeat" and comparison is not None and undecided(comparison):
            self._repeat, self._place = entry, self.best
            return
        same = comparison is not None and comparison.verdict == "within noise"
        before = self._place.result.limit if self._place is not None else ""
        if (
            entry.trial.purpose == "move"
            and same
            and entry.result.limit not in (before, "compute", "none", "")
        ):
            moved = {change.flag for change in entry.trial.move.changes} if entry.trial.move else set()
            if any(not moved & {c.flag for c in p.changes} for p in entry.result.proposals.moves[:1]):
                self._place = entry
                return
        self._place = self.best

    def _next_move(self) -> Trial | None:
        """The next move within the budget; sets `stop` where there is none."""
        assert self.best is not None
        assert self._place is not None
        if (spent := self._budget()) is not None:
            self.stop = spent
            return None
        if self._repeat is not None:
            again, self._repeat = self._repeat.trial, None
            trial = self._trial("repeat", again.flags, again.base, again.move)
            return structs.replace(trial, seed=self.config.seed + 2)
        follow = self._place is not self.best
        for move in self._moves(self._place):
            flags = move.applied(self._place.trial.flags)
            number = self._place.trial.number
            return self._trial("follow-up" if follow else "move", flags, number, move)
        if follow:
            self._place = self.best
            return self._next_move()
        if self.config.explore and self._pairs < MOST_PAIRS:
            for pair in self._viable(self.best, self.best.result.pairs):
                self._pairs += 1
                return self._trial("pair", pair.applied(self.best.trial.flags), self.best.trial.number, pair)
        self.stop = stop_at(self.best, self.entries)
        return None

    def _moves(self, place: Entry) -> Iterator[Proposal]:
        return self._viable(place, place.result.proposals.moves)

    def _viable(self, place: Entry, moves: tuple[Proposal, ...]) -> Iterator[Proposal]:
        """`moves` without those that were tried, at values that are not known to fail."""
        for move in moves:
            shorter = self._shortened(move)
            if shorter is not None and _key(shorter.applied(place.trial.flags)) not in self._tried:
                yield shorter

    def _shortened(self, move: Proposal) -> Proposal | None:
        """The move, half as far (in factors) where its value is known to fail; None where there is no way."""
        changes = []
        for change in move.changes:
            to = change.to
            if (change.flag, to) in self._barred and self._failed(change.flag) >= MOST_FAILED:
                return None
            while (change.flag, to) in self._barred:
                middle = _between(change.current, to)
                if middle is None:
                    return None
                to = middle
            changes.append(Change(flag=change.flag, current=change.current, to=to))
        if tuple(changes) == move.changes:
            return move
        return Proposal(
            changes=tuple(changes), limit=move.limit, why=f"{move.why} (shortened: it failed further out)",
            price=move.price,
        )  # fmt: skip

    def _failed(self, flag: str) -> int:
        return sum(flag == name for name, _ in self._barred)

    def _confirmation(self) -> Trial | None:
        assert self.best is not None
        if self.best is self.entries[0] or self.best.result.knee is None:
            return None
        flags, number = self.best.trial.flags, self.best.trial.number
        trial = self._trial("confirm", flags, number, None)
        return structs.replace(trial, seed=self.config.seed + 1)

    def _budget(self) -> Stop | None:
        """That the budget leaves no room for another trial and the confirmation after it."""
        spend, entries = self.config.spend, self.entries
        if len(entries) + 1 + CONFIRMATION > spend.trials:
            why = f"{len(entries)} of {spend.trials} trials are done, and the last one confirms"
            return Stop(reason="budget", why=why)
        dearest = max(entry.result.server_s for entry in entries)
        if self.left_s < ENOUGH * dearest:
            return Stop(
                reason="budget",
                why=f"{self.spent_s:.0f} s of {spend.server_s:.0f} s of server time are spent; a trial took "
                f"up to {dearest:.0f} s, and what is left has to hold another one and its confirmation",
            )
        return None

    def _trial(self, purpose: str, flags: Flags, base: int, move: Proposal | None) -> Trial:
        return Trial(
            number=len(self.entries) + 1,
            purpose=purpose,  # type: ignore[arg-type]
            flags=flags,
            seed=self.config.seed,
            base=base,
            move=move,
        )


def _between(current: str, to: str) -> str | None:
    """The whole number half way between two, on a logarithmic scale; None where there is none."""
    if not (current.isdecimal() and to.isdecimal()) or int(current) < 1:
        return None
    middle = str(round((int(current) * int(to)) ** 0.5))
    return middle if middle not in (current, to) else None


def _key(flags: Flags) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(flags.items()))


def _said(found: Comparison, before: Result, after: Result) -> str:
    if found.factor is None:
        return f"{found.verdict}: {before.rate:.4g} → {after.rate:.4g} req/s"
    return (
        f"{found.verdict}: {before.rate:.4g} → {after.rate:.4g} req/s, a factor of {found.factor:.2f} "
        f"[{found.low:.2f}, {found.high:.2f}]"
    )
