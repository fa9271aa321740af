"""What may move, as data: changes, proposals, and the values that are worth asking for."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from knee.tune.check import SEQS, TOKENS, contradicts
from knee.tune.config import Bounds, Flags

Predict = Callable[[Flags], float | None]
"""The knee in requests/s that the simulator expects with these flags set; None where it cannot say."""

WORTH_TRYING = 1.02
"""A predicted factor on the knee below this is not worth a start of the server."""

WORTH_ALONE = 1.04
"""The same where only the simulator speaks for the move."""

SAME = 1.015
"""Of two sizes whose predicted knees differ by less, the smaller move is taken."""

LADDER = 5
"""Sizes that are asked for, each twice the last."""

ROUNDS = 6
"""Rounds over all flags in which the simulator's own best is looked for."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One flag: from `current` ("" where it is not known) to `to`."""

    flag: str
    current: str
    to: str


class Proposal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A move: one flag, or several that gain nothing without each other.

    `limit` is what it is to move, `predicted` the knee in requests/s that the simulator expects, `gain` the
    factor on the knee (the simulator's, else the diagnosis's own).
    """

    changes: tuple[Change, ...]
    limit: str
    why: str
    price: str = ""
    predicted: float | None = None
    gain: float | None = None

    def applied(self, flags: Flags) -> Flags:
        """`flags` after the move."""
        return {**flags, **{change.flag: change.to for change in self.changes}}


class Proposals(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Moves in the order in which to try them, and why others are not among them."""

    moves: tuple[Proposal, ...] = ()
    passed_over: tuple[str, ...] = ()


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a move starts: the flags that are set, all that is known to hold, and what may move."""

    flags: Flags
    facts: Mapping[str, str]
    moves: Mapping[str, Bounds]

    def now(self, flag: str, otherwise: str = "") -> str:
        """The flag's value, as set or as known."""
        return self.flags.get(flag) or self.facts.get(flag) or otherwise


def sizes(bounds: Bounds, now: str, to: str) -> list[str]:
    """Values to ask for: the diagnosis's own first, then further ones in the same direction."""
    if bounds.values:
        return [to] if bounds.admits(to) and to != now else []
    if not to.isdecimal():
        return []
    assert bounds.low is not None
    assert bounds.high is not None
    up = not now.isdecimal() or int(to) > int(now)
    factors = [2.0**k if up else 0.5**k for k in range(LADDER)]
    found = [min(bounds.high, max(bounds.low, round(int(to) * factor))) for factor in factors]
    forward = [v for v in found if not now.isdecimal() or (v > int(now) if up else v < int(now))]
    return [str(value) for value in dict.fromkeys(forward)]


def directions(bounds: Bounds, now: str) -> list[list[str]]:
    """Values up and down from `now`, each step a factor of two; other values one by one."""
    if bounds.values:
        return [[value] for value in bounds.values if value != now]
    if not now.isdecimal():
        return []
    return [sizes(bounds, now, str(2 * int(now))), sizes(bounds, now, str(max(1, int(now) // 2)))]


def allowed(place: Place, changes: tuple[Change, ...]) -> tuple[Change, ...] | None:
    """The changes, with the token budget raised along where vLLM asks for it; None where that cannot be."""
    after = {**{name: place.now(name) for name in (SEQS, TOKENS)}, **{c.flag: c.to for c in changes}}
    if any(not place.moves[c.flag].admits(c.to) or c.to == c.current for c in changes):
        return None
    if not contradicts(after):
        return changes
    if any(change.flag == TOKENS for change in changes):
        return None
    bounds = place.moves.get(TOKENS)
    if bounds is None or not bounds.admits(after[SEQS]):
        return None
    return (*changes, Change(flag=TOKENS, current=place.now(TOKENS), to=after[SEQS]))


def furthest(
    place: Place, predict: Predict, base: float, steps: Sequence[tuple[str, str]]
) -> Proposal | None:
    """The smallest of `steps` of those from which the simulator expects most; None where none gains.

    All are asked for: with a smaller token budget, say, more steps carry prompts and single gaps break the
    earlier, until the budget is so small that none of them does.
    """
    tried: list[Proposal] = []
    for flag, to in steps:
        changes = allowed(place, (Change(flag=flag, current=place.now(flag), to=to),))
        moved = Proposal(changes=changes, limit="simulator", why="") if changes is not None else None
        expected = predict(moved.applied(place.flags)) if moved is not None else None
        if moved is not None and expected is not None:
            why = f"the calibrated simulator expects a knee {expected / base:.2f} times as high"
            tried.append(msgspec.structs.replace(moved, predicted=expected, gain=expected / base, why=why))
    best = smallest_of_best(tried)
    return best if best is not None and (best.predicted or 0) >= SAME * base else None


def smallest_of_best(tried: Sequence[Proposal]) -> Proposal | None:
    """The first of `tried`, which go ever further, that is expected to do as well as any of them."""
    most = max((one.predicted or 0 for one in tried), default=0)
    return next((one for one in tried if SAME * (one.predicted or 0) >= most), None)
