"""A proposal without a server: ask the engine calibrated to a run, and name the real trials that decide."""

import msgspec

from knee.core.errors import NoAnswer, UsageError
from knee.core.slo import Slo
from knee.engine.config import EngineConfig
from knee.measure.model.calibrate import Calibration
from knee.measure.model.fitting import StepFit
from knee.measure.model.like import Prediction, capacity, predict_knee
from knee.measure.model.replay import Model
from knee.tune.check import SEQS, TOKENS
from knee.tune.climb import simulated_moves
from knee.tune.config import Bounds, Flags
from knee.tune.predict import rough_knee
from knee.tune.proposal import Change, Place, Proposal
from knee.tune.simulated import engine_with

MOVES = {SEQS: Bounds(low=1, high=1024), TOKENS: Bounds(low=64, high=16_384)}
"""What moves where no knee.toml says otherwise."""

MOST_STEPS = 8
NO_FIT = StepFit(fixed_ns=0, per_seq_ns=0, per_prefill_token_ns=0, per_context_token_ns=0, error=0)


class RealTrial(msgspec.Struct, frozen=True, kw_only=True):
    """Flags to measure on the real server, and what that would decide."""

    flags: Flags
    why: str


class Proposed(msgspec.Struct, frozen=True, kw_only=True):
    """What the simulator proposes. `before` and `after` are its knees with their intervals."""

    start: Flags
    flags: Flags
    moves: tuple[Proposal, ...]
    before: Prediction
    after: Prediction
    trials: tuple[RealTrial, ...]
    notes: tuple[str, ...] = ()


def propose_like(found: Calibration, slo: Slo, moves: dict[str, Bounds]) -> Proposed:
    """Climb from the flags of the run, one flag at a time, as long as the simulator expects more.

    Raises:
        NoAnswer: the simulator has no knee for this SLO.
        UsageError: a flag may move that the simulator does not have.
    """
    engine = found.engine
    start = {SEQS: str(engine.max_num_seqs), TOKENS: str(engine.max_num_batched_tokens)}
    _check_known(engine, moves)
    workload = found.workload
    guess = 0.8 * capacity(engine, workload)

    def predict(flags: Flags) -> float | None:
        moved = engine_with(engine, flags)
        model = Model(config=moved, fit=NO_FIT, extra_ms=found.extra_ttft_ms) if moved else None
        return rough_knee(model, workload, slo, max(guess, reached)) if model else None

    reached = 0.0
    reached = predict(start) or 0.0
    if reached <= 0:
        raise NoAnswer(f"the calibrated engine has no knee for {slo}", "it holds or breaks at every rate")
    flags, path = start, list[Proposal]()
    while len(path) < MOST_STEPS:
        place = Place(flags=flags, facts={}, moves=moves)
        further = simulated_moves(place, predict, reached)
        if not further:
            break
        path.append(further[0])
        flags, reached = further[0].applied(flags), further[0].predicted or reached
    after = _at(found, flags, slo)
    return Proposed(
        start=start,
        flags=flags,
        moves=tuple(path),
        before=_at(found, start, slo),
        after=after,
        trials=_trials(start, path, moves),
        notes=(*found.assumed, *((f"extrapolated: {after.extrapolated}",) if after.extrapolated else ())),
    )


def _check_known(engine: EngineConfig, moves: dict[str, Bounds]) -> None:
    for name, bounds in moves.items():
        value = bounds.values[0] if bounds.values else str(bounds.high)
        if (
            engine_with(msgspec.structs.replace(engine, max_num_batched_tokens=1 << 20), {name: value})
            is None
        ):
            raise UsageError(f"the simulated engine has no {name}", "leave it out of [moves] for --like")


def _at(found: Calibration, flags: Flags, slo: Slo) -> Prediction:
    engine = engine_with(found.engine, flags)
    assert engine is not None
    return predict_knee(found, engine, found.workload, slo)


def _trials(start: Flags, path: list[Proposal], moves: dict[str, Bounds]) -> tuple[RealTrial, ...]:
    """The proposal, the step before it, and one beyond: together they show whether the simulator is right."""
    if not path:
        return (RealTrial(flags=start, why="the simulator expects nothing of any move: confirm the knee"),)
    before = start
    for move in path[:-1]:
        before = move.applied(before)
    last = path[-1]
    trials = [RealTrial(flags=last.applied(before), why="the proposal itself")]
    if len(path) > 1:
        why = f"whether the last move is worth it: the simulator expects a factor of {last.gain or 1:.2f}"
        trials.append(RealTrial(flags=before, why=why))
    beyond = _beyond(last.changes[0], moves)
    if beyond is not None:
        flags = {**last.applied(before), last.changes[0].flag: beyond}
        if int(flags[TOKENS]) >= int(flags[SEQS]):
            why = "whether it goes on beyond where the simulator sees no more to gain"
            trials.append(RealTrial(flags=flags, why=why))
    return tuple(trials)


def _beyond(change: Change, moves: dict[str, Bounds]) -> str | None:
    if not (change.to.isdecimal() and change.current.isdecimal()):
        return None
    further = 2 * int(change.to) if int(change.to) > int(change.current) else int(change.to) // 2
    return str(further) if moves[change.flag].admits(str(further)) else None
