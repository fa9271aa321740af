"""Simulated servers and workloads drawn at random, and the knee that very long runs give them."""

import math

import msgspec
import numpy as np

from knee.core.slo import Objective, Slo
from knee.core.snapshot import Snapshot
from knee.engine.config import EngineConfig, StepCost
from knee.engine.plain import is_plain
from knee.measure.model.fitting import StepFit
from knee.measure.model.longrun import LongRun, Shares, long_run_knee, long_run_shares, sharpen
from knee.measure.model.replay import Model
from knee.measure.samples import Stretch, latency_samples
from knee.measure.simulated import SimulatedTarget
from knee.measure.target import Measured, Offer, TargetInfo, Watch
from knee.stats.percentile import quantile
from knee.workload.spec import Arrivals, Lengths, Workload

TRUTH_SEED = 77_001
NO_FIT = StepFit(fixed_ns=1, per_seq_ns=0, per_prefill_token_ns=0, per_context_token_ns=0, error=0)


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """A server and a workload drawn at random, with an SLO that it can keep when it is idle."""

    seed: int
    config: EngineConfig
    workload: Workload
    slo: Slo


class Hidden:
    """A simulated engine that tells no more than a real server does: no flags, no costs."""

    def __init__(self, config: EngineConfig) -> None:
        self._target = SimulatedTarget(config)

    def describe(self) -> TargetInfo:
        """A name, and nothing else."""
        return TargetInfo(name="drawn", simulated=True)

    def measure(self, offer: Offer, watch: Watch | None = None) -> Measured:
        """As the engine does."""
        return self._target.measure(offer, watch)

    def snapshot(self) -> Snapshot | None:
        """As the engine does."""
        return self._target.snapshot()

    def settle(self, limit_ns: int) -> bool:
        """As the engine does."""
        return self._target.settle(limit_ns)


def draw_server(seed: int) -> Server:
    """Step costs over two orders of magnitude, caps, short and long KV, lengths and arrivals of all kinds."""
    rng = np.random.default_rng([seed, 4])
    scale = float(np.exp(rng.uniform(math.log(0.1), math.log(10))))

    def between(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(math.log(low), math.log(high))))

    prompts = _lengths(rng, between(60, 3000), 8000)
    outputs = _lengths(rng, between(20, 400), 3000)
    cap = int(rng.choice([8, 16, 32, 64, 128, 256]))
    budget = max(cap, int(rng.choice([512, 1024, 2048, 4096, 8192])))
    context = prompts.mean + outputs.mean / 2
    cost = StepCost(
        fixed_ns=round(7e6 * scale * between(0.5, 2)),
        per_seq_ns=round(1e5 * scale * between(0.3, 3)),
        per_prefill_token_ns=round(1.8e4 * scale * between(0.3, 3)),
        per_context_token_ns=round(100 * scale * between(0.1, 1)) if rng.random() < 0.05 else 0,
    )
    blocks = round(cap * context / 16 * between(0.4, 1.2)) if rng.random() < 0.25 else 1 << 22
    config = EngineConfig(
        step_cost=cost,
        max_num_seqs=cap,
        max_num_batched_tokens=budget,
        max_model_len=16_384,
        num_gpu_blocks=max(blocks, 1200),
    )
    workload = Workload(prompt_tokens=prompts, output_tokens=outputs, arrivals=_arrivals(rng))
    return Server(seed=seed, config=config, workload=workload, slo=_slo(rng, config, workload, seed))


def _lengths(rng: np.random.Generator, mean: float, high: int) -> Lengths:
    if rng.random() < 0.4:
        return Lengths(kind="fixed", mean=round(mean))
    return Lengths(kind="lognormal", mean=mean, cv=float(rng.uniform(0.3, 1.5)), high=high)


def _arrivals(rng: np.random.Generator) -> Arrivals:
    if rng.random() < 0.6:
        return Arrivals()
    return Arrivals(kind="gamma", burstiness=float(np.exp(rng.uniform(math.log(0.25), math.log(2)))))


def _slo(rng: np.random.Generator, config: EngineConfig, workload: Workload, seed: int) -> Slo:
    """Bounds between barely above what an idle server does and far above it."""
    offer = Offer(
        workload=workload, rate=1, seed=seed, warmup_ns=0, window_ns=1 << 60, drain_ns=1, max_concurrency=1
    )
    seen = SimulatedTarget(config, sampled=False).measure(
        offer, lambda seen, _: "enough" if int((seen.outcome == 0).sum()) >= 300 else ""
    )
    stretch = Stretch(start_ns=0, end_ns=1 << 60, running_at_ns=1 << 60)
    level = float(rng.choice([0.9, 0.95, 0.99]))
    idle = latency_samples(seen.observed, "ttft", stretch)
    factor = float(np.exp(rng.uniform(math.log(2), math.log(40))))
    objectives = [Objective(metric="ttft", quantile=level, bound=quantile(idle.values, level) * factor)]
    if rng.random() < 0.4:
        gaps = latency_samples(seen.observed, "itl", stretch)
        bound = quantile(gaps.values, 0.99, gaps.weights) * float(
            np.exp(rng.uniform(math.log(1.5), math.log(8)))
        )
        objectives.append(Objective(metric="itl", quantile=0.99, bound=bound))
    return Slo(tuple(objectives))


def true_knee(server: Server, guess: float, seed: int = TRUTH_SEED) -> LongRun:
    """The knee from long runs: up to 1.2 million requests where only seats and tokens bind, else 240,000."""
    model = Model(config=server.config, fit=NO_FIT)

    def shares(requests: int) -> Shares:
        return long_run_shares(model, server.workload, server.slo, requests, seed)

    found = long_run_knee(shares(30_000), server.slo, guess)
    plain = is_plain(server.config) and server.config.num_gpu_blocks > 1 << 20
    most = 1_200_000 if plain else 240_000
    return sharpen(found, shares, server.slo, first=30_000, most=most, error=0.0025)
