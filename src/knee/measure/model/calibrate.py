"""Fit a simulated engine to a recorded run: step costs with intervals, how well they replay it, their reach.

The fit is `paced.fit_steps_closely`; intervals are those of a delete-block jackknife over time (Künsch
1989), which keeps neighbouring gaps together because they depend on each other.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from knee.core.errors import NoAnswer
from knee.core.point import Point
from knee.core.requests import Gaps, Observed
from knee.core.units import NS_PER_MS
from knee.engine.config import EngineConfig, StepCost
from knee.measure.model.fitting import StepFit, streaming_at
from knee.measure.model.paced import fit_steps_closely
from knee.measure.model.replay import UNBOUNDED_BLOCKS
from knee.measure.point import make_point
from knee.measure.recorded import Recorded
from knee.measure.simulated import SimulatedTarget
from knee.measure.target import Offer
from knee.stats.distributions import student_quantile
from knee.stats.percentile import quantile
from knee.workload.spec import Arrivals, Workload

BLOCKS = 12
CONFIDENCE = 0.95
PARTS = tuple(part.name for part in msgspec.structs.fields(StepCost))
UNBOUNDED_SEQS = 4096
REACH = 2.0
"""How far beyond what was seen a prediction is still given without a mark: to twice the sequences at once."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the step cost in milliseconds, with its interval."""

    ms: float
    low_ms: float
    high_ms: float


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded point, and the same requests on the fitted engine. Means and medians in milliseconds."""

    rate: float
    itl_ms: float
    itl_fitted_ms: float
    ttft_ms: float
    ttft_fitted_ms: float
    arrivals: Arrivals = Arrivals()


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """An engine like the server of a run.

    `residual` is the relative root mean square error of the fit over bins of some 24 steps. `extra_ttft_ms`
    is what the server and the way to it add to a first token beyond the engine. `running_seen`,
    `context_seen` and `rate_seen` bound what the fit rests on, `alternatives` are the fits that each leave
    out a part of the time, and `assumed` names what the run does not tell.
    """

    run: str
    version: str
    workload: Workload
    engine: EngineConfig
    costs: dict[str, Cost]
    residual: float
    extra_ttft_ms: float
    rates: tuple[float, ...]
    running_seen: float
    context_seen: int
    rate_seen: float
    replayed: tuple[Replayed, ...]
    alternatives: tuple[StepCost, ...] = ()
    assumed: tuple[str, ...] = ()

    @property
    def running_trusted(self) -> float:
        """Sequences at once beyond which a prediction is an extrapolation."""
        return REACH * self.running_seen


def calibrate(runs: Sequence[Recorded], flags: Mapping[str, int], below: float = math.inf) -> Calibration:
    """The engine that explains the open-loop points of `runs`, of one server, at rates up to `below`.

    `flags` are engine limits that the caller knows, by vLLM's names; they come before those of the runs. The
    workload is that of the first.

    Raises:
        NoAnswer: there are too few gaps between tokens to tell a step from its parts.
    """
    points = [(run, point, seen) for run in runs for point, seen in run.points]
    used = [
        (run, point, seen)
        for run, point, seen in points
        if point.max_concurrency is None and point.rate <= below and not point.invalid
    ]
    observed = [seen for _, _, seen in used]
    paths = ", ".join(run.path for run in runs)
    fit = fit_steps_closely(observed)
    if fit is None:
        left = len(points) - len(used)
        raise NoAnswer(
            f"{len(used)} points of {paths} tell too little about the steps of the engine"
            + (f", and {left} are invalid, closed-loop or above the rate" if left else ""),
            "longer points, at several rates, with streaming",
        )
    engine, assumed = _engine(runs, fit, flags)
    fits = _leaving_out(observed)
    replayed = [_replay(run.workload, point, engine) for run, point, _ in used]
    running = [float(np.quantile(streaming_at(o, o.gaps.at_ns), 0.99)) for o in observed if len(o.gaps.ns)]
    return Calibration(
        run=paths,
        version=str(runs[0].target.get("version", "")),
        workload=runs[0].workload,
        engine=engine,
        costs=_intervals(fit, fits),
        alternatives=tuple(_cost(one) for one in fits),
        residual=fit.error,
        extra_ttft_ms=_extra_ttft_ms(replayed),
        rates=tuple(point.rate for _, point, _ in used),
        running_seen=max(running, default=1.0),
        context_seen=max(int((o.prompt_tokens + o.output_tokens).max(initial=0)) for o in observed),
        rate_seen=max(point.rate for _, point, _ in used),
        replayed=tuple(replayed),
        assumed=assumed,
    )


def _engine(
    runs: Sequence[Recorded], fit: StepFit, flags: Mapping[str, int]
) -> tuple[EngineConfig, tuple[str, ...]]:
    told = flags
    for run in runs:
        told = {**_told(run), **told}
    defaults = {
        "max_num_seqs": UNBOUNDED_SEQS,
        "max_num_batched_tokens": 2048,
        "max_model_len": 1 << 20,
        "num_gpu_blocks": UNBOUNDED_BLOCKS,
        "block_size": 16,
    }
    limits = {name: told.get(name, usual) for name, usual in defaults.items()}
    limits["max_num_batched_tokens"] = max(limits["max_num_batched_tokens"], limits["max_num_seqs"])
    unknown = {
        "max_num_seqs": "max_num_seqs is not known: it is taken never to bind",
        "max_num_batched_tokens": f"max_num_batched_tokens is not known: {limits['max_num_batched_tokens']}",
        "num_gpu_blocks": "the size of the KV cache is not known: it is taken never to bind",
    }
    assumed = tuple(text for name, text in unknown.items() if name not in told)
    return msgspec.structs.replace(EngineConfig(step_cost=_cost(fit)), **limits).checked(), assumed


def _told(run: Recorded) -> dict[str, int]:
    """Limits that the run tells: the target's flags, and `cache_config_info` of its metrics."""
    texts: dict[str, str] = {}
    for point, _ in run.points:
        for window in point.window.engines.values() if point.window else ():
            texts |= window.info
    texts |= {name: str(value) for name, value in (run.target.get("flags") or {}).items()}
    return {name: int(text) for name, text in texts.items() if text.isdigit() and int(text) > 0}


def _replay(workload: Workload, point: Point, engine: EngineConfig) -> Replayed:
    offer = Offer(
        workload=workload,
        rate=point.rate,
        seed=point.seed,
        warmup_ns=point.window_start_ns,
        window_ns=max(1, point.window_end_ns - point.window_start_ns),
        drain_ns=60_000 * NS_PER_MS,
    )
    again = make_point(SimulatedTarget(engine, sampled=False).measure(offer), offer, simulated=True)
    return Replayed(
        rate=point.rate,
        arrivals=workload.arrivals,
        itl_ms=point.itl_ms.mean_finite or math.nan,
        itl_fitted_ms=again.itl_ms.mean_finite or math.nan,
        ttft_ms=point.ttft_ms.p50 or math.nan,
        ttft_fitted_ms=again.ttft_ms.p50 or math.nan,
    )


def _extra_ttft_ms(replayed: Sequence[Replayed]) -> float:
    """What a first token takes beyond the engine: the time with which relative errors of TTFT are least."""
    told = [one for one in replayed if math.isfinite(one.ttft_ms) and math.isfinite(one.ttft_fitted_ms)]
    if not told:
        return 0.0
    beyond = np.array([one.ttft_ms - one.ttft_fitted_ms for one in told])
    weights = np.array([1 / one.ttft_ms for one in told])
    return max(0.0, quantile(beyond, 0.5, weights))


def _cost(fit: StepFit) -> StepCost:
    return StepCost(**{part: round(getattr(fit, part)) for part in PARTS})


def _leaving_out(seen: Sequence[Observed]) -> list[StepFit]:
    """The fits that each leave out one of BLOCKS stretches of every point's time."""
    left = ([part for one in seen for part in _without(one, block)] for block in range(BLOCKS))
    fits = [fit_steps_closely(parts) for parts in left]
    return [fit for fit in fits if fit is not None]


def _intervals(fit: StepFit, fits: Sequence[StepFit]) -> dict[str, Cost]:
    reach = student_quantile((1 + CONFIDENCE) / 2, max(1, len(fits) - 1))
    costs = {}
    for part in PARTS:
        value = getattr(fit, part)
        others = np.array([getattr(one, part) for one in fits])
        spread = (len(others) - 1) / max(1, len(others)) * ((others - others.mean()) ** 2).sum()
        half = reach * math.sqrt(spread) if len(others) > 1 else math.inf
        costs[part.removesuffix("_ns")] = Cost(
            ms=value / NS_PER_MS,
            low_ms=max(0.0, value - half) / NS_PER_MS,
            high_ms=(value + half) / NS_PER_MS,
        )
    return costs


def _without(seen: Observed, block: int) -> list[Observed]:
    """What came before and what came after one of BLOCKS stretches of a point's time."""
    gaps = seen.gaps
    place = np.arange(len(gaps.ns)) * BLOCKS // max(1, len(gaps.ns))
    return [
        msgspec.structs.replace(
            seen, gaps=Gaps(ns=gaps.ns[kept], count=gaps.count[kept], at_ns=gaps.at_ns[kept])
        )
        for kept in (place < block, place > block)
    ]
