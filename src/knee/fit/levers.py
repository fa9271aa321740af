"""What each lever buys: the same plan with one thing changed."""

from collections.abc import Iterator

import msgspec

from knee.catalog.accelerators import Accelerator
from knee.core.errors import UsageError
from knee.fit.plan import MemoryPlan, Options, Range, plan_memory, requests_that_fit
from knee.fit.quantized import asked_for
from knee.fit.shape import ModelShape

_HIGH_UTILIZATION = 0.95


class Lever(msgspec.Struct, frozen=True, kw_only=True):
    """One change and what it gives, at the pessimistic and optimistic end. `times` compares with no change.

    `requests` is at the tokens per request asked about, or at the lower `max_model_len`. `note` is the price.
    """

    flag: str
    kv_tokens: Range
    largest_context: Range
    requests: Range
    times: float | None
    note: str


def levers(
    shape: ModelShape, device: Accelerator, options: Options, base: MemoryPlan, tokens: float
) -> tuple[Lever, ...]:
    """Every lever that applies; `times` is None where nothing fits without it."""
    before = requests_that_fit(base, tokens)
    found = []
    for flag, changed, settings, note in _changes(shape, options, base):
        try:
            plan = plan_memory(changed, device, settings)
        except UsageError:
            continue  # the model cannot be split so
        after = requests_that_fit(plan, min(tokens, settings.context))
        found.append(
            Lever(
                flag=flag,
                kv_tokens=plan.kv_tokens,
                largest_context=plan.largest_context,
                requests=after,
                times=after.low / before.low if before.low else None,
                note=note,
            )
        )
    return tuple(found)


def _changes(
    shape: ModelShape, options: Options, base: MemoryPlan
) -> Iterator[tuple[str, ModelShape, Options, str]]:
    replace = msgspec.structs.replace
    if not options.kv_dtype.startswith("fp8"):
        yield (
            "--kv-cache-dtype fp8",
            shape,
            replace(options, kv_dtype="fp8"),
            "accuracy: compare outputs; measured gains stay a little below the arithmetic",
        )
    if not shape.quantization.name:
        for name, price in (("fp8", "accuracy; needs FP8 hardware"), ("int4", "accuracy; slower prefill")):
            stored = asked_for(name, shape.dtype_bytes)
            yield f"weights in {name}", replace(shape, quantization=stored), options, price
    half = max(1, options.context // 2)
    yield (
        f"--max-model-len {half}",
        shape,
        replace(options, context=half),
        "counted at that length; longer requests are refused, others gain nothing",
    )
    double = replace(options.parallel, tp=options.parallel.tp * 2)
    yield (
        f"--tensor-parallel-size {double.tp}",
        shape,
        replace(options, parallel=double),
        f"{double.gpus} GPUs; communication in every layer",
    )
    if base.utilization < _HIGH_UTILIZATION:
        yield (
            f"--gpu-memory-utilization {_HIGH_UTILIZATION:g}",
            shape,
            replace(options, utilization=_HIGH_UTILIZATION),
            "less room for what profiling does not see; may run out of memory later",
        )
