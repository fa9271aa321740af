"""Simulated servers whose true limit is known: the one whose relaxation raises the knee most.

Ground truth by counterfactual. Compute is what remains where no relaxation of a flag raises the knee: it is
the limit that no flag moves.
"""

import math
from typing import Any

import msgspec

from bench._random_servers import Server, capacity, draw
from knee.core.point import Point
from knee.core.units import NS_PER_S
from knee.diagnose.diagnose import diagnose
from knee.diagnose.facts import Facts
from knee.diagnose.verdict import Diagnosis, Limit, Move
from knee.engine.config import EngineConfig
from knee.measure.point import judged_stretch, make_point
from knee.measure.samples import latency_samples
from knee.measure.simulated import SimulatedTarget
from knee.measure.target import Offer
from knee.stats.percentile import Sorted

replace = msgspec.structs.replace

FACTORS = (2, 4)
"""How far a limit is relaxed."""

LIGHT = 0.1
"""The rate, over the knee, at which requests hardly meet: the unloaded latencies."""

GRID = 1.04
"""Knees are told apart to this factor."""

BEYOND = 1.12
"""The rate at which to diagnose, over the knee."""

RAISES = 1.15
"""A relaxation that raises the knee by this factor matters; by less than 1.05 it does not."""

ALL = 1.08
"""What all relaxations together may gain at most where the truth is compute."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one server. `truth` is None where the counterfactuals do not single one limit out."""

    seed: int
    knee: float
    gains: dict[Limit, float]
    truth: Limit | None
    verdict: Diagnosis
    moved: float | None


def offer_at(server: Server, rate: float) -> Offer:
    """About 300 requests in the measured window, after a warm-up of several service times."""
    service_s = server.service_s
    window_s = min(600.0, max(300 / rate, 3 * service_s, 6.0))
    return Offer(
        workload=server.workload,
        rate=rate,
        seed=server.seed,
        warmup_ns=round(max(3.0, 2 * service_s, window_s / 4) * NS_PER_S),
        window_ns=round(window_s * NS_PER_S),
        drain_ns=round((max(o.bound for o in server.slo.objectives) / 1000 + 6 * service_s) * NS_PER_S),
    )


def measure(server: Server, rate: float, *, sampled: bool = False) -> tuple[bool, Point | None]:
    """Whether the SLO holds at `rate`, by the percentiles as seen; with the judged point if `sampled`."""
    offer = offer_at(server, rate)
    measured = SimulatedTarget(server.config, sampled=sampled).measure(offer)
    stretch = judged_stretch(measured, offer, server.slo)
    holds = True
    for objective in server.slo.objectives:
        seen = latency_samples(measured.observed, objective.metric, stretch)
        value = (
            Sorted(seen.values, seen.weights).quantile(objective.quantile or 0.95)
            if len(seen.values)
            else 0.0
        )
        holds = holds and value <= objective.bound
    return holds, make_point(measured, offer, server.slo, simulated=True) if sampled else None


def find_knee(server: Server, near: float, *, least: float = 0.0) -> float:
    """The highest rate of the grid at which the SLO holds, `least` where none above it does.

    Same seed and same schedule (stretched) at every rate: knees of one server differ only by its limits.
    """
    at = round(math.log(near) / math.log(GRID))
    floor = round(math.log(least) / math.log(GRID)) if least else at - 120
    step = 8
    while at > floor and not measure(server, GRID**at)[0]:
        at -= step
        step = min(2 * step, 32)
    if at <= floor:
        return least
    low, high, step = at, at + 4, 4
    while measure(server, GRID**high)[0]:
        low, high, step = high, high + 2 * step, 2 * step
        if high - low > 128:
            return GRID**low
    while high - low > 1:
        middle = (low + high) // 2
        if measure(server, GRID**middle)[0]:
            low = middle
        else:
            high = middle
    return GRID**low


def relaxed(server: Server) -> dict[Limit, list[Server]]:
    """The server with one limit relaxed, by each of `FACTORS`, for each that can be; `none`: all at once.

    A limit that is relaxed too far can break another objective (a larger budget makes longer steps), so the
    best of the factors counts.
    """
    config = server.config
    changes: dict[Limit, list[dict[str, Any]]] = {
        "kv_memory": [{"num_gpu_blocks": f * config.num_gpu_blocks} for f in FACTORS],
        "sequence_cap": [
            {"max_num_seqs": min(f * config.max_num_seqs, config.max_num_batched_tokens)} for f in FACTORS
        ],
        "token_budget": [{"max_num_batched_tokens": f * config.max_num_batched_tokens} for f in FACTORS],
    }
    prompt = round(server.workload.prompt_tokens.mean)
    budgets = {max(64, config.max_num_seqs, config.max_num_batched_tokens // f) for f in FACTORS}
    changes["prefill_interference"] = [
        *({"max_num_batched_tokens": b} for b in sorted(budgets) if b < config.max_num_batched_tokens),
        *({"long_prefill_token_threshold": max(16, prompt // f)} for f in FACTORS),
    ]
    if config.front_end.per_request_ns:
        more = [replace(config.front_end, servers=f * config.front_end.servers) for f in FACTORS]
        changes["front_end"] = [{"front_end": front} for front in more]
    single = [every for limit, every in changes.items() if limit != "prefill_interference"]
    together = [{k: v for every in single for k, v in every[i].items()} for i in range(len(FACTORS))]
    shorter = {"long_prefill_token_threshold": max(16, prompt // FACTORS[-1])}
    changes["none"] = [*together, together[0] | shorter]
    return {
        limit: [replace(server, config=replace(config, **change)) for change in every]
        for limit, every in changes.items()
    }


def gains_of(server: Server, knee: float) -> dict[Limit, float]:
    """What each relaxation does to the knee, as a factor; 1 / GRID stands for any loss."""
    return {
        limit: max(find_knee(other, knee, least=knee / GRID) / knee for other in others)
        for limit, others in relaxed(server).items()
    }


def truth_of(gains: dict[Limit, float]) -> Limit | None:
    """The limit that the counterfactuals single out; None where they do not."""
    single = {limit: gain for limit, gain in gains.items() if limit != "none"}
    ordered = sorted(single.items(), key=lambda gain: -gain[1])
    (first, most), second = ordered[0], ordered[1][1]
    if most < 1.05:
        return "compute" if gains["none"] < ALL else None  # None: two limits, neither of which moves alone
    return first if most >= RAISES and most >= 1.1 * second else None


def apply(server: Server, move: Move) -> Server | None:
    """The server after the move and what goes together with it; None where the simulator has no such flag."""
    config = _moved(server.config, move)
    for other in move.together:
        config = _moved(config, other) if config is not None else None
    if config is None or config.max_num_batched_tokens < config.max_num_seqs:
        return None
    return replace(server, config=config)


def _moved(config: EngineConfig, move: Move) -> EngineConfig | None:
    if move.flag in ("max_num_seqs", "max_num_batched_tokens", "long_prefill_token_threshold"):
        return replace(config, **{move.flag: int(move.to)})
    if move.flag == "kv_cache_dtype":
        return replace(config, num_gpu_blocks=2 * config.num_gpu_blocks - 1)
    if move.flag == "api_server_count":
        return replace(config, front_end=replace(config.front_end, servers=int(move.to)))
    if move.flag == "gpu_memory_utilization":
        return replace(config, num_gpu_blocks=round(1.1 * config.num_gpu_blocks))
    return None


def guess(server: Server) -> float:
    """A rate near the knee."""
    rate, front = capacity(server.config, server.workload), server.config.front_end.per_request_ns
    return 0.8 * (min(rate, NS_PER_S / front) if front else rate)


def run_case(seed: int) -> Case | None:
    """One server: its knee, its truth, the verdict just beyond the knee, and what the move did.

    None where the SLO holds at no rate.
    """
    server = draw(seed)
    knee = find_knee(server, guess(server))
    if knee <= 0:
        return None
    gains = gains_of(server, knee)
    _, point = measure(server, knee * BEYOND, sampled=True)
    _, light = measure(server, knee * BEYOND * LIGHT, sampled=True)
    assert point is not None
    assert light is not None
    verdict = judge(server, point, light.itl_ms.p50)
    after = apply(server, verdict.move) if verdict.move else None
    moved = find_knee(after, knee, least=knee / GRID) / knee if after else None
    return Case(seed=seed, knee=knee, gains=gains, truth=truth_of(gains), verdict=verdict, moved=moved)


def judge(server: Server, point: Point, light_itl_ms: float | None) -> Diagnosis:
    """The diagnosis of a point, knowing what a run knows: flags, SLO, the judged point, the light one."""
    assert point.window is not None
    flags = SimulatedTarget(server.config).describe().flags
    facts = Facts(
        flags=flags, slo=server.slo, point=point, light_itl_s=light_itl_ms / 1000 if light_itl_ms else None
    )
    return diagnose(point.window, facts)
