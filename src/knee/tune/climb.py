"""Where the simulator itself would go: its best flags, and the moves towards them."""

import math
from itertools import combinations, product

import msgspec

from knee.tune.config import Flags
from knee.tune.proposal import (
    ROUNDS,
    SAME,
    WORTH_ALONE,
    Change,
    Place,
    Predict,
    Proposal,
    allowed,
    directions,
    furthest,
)


def climb(place: Place, predict: Predict, base: float) -> Flags:
    """The flags at which the simulator expects the highest knee, from those of `place` with a knee of `base`.

    One flag after the other, and two at once where neither gains alone; a local best.
    """
    flags, reached = place.flags, base
    for _ in range(ROUNDS):
        before = reached
        for flag, bounds in place.moves.items():
            here = msgspec.structs.replace(place, flags=flags)
            for direction in directions(bounds, here.now(flag)):
                best = furthest(here, predict, reached, [(flag, to) for to in direction])
                if best is not None and best.predicted is not None:
                    flags, reached = best.applied(flags), best.predicted
                    break
        if reached == before:
            here = msgspec.structs.replace(place, flags=flags)
            both = pairs(here, predict, 1)
            if not both or both[0].predicted is None or both[0].predicted < SAME * reached:
                break
            flags, reached = both[0].applied(flags), both[0].predicted
    return flags


def aimed(place: Place, sized: Proposal, aim: Flags, predict: Predict, base: float) -> Proposal:
    """The move, taken to where its flag is at the simulator's best, if it is no worse off there alone.

    Two flags that limit each other would otherwise be moved in turns, by a little each time.
    """
    first = sized.changes[0]
    to = aim.get(first.flag, first.to)
    if not all(text.isdecimal() and int(text) > 0 for text in (first.current, first.to, to)):
        return sized
    if (int(to) - int(first.current)) * (int(first.to) - int(first.current)) <= 0:
        return sized
    if abs(math.log(int(to) / int(first.current))) <= abs(math.log(int(first.to) / int(first.current))):
        return sized
    changes = allowed(place, (msgspec.structs.replace(first, to=to), *sized.changes[1:]))
    if changes is None:
        return sized
    further = msgspec.structs.replace(sized, changes=changes)
    expected = predict(further.applied(place.flags))
    if expected is None or expected < (sized.predicted or base) / SAME:
        return sized
    return msgspec.structs.replace(further, predicted=expected, gain=expected / base)


def towards(place: Place, aim: Flags, predict: Predict, base: float) -> list[Proposal]:
    """Moves to the simulator's best: one flag where that gains alone, else all that differ at once."""
    expected = predict(aim)
    if expected is None or expected < WORTH_ALONE * base:
        return []
    why = f"the calibrated simulator expects a knee {{:.2f}} times as high; its best is {_flags(aim)}"
    differing = tuple(
        Change(flag=flag, current=place.now(flag), to=aim[flag])
        for flag in place.moves
        if flag in aim and aim[flag] != place.now(flag)
    )
    found = []
    for change in differing:
        changes = allowed(place, (change,))
        moved = Proposal(changes=changes, limit="simulator", why="") if changes else None
        alone = predict(moved.applied(place.flags)) if moved else None
        if moved is not None and alone is not None and alone >= WORTH_ALONE * base:
            said = why.format(alone / base)
            found.append(msgspec.structs.replace(moved, why=said, predicted=alone, gain=alone / base))
    if not found:
        together = Proposal(changes=differing, limit="simulator", why=why.format(expected / base))
        return [msgspec.structs.replace(together, predicted=expected, gain=expected / base)]
    return sorted(found, key=lambda proposal: -(proposal.gain or 0))


def simulated_moves(place: Place, predict: Predict, base: float) -> list[Proposal]:
    """What the simulator expects over a knee of `base` from one flag alone, the best first."""
    found = [
        best
        for flag, bounds in place.moves.items()
        for direction in directions(bounds, place.now(flag))
        if (best := furthest(place, predict, base, [(flag, to) for to in direction])) is not None
        and (best.gain or 0) >= WORTH_ALONE
    ]
    return sorted(found, key=lambda proposal: -(proposal.gain or 0))


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
            if allowed(place, changes) != changes:
                continue
            pair = Proposal(changes=changes, limit="pair", why="flags that interact, moved together")
            expected = predict(pair.applied(place.flags)) if predict is not None and base else None
            if expected is not None and base:
                pair = msgspec.structs.replace(pair, predicted=expected, gain=expected / base)
            found.append(pair)
    return sorted(found, key=lambda pair: -(pair.gain or 0))[:most]


def _flags(flags: Flags) -> str:
    return ", ".join(f"{name} {value}" for name, value in flags.items())
