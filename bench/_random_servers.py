"""Random simulated servers with their traffic and their SLO: same seed, same server."""

import math
import random

import msgspec

from knee.core.slo import Objective, Slo
from knee.core.units import NS_PER_MS, NS_PER_S
from knee.engine.config import EngineConfig, FrontEnd, StepCost
from knee.workload.spec import Arrivals, Lengths, Workload

replace = msgspec.structs.replace


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """One random server with its traffic and its SLO.

    `service_s` is about how long a request takes on the drawn server; windows follow from it, so that they
    stay alike when a limit is relaxed.
    """

    seed: int
    service_s: float
    config: EngineConfig
    workload: Workload
    slo: Slo


def draw(seed: int) -> Server:
    """A random server: step cost, flags, cache, lengths and SLO over the ranges of real ones."""
    rng = random.Random(seed)

    def between(low: float, high: float) -> float:
        return math.exp(rng.uniform(math.log(low), math.log(high)))

    prompt, output = between(60, 3000), between(30, 400)
    fixed = between(4, 15) * NS_PER_MS
    cost = StepCost(
        fixed_ns=round(fixed),
        per_seq_ns=round(between(0.01, 0.12) * NS_PER_MS),
        per_prefill_token_ns=round(between(0.004, 0.06) * NS_PER_MS),
    )
    cap = rng.choice([16, 32, 64, 128, 256, 512, 1024])
    budget = max(cap, rng.choice([512, 1024, 2048, 4096, 8192]))
    block = 16
    room = between(0.3, 8) * min(cap, 256) * (prompt + output)
    longest = 4 * round(prompt + output) + 64
    config = EngineConfig(
        step_cost=cost,
        max_num_seqs=cap,
        max_num_batched_tokens=budget,
        max_model_len=longest,
        block_size=block,
        num_gpu_blocks=max(round(room / block), math.ceil(1.5 * longest / block)) + 1,
    )
    cv = rng.choice([0.0, 0.3, 0.6])
    workload = Workload(
        prompt_tokens=_lengths(prompt, cv),
        output_tokens=_lengths(output, cv),
        arrivals=Arrivals(),
    )
    config = replace(config, front_end=_front_end(seed, config, workload))
    light = fixed + cost.per_seq_ns + cost.per_prefill_token_ns * prompt
    ttft = max(0.3, 8 * (light + config.front_end.per_request_ns) / NS_PER_S) * rng.choice([1, 2])
    objectives = [Objective(metric="ttft", quantile=0.95, bound=round(1000 * ttft))]
    if rng.random() < 0.4:
        gap_ms = (fixed + cost.per_seq_ns * cap / 2) / NS_PER_MS * between(1.5, 6)
        objectives.append(Objective(metric="itl", quantile=0.99, bound=round(gap_ms, 1)))
    service_s = output * (fixed + cost.per_seq_ns * cap) / NS_PER_S
    return Server(
        seed=seed, service_s=service_s, config=config, workload=workload, slo=Slo(tuple(objectives))
    )


def _front_end(seed: int, config: EngineConfig, workload: Workload) -> FrontEnd:
    """For every fourth server API servers that carry about as much as the engine does, or less."""
    rng = random.Random(f"front end {seed}")
    if rng.random() >= 0.25:
        return FrontEnd()
    share = math.exp(rng.uniform(math.log(0.8), math.log(3)))
    return FrontEnd(per_request_ns=round(share * NS_PER_S / capacity(config, workload)))


def _lengths(mean: float, cv: float) -> Lengths:
    mean = round(mean)
    if cv == 0:
        return Lengths(kind="fixed", mean=mean)
    return Lengths(kind="lognormal", mean=mean, cv=cv, low=max(1, round(mean / 4)), high=2 * round(mean))


def capacity(config: EngineConfig, workload: Workload) -> float:
    """About how many requests a second the engine serves, from its costs and limits alone."""
    cost = config.step_cost
    prompt, output = workload.prompt_tokens.mean, workload.output_tokens.mean
    n = min(
        config.max_num_seqs,
        config.kv_tokens / (prompt + output / 2),
        config.max_num_batched_tokens * output / (prompt + output),
    )
    step = cost.fixed_ns + n * (cost.per_seq_ns + cost.per_prefill_token_ns * prompt / output)
    return n / (output * step) * NS_PER_S
