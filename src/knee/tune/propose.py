"""Which move to try next, and how far: the diagnosis names the flag, the calibrated simulator the size."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import combinations, product

import msgspec

from knee.diagnose.verdict import Diagnosis, Move
from knee.tune.check import SEQS, TOKENS, contradicts
from knee.tune.config import Bounds, Flags

Predict = Callable[[Flags], float | None]
"""The knee in requests/s that the simulator expects with these flags set; None where it cannot say."""

WORTH_TRYING = 1.02
"""A predicted factor on the knee below this is not worth a start of the server."""

WORTH_ALONE = 1.05
"""The same where only the simulator speaks for the move."""

SAME = 1.015
"""Of two sizes whose predicted knees differ by less, the smaller move is taken."""

LADDER = 5
"""Sizes that are asked for, each twice the last."""


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


def propose(place: Place, diagnosis: Diagnosis | None, predict: Predict | None) -> Proposals:
    """Moves for the limits that hold, and those for which only the simulator speaks behind them."""
    base = predict(place.flags) if predict is not None else None
    model = predict if base else None
    moves: list[Proposal] = []
    passed: list[str] = []
    for limit, move in _named(diagnosis) if diagnosis is not None else ():
        if move.flag not in place.moves:
            passed.append(f"{move.flag} → {move.to} ({limit}): not among [moves]")
            continue
        sized = _sized(place, limit, move, model, base)
        if sized is None:
            passed.append(f"{move.flag} → {move.to} ({limit}): no room within its bounds")
        elif sized.predicted is not None and (sized.gain or 0) < WORTH_TRYING:
            passed.append(f"{_said(sized)} ({limit}): the simulator expects a factor of {sized.gain:.2f}")
        else:
            moves.append(sized)
    if model is not None and base:
        moves += simulated_moves(place, model, base, {c.flag for m in moves for c in m.changes})
    return Proposals(moves=tuple(moves), passed_over=tuple(passed))


def _named(diagnosis: Diagnosis) -> Iterator[tuple[str, Move]]:
    """The moves of a diagnosis with the limits they move, each flag once."""
    seen: set[str] = set()
    every = [(str(diagnosis.limit), move) for move in (diagnosis.move, diagnosis.next_move) if move]
    every += [(binding.limit, move) for binding in diagnosis.further for move in binding.moves]
    for limit, move in every:
        if move.flag not in seen:
            seen.add(move.flag)
            yield limit, move


def _sized(
    place: Place, limit: str, move: Move, predict: Predict | None, base: float | None
) -> Proposal | None:
    """The diagnosis's move, as far as the simulator finds best; as the diagnosis says where it is silent."""
    bounds, now = place.moves[move.flag], place.now(move.flag, move.current)
    together = tuple(
        Change(flag=other.flag, current=place.now(other.flag, other.current), to=_within(place, other))
        for other in move.together
        if other.flag in place.moves and other.flag != move.flag
    )
    best: Proposal | None = None
    for to in _sizes(bounds, now, move.to):
        changes = _allowed(place, (Change(flag=move.flag, current=now, to=to), *together))
        if changes is None:
            continue
        why = f"{move.arithmetic}: {move.effect}" if to == move.to else f"{move.effect}"
        proposal = Proposal(changes=changes, limit=limit, why=why, price=move.price, gain=move.gain)
        if predict is None or base is None:
            return proposal
        expected = predict(proposal.applied(place.flags))
        if expected is None:
            return best or proposal
        if best is not None and expected < SAME * (best.predicted or 0):
            break
        best = msgspec.structs.replace(proposal, predicted=expected, gain=expected / base)
    return best


def _sizes(bounds: Bounds, now: str, to: str) -> list[str]:
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


def _within(place: Place, move: Move) -> str:
    bounds = place.moves[move.flag]
    if bounds.values or not move.to.isdecimal():
        return move.to
    assert bounds.low is not None
    assert bounds.high is not None
    return str(min(bounds.high, max(bounds.low, int(move.to))))


def _allowed(place: Place, changes: tuple[Change, ...]) -> tuple[Change, ...] | None:
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


def simulated_moves(
    place: Place, predict: Predict, base: float, named: AbstractSet[str] = frozenset()
) -> list[Proposal]:
    """What the simulator expects over a knee of `base` from flags that no limit has `named`, best first."""
    found = [
        best
        for flag, bounds in place.moves.items()
        if flag not in named
        for direction in _directions(bounds, place.now(flag))
        if (best := _furthest(place, predict, base, [(flag, to) for to in direction])) is not None
    ]
    return sorted(found, key=lambda proposal: -(proposal.gain or 0))


def _furthest(
    place: Place, predict: Predict, base: float, steps: Sequence[tuple[str, str]]
) -> Proposal | None:
    """The last of `steps` up to which the simulator expects more and more; None where that is too little."""
    best, reached = None, base
    for flag, to in steps:
        changes = _allowed(place, (Change(flag=flag, current=place.now(flag), to=to),))
        if changes is None:
            break
        moved = Proposal(changes=changes, limit="simulator", why="")
        expected = predict(moved.applied(place.flags))
        if expected is None or expected < SAME * reached:
            break
        why = f"the calibrated simulator expects a knee {expected / base:.2f} times as high"
        reached = expected
        best = msgspec.structs.replace(moved, predicted=expected, gain=expected / base, why=why)
    return best if reached >= WORTH_ALONE * base else None


def _directions(bounds: Bounds, now: str) -> list[list[str]]:
    """Values up and down from `now`, each step a factor of two; other values one by one."""
    if bounds.values:
        return [[value] for value in bounds.values if value != now]
    if not now.isdecimal():
        return []
    return [_sizes(bounds, now, str(2 * int(now))), _sizes(bounds, now, str(max(1, int(now) // 2)))]


def unloaded_moves(place: Place, prompt_tokens: float) -> Proposals:
    """What may help where a request that is alone is already too late: take its prompt in one step."""
    now, bounds = place.now(TOKENS), place.moves.get(TOKENS)
    if not now.isdecimal() or bounds is None or bounds.high is None or int(now) >= prompt_tokens:
        return Proposals()
    to = str(min(bounds.high, 2 ** math.ceil(math.log2(prompt_tokens))))
    steps = math.ceil(prompt_tokens / int(now))
    if int(to) <= int(now):
        return Proposals()
    why = f"a prompt of {prompt_tokens:,.0f} tokens takes {steps} steps of {now} tokens"
    change = Change(flag=TOKENS, current=now, to=to)
    return Proposals(moves=(Proposal(changes=(change,), limit="token_budget", why=why),))


def pairs(place: Place, predict: Predict | None, most: int) -> list[Proposal]:
    """Pairs of movable numeric flags, both moved by a factor of two; the most promising first."""
    numeric = [flag for flag in place.moves if not place.moves[flag].values and place.now(flag).isdecimal()]
    base = predict(place.flags) if predict is not None else None
    found: list[Proposal] = []
    for both in combinations(numeric, 2):
        for factors in product((2.0, 0.5), repeat=2):
            changes = tuple(
                Change(flag=flag, current=now, to=str(max(1, round(int(now) * factor))))
                for flag, factor, now in zip(both, factors, map(place.now, both), strict=True)
            )
            if _allowed(place, changes) != changes:
                continue
            pair = Proposal(changes=changes, limit="pair", why="flags that interact, moved together")
            expected = predict(pair.applied(place.flags)) if predict is not None and base else None
            if expected is not None and base:
                pair = msgspec.structs.replace(pair, predicted=expected, gain=expected / base)
            found.append(pair)
    return sorted(found, key=lambda pair: -(pair.gain or 0))[:most]


def _said(proposal: Proposal) -> str:
    return ", ".join(f"{change.flag} → {change.to}" for change in proposal.changes)
