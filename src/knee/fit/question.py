"""The whole answer before a GPU is rented: which context, how many requests, which lever."""

import math

import msgspec
import numpy as np

from knee.catalog.accelerators import Accelerator
from knee.fit.capacity import MARGIN, check_rule
from knee.fit.levers import Lever, levers
from knee.fit.occupancy import Tail, blocks_of, percentile_tokens, tail
from knee.fit.plan import MemoryPlan, Options, Range, plan_memory, requests_that_fit
from knee.fit.roofline import Roofline, roofline
from knee.fit.shape import ModelShape
from knee.fit.traffic import REFUSED, Traffic, servable

_SEED = 5


class PlanAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`fits` is None where only the optimistic end fits. `tokens` is the length that requests are counted at.

    `recommended` is the `max_num_seqs` to set: by the workload's tail where there is one, else by the simple
    rule; both at the pessimistic end and with margin.
    """

    fits: bool | None
    verdict: str
    architecture: str
    parameters: int
    active_parameters: int
    weights: str
    accelerator: str
    options: Options
    memory: MemoryPlan
    tokens: int
    basis: str
    requests: Range
    recommended: int
    levers: tuple[Lever, ...]
    roofline: Roofline
    tail: Tail | None = None
    notes: tuple[str, ...] = ()


def answer_model(
    shape: ModelShape,
    device: Accelerator,
    options: Options,
    *,
    tokens: float | None = None,
    traffic: Traffic | None = None,
    margin: float = MARGIN,
) -> PlanAnswer:
    """Plan `shape` on `device`.

    `tokens` is the length of a request at the tail; without it that of the traffic, without traffic the
    context.

    Raises:
        UsageError: the options contradict each other or the model.
    """
    memory = plan_memory(shape, device, options)
    basis, refused = "p95", 0.0
    if traffic is not None:
        traffic, refused = servable(traffic, options.context)
    if tokens is None and traffic is not None:
        tokens, basis = percentile_tokens(traffic.prompt, traffic.output), f"p95 of {traffic.name}"
    if tokens is None:
        tokens, basis = options.context, "the whole context"
    check_rule(tokens, margin)
    each = math.ceil(tokens)
    requests = requests_that_fit(memory, each)
    found = _tail(memory, traffic) if traffic is not None else None
    safe = requests.low if found is None else found.full_length
    return PlanAnswer(
        fits=_FITS[memory.verdict],
        verdict=_verdict(memory, options),
        architecture=shape.architecture,
        parameters=shape.parameters.total,
        active_parameters=shape.parameters.active,
        weights=shape.quantization.name or f"{8 * shape.dtype_bytes} bits",
        accelerator=device.name,
        options=options,
        memory=memory,
        tokens=each,
        basis=basis,
        requests=requests,
        recommended=int(safe * (1 - margin)),
        levers=levers(shape, device, options, memory, each),
        roofline=roofline(
            shape,
            device,
            options.parallel,
            memory.kv,
            sequences=max(1, int(requests.low)),
            context=each,
        ),
        tail=found,
        notes=(*(traffic.notes if traffic else ()), *_notes(shape, memory, each, options, refused)),
    )


_FITS: dict[str, bool | None] = {"fits": True, "borderline": None, "does not fit": False}


def _tail(memory: MemoryPlan, traffic: Traffic) -> Tail:
    longest = int((traffic.prompt + traffic.output).max())
    budget = max(0, int(memory.blocks.low) - 1)
    cost = blocks_of(memory.kv, longest)
    return tail(traffic.prompt, traffic.output, budget, np.random.default_rng(_SEED), cost=cost)


def _verdict(memory: MemoryPlan, options: Options) -> str:
    context = options.context
    if memory.verdict == "fits":
        return f"fits: a request of {context:,} tokens, and {int(memory.concurrency.low):,} of them at once"
    low, high = int(memory.largest_context.low), int(memory.largest_context.high)
    if memory.verdict == "borderline":
        return (
            f"borderline: {context:,} tokens fit only if activations and graphs stay at the lower end; "
            f"the largest context lies between {low:,} and {high:,}"
        )
    if high < 1:
        return "does not fit: weights and activations leave nothing for the cache"
    return f"does not fit: the largest context lies between {low:,} and {high:,}"


def _notes(
    shape: ModelShape, memory: MemoryPlan, tokens: int, options: Options, refused: float
) -> tuple[str, ...]:
    notes = [*shape.notes]
    if refused:
        notes.append(REFUSED.format(refused))
    if tokens > options.context:
        notes.append(f"requests of {tokens:,} tokens are longer than the context and are refused")
    if options.parallel.dp > 1:
        notes.append(f"{options.parallel.dp} engines, each with a cache of its own: counts are those of one")
    if memory.kv.padding_layers:
        notes.append(f"groups of layers are padded by {memory.kv.padding_layers} layers that hold nothing")
    if memory.kv.block_size != options.block_size:
        notes.append(f"blocks of {memory.kv.block_size} tokens: a request's state must fit in a page")
    if shape.kv_heads and options.parallel.tp > shape.kv_heads:
        notes.append(
            f"{shape.kv_heads} KV heads on {options.parallel.tp} GPUs: each head is kept several times"
        )
    if shape.quantization.name == "mxfp4":
        notes.append("kernels for mxfp4 may pad experts: weights can be up to 14 % larger")
    if memory.max_num_seqs is not None and memory.max_num_seqs > requests_that_fit(memory, tokens).low:
        notes.append(f"max_num_seqs {memory.max_num_seqs:,} admits more than fit at {tokens:,} tokens")
    return tuple(notes)
