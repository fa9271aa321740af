"""Will a model fit on a GPU: what its memory goes to, and what that leaves for the KV cache.

Weights and KV bytes are exact arithmetic. What activations, the CUDA context and CUDA graphs take only a
start can tell; here each is a stated range, so the answer is a range, judged by its lower end.
"""

import math
from typing import Literal

import msgspec

from knee.catalog.accelerators import Accelerator
from knee.catalog.flags import device_tier, flag_default
from knee.catalog.version import Version, parse_version
from knee.core.errors import UsageError
from knee.fit.kv import KvPlan, Parallel, blocks_in, blocks_per_request, kv_tokens, largest_context, plan_kv
from knee.fit.shape import ModelShape
from knee.fit.weights import weight_bytes

GIB = 2**30
PlanVerdict = Literal["fits", "borderline", "does not fit"]

_REFERENCE_TOKENS = 8192
_DENSE_PEAK_GIB, _EXPERTS_PEAK_GIB = 5.6, 8.0
_NON_TORCH = {False: (0.1, 0.35), True: (0.2, 1.63)}
_GRAPHS = (0.09, 2.1)
"""GiB seen in public start-up logs (docs/fit.md); CUDA context and libraries on one GPU and on several."""
_ASYNC_DOUBLES_SINCE = "0.28.0"
_GRAPHS_RESERVED_SINCE = "0.20.0"


class Range(msgspec.Struct, frozen=True):
    """From the pessimistic to the optimistic end, or from low to high."""

    low: float
    high: float


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What to start the server with. None takes the default of `version` for the device."""

    context: int
    version: str
    parallel: Parallel = Parallel()
    kv_dtype: str = "auto"
    block_size: int = 16
    utilization: float | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    enforce_eager: bool = False
    hybrid: bool = True


class MemoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one GPU in GiB, and what the cache holds (per engine, whole-model tokens).

    Ranges with `low` first the pessimistic end. `concurrency` is requests of the whole context. `kv_tokens`
    is what vLLM's log would print.
    """

    total_gib: float
    utilization: float
    requested_gib: float
    weights_gib: float
    activations_gib: Range
    non_torch_gib: Range
    graphs_gib: Range
    kv_gib: Range
    blocks: Range
    kv_tokens: Range
    largest_context: Range
    concurrency: Range
    max_num_seqs: int | None
    max_num_batched_tokens: int
    kv: KvPlan
    verdict: PlanVerdict


def plan_memory(shape: ModelShape, device: Accelerator, options: Options) -> MemoryPlan:
    """What is left for the cache on `device`, and whether a request of the whole context fits.

    Raises:
        UsageError: the options contradict each other or the model.
    """
    version = parse_version(options.version)
    _check(shape, options)
    utilization, cap, budget = _defaults(device, options, version)
    weights = weight_bytes(shape, options.parallel) / GIB
    activations = activation_range(shape, options.parallel, budget, cap)
    others = Range(*_NON_TORCH[options.parallel.tp > 1])
    graphs = Range(0.0, 0.0) if options.enforce_eager else Range(*_GRAPHS)
    reserved = graphs if version.reaches(_GRAPHS_RESERVED_SINCE) else Range(0.0, 0.0)
    requested = utilization * device.memory_gib
    kv_gib = Range(
        requested - weights - activations.high - others.high - reserved.high,
        requested - weights - activations.low - others.low - reserved.low,
    )
    kv = plan_kv(
        shape,
        options.parallel,
        kv_dtype=options.kv_dtype,
        block_size=options.block_size,
        in_flight_tokens=budget * (2 if version.reaches(_ASYNC_DOUBLES_SINCE) else 1),
        hybrid=options.hybrid,
    )
    blocks = [blocks_in(kv, max(0.0, gib) * GIB) for gib in (kv_gib.low, kv_gib.high)]
    limit = max(options.context, shape.max_position)
    largest = [largest_context(kv, count, limit) for count in blocks]
    need = blocks_per_request(kv, options.context)
    return MemoryPlan(
        total_gib=device.memory_gib,
        utilization=utilization,
        requested_gib=requested,
        weights_gib=weights,
        activations_gib=activations,
        non_torch_gib=others,
        graphs_gib=graphs,
        kv_gib=kv_gib,
        blocks=Range(*blocks),
        kv_tokens=Range(*(kv_tokens(kv, count, options.context) for count in blocks)),
        largest_context=Range(*largest),
        concurrency=Range(*(count / need for count in blocks)),
        max_num_seqs=cap,
        max_num_batched_tokens=budget,
        kv=kv,
        verdict="fits"
        if largest[0] >= options.context
        else "borderline"
        if largest[1] >= options.context
        else "does not fit",
    )


def requests_that_fit(plan: MemoryPlan, tokens: float) -> Range:
    """Requests of `tokens` tokens that fit at once; one block is reserved."""
    need = blocks_per_request(plan.kv, max(1, math.ceil(tokens)))
    return Range(*(max(0, int(count) - 1) // need for count in (plan.blocks.low, plan.blocks.high)))


def activation_range(shape: ModelShape, parallel: Parallel, budget: int, max_num_seqs: int | None) -> Range:
    """Peak of activations in GiB while vLLM profiles a step of `budget` tokens.

    The lower end is the larger of one layer's tensors and of the logits of `max_num_seqs` sequences. The
    upper end is what start-ups of dense (5.6 GiB) and expert (8 GiB) models were seen to take with 8,192
    tokens, in proportion to the tokens; and at least half as much again as the lower end.
    """
    size, tp = shape.dtype_bytes, parallel.tp
    width = 2 * shape.hidden_size + 3 * (shape.hidden_size + shape.intermediate_size) / tp
    layer = budget * width * size
    logits = min(max_num_seqs or 256, budget) * shape.vocab_size * (size + 4)
    low = max(layer, logits) / GIB
    seen = _EXPERTS_PEAK_GIB if shape.experts else _DENSE_PEAK_GIB
    return Range(low, max(low * 1.5, seen * budget / _REFERENCE_TOKENS))


def _check(shape: ModelShape, options: Options) -> None:
    if options.context < 1:
        raise UsageError(f"a context of {options.context} tokens", "at least 1")
    if shape.max_position and options.context > shape.max_position:
        raise UsageError(
            f"a context of {options.context:,} is beyond the model's {shape.max_position:,}",
            "lower --context, or change max_position_embeddings in the config.json if the model is extended",
        )
    heads, tp = shape.attention_heads, options.parallel.tp
    if tp < 1 or options.parallel.pp < 1 or options.parallel.dp < 1:
        raise UsageError("parallel sizes are at least 1")
    if heads % tp:
        raise UsageError(
            f"{heads} attention heads cannot be split over {tp} GPUs", "choose a --tp that divides them"
        )
    if options.parallel.pp > shape.layers:
        raise UsageError(f"{shape.layers} layers cannot be split over {options.parallel.pp} stages")
    if options.utilization is not None and not 0 < options.utilization <= 1:
        raise UsageError(f"gpu_memory_utilization is {options.utilization:g}", "it lies between 0 and 1")


def _defaults(device: Accelerator, options: Options, version: Version) -> tuple[float, int | None, int]:
    tier = device_tier(device.name, device.memory_gib, version)
    utilization = options.utilization
    if utilization is None:
        known = flag_default("gpu_memory_utilization", version)
        utilization = float(known.value) if known else 0.9
    cap = options.max_num_seqs
    if cap is None:
        known = flag_default("max_num_seqs", version, tier)
        cap = int(known.value) if known else None
    budget = options.max_num_batched_tokens
    if budget is None:
        known = flag_default("max_num_batched_tokens", version, tier)
        budget = int(known.value) if known else 2048
    return utilization, cap, budget
