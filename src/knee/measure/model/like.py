"""What a calibrated engine says of limits, loads and objectives that were not measured."""

import math
from collections.abc import Set as AbstractSet
from pathlib import Path

import msgspec
import numpy as np

from knee.core.errors import InputError, NoAnswer
from knee.core.slo import Slo
from knee.core.units import NS_PER_S
from knee.engine.config import COST_FLAGS, EngineConfig
from knee.measure.model.calibrate import CONFIDENCE, Calibration, calibrate
from knee.measure.model.fitting import StepFit
from knee.measure.model.knee import FIRST_REQUESTS, model_knee, model_shares
from knee.measure.model.profile import profile
from knee.measure.model.replay import Model
from knee.measure.recorded import read_recorded
from knee.measure.samples import allowed_share
from knee.measure.simulated import SimulatedTarget, simulated_point
from knee.measure.target import Offer
from knee.stats.distributions import student_quantile
from knee.workload.spec import Workload

ERROR, COARSE = 0.005, 0.02
"""Relative errors of the knee that is told, and of those that only tell how far apart the fits are."""

FARTHEST = 8
"""Times its capacity: an engine that meets an SLO at such a rate meets it at any."""
MODEL_ERROR = 0.05
"""Relative half-width that every interval has at least: the engine is a model, and no amount of data changes
that. An assumption, not a measurement."""


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """The knee of an engine that was fitted, in requests/s, with its interval.

    `running` is how many sequences run at once there at most; where that is beyond what the calibration may
    be trusted to, `extrapolated` says so.
    """

    slo: Slo
    knee: float
    low: float
    high: float
    running: float
    extrapolated: str = ""


def predict_knee(found: Calibration, engine: EngineConfig, workload: Workload, slo: Slo) -> Prediction:
    """The knee of `engine`, which has the costs of `found` and maybe other limits.

    The interval is the jackknife's, over the fits that each leave out a part of the recorded time, and a
    share for what the model does not know.

    Raises:
        NoAnswer: the SLO breaks even at a fiftieth of the capacity, holds even at eight times it, or has no
            knee on the model.
    """
    guess = capacity(engine, workload)
    least = guess / 50
    if _holds(found, engine, workload, slo, least) is False:
        raise NoAnswer(f"no knee: {slo} breaks even at {least:.3g} req/s", "choose another bound")
    most = guess * FARTHEST
    if not _breaks(engine, found.extra_ttft_ms, workload, slo, most):
        raise NoAnswer(
            f"no knee: {slo} holds for {FIRST_REQUESTS:,} requests even at {most:.3g} req/s, "
            f"{FARTHEST} times what the engine serves",
            "choose a tighter bound",
        )
    knees = [_knee(engine, found.extra_ttft_ms, workload, slo, guess, error=ERROR)]
    for cost in found.alternatives:
        other = msgspec.structs.replace(engine, step_cost=cost)
        knees.append(_knee(other, found.extra_ttft_ms, workload, slo, guess, error=COARSE))
    knee, *others = knees
    logs = np.log(others) if others else np.zeros(1)
    spread = (len(logs) - 1) / len(logs) * float(((logs - logs.mean()) ** 2).sum())
    chance = student_quantile((1 + CONFIDENCE) / 2, max(1, len(logs) - 1)) * math.sqrt(spread)
    reach = math.hypot(chance, MODEL_ERROR)
    running = _running(engine, workload, knee)
    beyond = (
        f"{running:.0f} sequences run at once there, and the run had {found.running_seen:.0f}"
        if running > found.running_trusted
        else ""
    )
    return Prediction(
        slo=slo,
        knee=knee,
        low=knee * math.exp(-reach),
        high=knee * math.exp(reach),
        running=running,
        extrapolated=beyond,
    )


def load_calibration(path: Path) -> Calibration:
    """A calibration that was saved, or that of a run directory.

    Raises:
        InputError: it is neither.
        NoAnswer: the run tells too little.
    """
    if path.is_dir():
        return calibrate([read_recorded(path)], {})
    try:
        return msgspec.json.decode(path.read_bytes(), type=Calibration)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise InputError(
            f"{path} is no calibration: {error}", "knee calibrate RUN --out FILE makes one"
        ) from error


def capacity(engine: EngineConfig, workload: Workload) -> float:
    """Requests/s that an engine serves at most, by its costs and its seats: n / (O (a + d + b n + c n P/O)).

    A full batch of n brings n/O prompts a step, so where that is one or more, each step has prefill in it.
    """
    about = profile(workload)
    cost, seats = engine.step_cost, engine.max_num_seqs
    prompts, outputs = about.prompt_tokens, about.output_tokens
    held = prompts + outputs / 2
    anew_ns = cost.per_prefill_step_ns * min(1.0, seats / outputs)
    step_ns = (
        cost.fixed_ns
        + anew_ns
        + seats
        * (cost.per_seq_ns + cost.per_prefill_token_ns * prompts / outputs + cost.per_context_token_ns * held)
    )
    return seats / (outputs * step_ns / NS_PER_S)


def engine_like(found: Calibration, asked: EngineConfig, given: AbstractSet[str]) -> EngineConfig:
    """The calibrated engine with those limits and costs of `asked` whose flags were `given`."""
    engine = found.engine
    limits = {name: getattr(asked, name) for name in engine.__struct_fields__ if name in given}
    costs = {part: getattr(asked.step_cost, part) for flag, part in COST_FLAGS.items() if flag in given}
    if {"api_server_count", "front_request_ms", "front_token_ms"} & given:
        limits["front_end"] = asked.front_end
    cost = msgspec.structs.replace(engine.step_cost, **costs)
    return msgspec.structs.replace(engine, step_cost=cost, **limits).checked()


def rates_below(most: float) -> list[float]:
    """Eight rates up to somewhat above `most`, in round numbers."""
    return sorted({float(f"{most * share:.2g}") for share in (0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1)})


def _model(engine: EngineConfig, extra_ms: float) -> Model:
    nothing = StepFit(fixed_ns=0, per_seq_ns=0, per_prefill_token_ns=0, per_context_token_ns=0, error=0)
    return Model(config=engine, fit=nothing, extra_ms=extra_ms)


def _breaks(engine: EngineConfig, extra_ms: float, workload: Workload, slo: Slo, rate: float) -> bool:
    """Whether the SLO breaks at `rate`, with a queue as long as a search for the knee would see."""
    shares = model_shares(_model(engine, extra_ms), workload, slo, FIRST_REQUESTS)(rate)
    return any(
        share.value > allowed_share(objective)
        for share, objective in zip(shares, slo.objectives, strict=True)
    )


def _knee(
    engine: EngineConfig, extra_ms: float, workload: Workload, slo: Slo, guess: float, *, error: float
) -> float:
    found = model_knee(_model(engine, extra_ms), workload, slo, guess, error)
    if found is None:
        raise NoAnswer(f"the calibrated engine has no knee for {slo}", "it holds or breaks at every rate")
    return found.knee


def _holds(
    found: Calibration, engine: EngineConfig, workload: Workload, slo: Slo, rate: float
) -> bool | None:
    """Whether the SLO holds at `rate`, as far as 400 requests tell."""
    seconds = 400 / rate
    offer = Offer(
        workload=workload,
        rate=rate,
        seed=1,
        warmup_ns=round(seconds / 4 * NS_PER_S),
        window_ns=round(seconds * NS_PER_S),
        drain_ns=NS_PER_S,
    )
    return simulated_point(engine, offer, found.extra_ttft_ms, slo).point.holds


def _running(engine: EngineConfig, workload: Workload, rate: float) -> float:
    """The most sequences that run at once in two minutes at `rate`."""
    offer = Offer(
        workload=workload, rate=rate, seed=1, warmup_ns=20 * NS_PER_S, window_ns=120 * NS_PER_S, drain_ns=0
    )
    window = SimulatedTarget(engine).measure(offer).window
    return window.engines["0"].gauges["num_requests_running"].high if window else 0.0
