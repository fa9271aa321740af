"""Which move to try next, and how far: the diagnosis names the flag, the calibrated simulator the size."""

import math
from collections.abc import Iterator

import msgspec

from knee.diagnose.verdict import Diagnosis, Move
from knee.tune.check import TOKENS
from knee.tune.climb import aimed, climb, towards
from knee.tune.proposal import (
    WORTH_TRYING,
    Change,
    Place,
    Predict,
    Proposal,
    Proposals,
    allowed,
    sizes,
    smallest_of_best,
)


def propose(place: Place, diagnosis: Diagnosis | None, predict: Predict | None) -> Proposals:
    """Moves for the limits that hold, and those for which only the simulator speaks behind them."""
    base = predict(place.flags) if predict is not None else None
    model = predict if base else None
    aim = climb(place, model, base) if model is not None and base else place.flags
    moves: list[Proposal] = []
    passed: list[str] = []
    for limit, move in _named(diagnosis) if diagnosis is not None else ():
        if move.flag not in place.moves:
            passed.append(f"{move.flag} → {move.to} ({limit}): not among [moves]")
            continue
        sized = _sized(place, limit, move, model, base)
        if sized is None:
            passed.append(f"{move.flag} → {move.to} ({limit}): no room within its bounds")
            continue
        if model is not None and base:
            sized = aimed(place, sized, aim, model, base)
        if sized.predicted is not None and (sized.gain or 0) < WORTH_TRYING:
            passed.append(f"{_said(sized)} ({limit}): the simulator expects a factor of {sized.gain:.2f}")
        else:
            moves.append(sized)
    if model is not None and base:
        moves += towards(place, aim, model, base)
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
    tried: list[Proposal] = []
    for to in sizes(bounds, now, move.to):
        changes = allowed(place, (Change(flag=move.flag, current=now, to=to), *together))
        if changes is None:
            continue
        why = f"{move.arithmetic}: {move.effect}" if to == move.to else f"{move.effect}"
        proposal = Proposal(changes=changes, limit=limit, why=why, price=move.price, gain=move.gain)
        if predict is None or base is None:
            return proposal
        expected = predict(proposal.applied(place.flags))
        if expected is None:
            return smallest_of_best(tried) or proposal
        tried.append(msgspec.structs.replace(proposal, predicted=expected, gain=expected / base))
    return smallest_of_best(tried)


def _within(place: Place, move: Move) -> str:
    bounds = place.moves[move.flag]
    if bounds.values or not move.to.isdecimal():
        return move.to
    assert bounds.low is not None
    assert bounds.high is not None
    return str(min(bounds.high, max(bounds.low, int(move.to))))


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


def _said(proposal: Proposal) -> str:
    return ", ".join(f"{change.flag} → {change.to}" for change in proposal.changes)
