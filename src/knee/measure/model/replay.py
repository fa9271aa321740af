"""A model of the server: the engine, fitted to the points so far, replaying their very schedules."""

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from knee.core.errors import UsageError
from knee.core.requests import OK, Observed
from knee.core.snapshot import Snapshot
from knee.core.units import NS_PER_S
from knee.engine.config import EngineConfig, StepCost
from knee.measure.model.fitting import StepFit, context_at, fit_steps, streaming_at
from knee.measure.simulated import SimulatedTarget
from knee.measure.target import Offer
from knee.measure.watching import Burst

UNBOUNDED_BLOCKS = 1 << 24
USUAL_BUDGET = 8192
LONGER = 4
"""Times the longest of 16,000 requests: half a million with lognormal lengths bring none that is longer."""
NEAR_POWER = 0.18
"""A budget found this near a power of two is taken to be it: the longest steps tell it no better."""


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """An engine like the server. `extra_ms` is what the server adds to a first token beyond the engine."""

    config: EngineConfig
    fit: StepFit
    extra_ms: float = 0.0

    def with_extra(self, extra_ms: float) -> "Model":
        """This model with what the server adds to a first token; below zero or unknown is nothing."""
        return msgspec.structs.replace(self, extra_ms=extra_ms if extra_ms > 0 else 0.0)


def fit_model(
    seen: Sequence[Observed],
    *,
    flags: Mapping[str, str],
    burst: Burst,
    burst_seen: Observed,
    clients: int,
    snapshots: Sequence[Snapshot],
    longest_tokens: int,
) -> Model | None:
    """The engine that explains what was seen; None where steps cannot be told from it.

    Caps come from the server's flags where it tells them, else from the burst: what streamed at once when
    more clients wanted to is the cap, and what began together the token budget. KV blocks come from the
    server's own metrics (`cache_config_info`). The longest request that is known has `longest_tokens`; where
    the server does not tell its limit, longer ones that a long run brings must not be refused.
    """
    fit = fit_steps(seen)
    if fit is None:
        return None
    blocks, block_size = _kv(flags, snapshots)
    cap = _flag(flags, "max_num_seqs") or (burst.running if clients > burst.running * 1.02 else 4096)
    budget = _flag(flags, "max_num_batched_tokens") or _budget(burst_seen, fit)
    try:
        config = EngineConfig(
            step_cost=StepCost(
                fixed_ns=round(fit.fixed_ns),
                per_seq_ns=round(fit.per_seq_ns),
                per_prefill_token_ns=round(fit.per_prefill_token_ns),
                per_context_token_ns=round(fit.per_context_token_ns),
            ),
            max_num_seqs=cap,
            max_num_batched_tokens=max(budget, cap),
            max_model_len=_flag(flags, "max_model_len") or LONGER * longest_tokens,
            block_size=block_size,
            num_gpu_blocks=blocks,
        ).checked()
    except UsageError:
        return None
    return Model(config=config, fit=fit)


def replay(model: Model, offer: Offer, factor: float) -> Observed:
    """What the requests of `offer` see on the model at `factor` times its rate: the same requests, closer.

    Every instant of the window is divided by `factor`.
    """
    scaled = msgspec.structs.replace(
        offer,
        rate=offer.rate * factor,
        warmup_ns=round(offer.warmup_ns / factor),
        window_ns=round(offer.window_ns / factor),
    )
    return SimulatedTarget(model.config, sampled=False).measure(scaled).observed


def replay_light(model: Model, offer: Offer, seen: Observed) -> Observed:
    """A run of one client on the model, about as long as the one that was seen on the server."""
    short = msgspec.structs.replace(offer, window_ns=max(1, seen.end_of_load_ns), drain_ns=NS_PER_S)
    return SimulatedTarget(model.config, sampled=False).measure(short).observed


def _kv(flags: Mapping[str, str], snapshots: Sequence[Snapshot]) -> tuple[int, int]:
    """KV blocks and their size, as far as the server tells."""
    told = dict(flags)
    for snapshot in snapshots:
        for engine in snapshot.engines.values():
            told |= engine.info
    blocks, size = _flag(told, "num_gpu_blocks"), _flag(told, "block_size")
    return blocks or UNBOUNDED_BLOCKS, size or 16


def _flag(flags: Mapping[str, str], name: str) -> int | None:
    value = flags.get(name, "")
    return int(value) if value.isdigit() and int(value) > 0 else None


def _budget(burst: Observed, fit: StepFit) -> int:
    """The token budget of a step, from the longest steps of a burst.

    While a burst's prompts wait, every step is full: fixed + per sequence x n + per prefill token x what is
    left of the budget. Where no three steps are about equally long at the top, the budget never bound, and a
    usual one is taken.
    """
    gaps = burst.gaps
    if not len(gaps.ns) or fit.per_prefill_token_ns <= 0:
        return USUAL_BUDGET
    streaming = streaming_at(burst, gaps.at_ns)
    decoding = fit.fixed_ns + fit.per_seq_ns * streaming
    if fit.per_context_token_ns:
        decoding += fit.per_context_token_ns * context_at(burst, gaps.at_ns)
    prefill = (gaps.ns - decoding) / fit.per_prefill_token_ns
    _, step = np.unique(gaps.at_ns, return_inverse=True)
    per_step = np.full(int(step.max()) + 1, -np.inf)
    np.maximum.at(per_step, step, prefill + streaming)
    longest = np.sort(per_step)[-3:]
    if len(longest) < 3 or longest[0] < 0.93 * longest[1] or longest[1] < 64:
        return USUAL_BUDGET
    return _round(float(longest[1]))


def _round(tokens: float) -> int:
    """The power of two that a budget usually is, if one is near."""
    power = 2 ** round(math.log2(tokens))
    return power if abs(tokens / power - 1) < NEAR_POWER else round(tokens)


def unloaded_ttft_ms(observed: Observed) -> float:
    """The median first-token latency of completed requests, in ms; NaN without any."""
    ok = observed.outcome == OK
    if not ok.any():
        return math.nan
    return float(np.median((observed.first_ns - observed.due_ns)[ok])) / 1e6
