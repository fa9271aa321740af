"""Fit a simulated engine to a recorded run: step costs with intervals, how well they replay it, their reach.

The fit is `fitting.fit_steps`; intervals are those of a delete-block jackknife over time (Künsch 1989), which
keeps neighbouring gaps together because they depend on each other.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from knee.core.errors import NoAnswer
from knee.core.point import Point
from knee.core.requests import NEVER, Gaps, Observed
from knee.core.units import NS_PER_MS
from knee.engine.config import EngineConfig, StepCost
from knee.measure.model.fitting import StepFit, fit_steps, streaming_at
from knee.measure.model.replay import UNBOUNDED_BLOCKS
from knee.measure.point import make_point
from knee.measure.recorded import Recorded
from knee.measure.simulated import SimulatedTarget
from knee.measure.target import Offer
from knee.stats.distributions import student_quantile
from knee.workload.spec import Workload

BLOCKS = 12
CONFIDENCE = 0.95
PARTS = ("fixed_ns", "per_seq_ns", "per_prefill_token_ns", "per_context_token_ns")
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


def calibrate(run: Recorded, flags: Mapping[str, int], below: float = math.inf) -> Calibration:
    """The engine that explains the open-loop points of `run` at rates up to `below`.

    `flags` are engine limits that the caller knows, by vLLM's names; they come before those of the run.

    Raises:
        NoAnswer: there are too few gaps between tokens to tell a step from its parts.
    """
    used = [(p, o) for p, o in run.points if p.max_concurrency is None and p.rate <= below and not p.invalid]
    fit = fit_steps([seen for _, seen in used])
    if fit is None:
        left = len(run.points) - len(used)
        raise NoAnswer(
            f"{len(used)} points of {run.path} tell too little about the steps of the engine"
            + (f", and {left} are invalid, closed-loop or above the rate" if left else ""),
            "longer points, at several rates, with streaming",
        )
    engine, assumed = _engine(run, fit, flags)
    fits = _leaving_out([seen for _, seen in used])
    replayed = [_replay(run, point, seen, engine) for point, seen in used]
    light = min(replayed, key=lambda one: one.rate)
    running = [float(np.quantile(streaming_at(o, o.gaps.at_ns), 0.99)) for _, o in used if len(o.gaps.ns)]
    return Calibration(
        run=run.path,
        version=str(run.target.get("version", "")),
        workload=run.workload,
        engine=engine,
        costs=_intervals(fit, fits),
        alternatives=tuple(_cost(one) for one in fits),
        residual=fit.error,
        extra_ttft_ms=max(0.0, light.ttft_ms - light.ttft_fitted_ms),
        rates=tuple(point.rate for point, _ in used),
        running_seen=max(running, default=1.0),
        context_seen=max(int((o.prompt_tokens + o.output_tokens).max(initial=0)) for _, o in used),
        rate_seen=max(point.rate for point, _ in used),
        replayed=tuple(replayed),
        assumed=assumed,
    )


def _engine(run: Recorded, fit: StepFit, flags: Mapping[str, int]) -> tuple[EngineConfig, tuple[str, ...]]:
    told = {**_told(run), **flags}
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


def _replay(run: Recorded, point: Point, seen: Observed, engine: EngineConfig) -> Replayed:
    offer = Offer(
        workload=run.workload,
        rate=point.rate,
        seed=point.seed,
        warmup_ns=point.window_start_ns,
        window_ns=max(1, point.window_end_ns - point.window_start_ns),
        drain_ns=60_000 * NS_PER_MS,
    )
    again = make_point(SimulatedTarget(engine, sampled=False).measure(offer), offer, simulated=True)
    inside = (seen.gaps.at_ns >= point.window_start_ns) & (seen.gaps.at_ns < point.window_end_ns)
    waited = (seen.first_ns - seen.due_ns)[seen.first_ns != NEVER]
    gaps, counts = seen.gaps.ns[inside], seen.gaps.count[inside]
    return Replayed(
        rate=point.rate,
        itl_ms=float((gaps * counts).sum() / max(1, counts.sum())) / NS_PER_MS,
        itl_fitted_ms=again.itl_ms.mean_finite or math.nan,
        ttft_ms=float(np.median(waited)) / NS_PER_MS if len(waited) else math.nan,
        ttft_fitted_ms=again.ttft_ms.p50 or math.nan,
    )


def _cost(fit: StepFit) -> StepCost:
    return StepCost(**{part: round(getattr(fit, part)) for part in PARTS})


def _leaving_out(seen: Sequence[Observed]) -> list[StepFit]:
    """The fits that each leave out one of BLOCKS stretches of every point's time."""
    fits = [fit_steps([part for one in seen for part in _without(one, block)]) for block in range(BLOCKS)]
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
