"""A plan as Markdown tables, to be pasted into a design document."""

from collections.abc import Iterator

from knee.fit.plan import Range
from knee.fit.question import PlanAnswer


def plan_lines(answer: PlanAnswer) -> list[str]:
    """The plan: memory, capacity, levers, rooflines, and the verdict first."""
    lines = [f"**{answer.verdict}**", "", *_table(("item", "value", "how"), _rows(answer)), ""]
    if answer.levers:
        heads = ("lever", "KV tokens", "largest context", f"requests of {answer.tokens:,}", "times", "price")
        lines += [*_table(heads, _levers(answer)), ""]
    lines += [f"- {note}" for note in answer.notes]
    return lines


def _rows(answer: PlanAnswer) -> Iterator[tuple[str, ...]]:
    memory, options = answer.memory, answer.options
    parallel = options.parallel
    billions = f"{answer.parameters / 1e9:.2f} B"
    if answer.active_parameters < 0.9 * answer.parameters:
        billions += f", {answer.active_parameters / 1e9:.2f} B active"
    yield (
        "model",
        f"{answer.architecture}, {billions} parameters",
        f"config.json; weights in {answer.weights}",
    )
    yield (
        "GPUs",
        f"{parallel.gpus} x {answer.accelerator} (TP {parallel.tp}, PP {parallel.pp}, DP {parallel.dp})",
        f"vLLM {options.version}",
    )
    yield (
        "memory a GPU",
        f"{memory.total_gib:.2f} GiB x {memory.utilization:g} = {memory.requested_gib:.2f} GiB",
        "gpu_memory_utilization",
    )
    yield "weights", f"{memory.weights_gib:.2f} GiB", "exact count"
    yield (
        "activations",
        _span(memory.activations_gib, "GiB"),
        f"assumed range, {memory.max_num_batched_tokens:,} batched tokens",
    )
    yield "CUDA context and libraries", _span(memory.non_torch_gib, "GiB"), "assumed range"
    yield "CUDA graphs", _span(memory.graphs_gib, "GiB"), "assumed range"
    yield "KV cache a GPU", _span(memory.kv_gib, "GiB"), "what is left"
    kv = memory.kv
    state = f" + {kv.state_bytes / 2**20:.1f} MiB a request" if kv.state_bytes else ""
    yield (
        "KV bytes a token and GPU",
        f"{kv.bytes_per_token:,.0f}{state}",
        f"exact; cache type {options.kv_dtype}, blocks of {kv.block_size}",
    )
    yield (
        "KV tokens an engine",
        _counts(memory.kv_tokens),
        f"as logged with max_model_len {options.context:,}",
    )
    yield "largest context", _counts(memory.largest_context), "one request alone"
    yield f"requests of {options.context:,} tokens", _span(memory.concurrency, "x"), "as logged"
    if answer.tokens != options.context:
        yield f"requests of {answer.tokens:,} tokens", _counts(answer.requests), answer.basis
    yield from _tail(answer)
    yield "max_num_seqs to set", f"{answer.recommended:,}", "pessimistic end, with margin"
    yield from _speed(answer)


def _speed(answer: PlanAnswer) -> Iterator[tuple[str, ...]]:
    roof = answer.roofline
    cost = f"{roof.step_ms:.3f} ms + {roof.prefill_token_ms:.5f} ms a prefill token"
    cost += f" + {roof.context_token_ms * 1e6:.2f} ns a token of context"
    yield (
        "decode step, at best",
        f"{roof.decode_step_ms:.2f} ms",
        f"{roof.sequences:,} sequences of {roof.context:,} tokens; {roof.basis}",
    )
    yield (
        "step cost, first guess",
        cost,
        "rooflines: lower bounds, calibrate on the real server",
    )


def _tail(answer: PlanAnswer) -> Iterator[tuple[str, ...]]:
    found = answer.tail
    if found is None:
        return
    more = " or more" if found.capped else ""
    yield (
        "requests of the workload",
        f"{found.full_length:,}{more}",
        f"p{found.quantile * 100:g} of the sum of their full lengths (mean {found.mean_tokens:,.0f} tokens)",
    )
    yield (
        "requests in flight",
        f"{found.in_flight:,}",
        f"p{found.quantile * 100:g} of what they hold at a random moment",
    )


def _levers(answer: PlanAnswer) -> Iterator[tuple[str, ...]]:
    for lever in answer.levers:
        times = f"{lever.times:.2f}" if lever.times is not None else "from none"
        yield (
            f"`{lever.flag}`" if lever.flag.startswith("-") else lever.flag,
            _counts(lever.kv_tokens),
            _counts(lever.largest_context),
            _counts(lever.requests),
            times,
            lever.note,
        )


def _span(item: Range, unit: str) -> str:
    return f"{item.low:.2f} {unit}" if item.low == item.high else f"{item.low:.2f} to {item.high:.2f} {unit}"


def _counts(item: Range) -> str:
    low, high = int(item.low), int(item.high)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> list[str]:
    cells = [head, *rows]
    widths = [max(len(row[index]) for row in cells) for index in range(len(head))]
    shown = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    return [shown[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *shown[1:]]
