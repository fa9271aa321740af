"""An answer as lines for a person."""

from collections.abc import Iterator

from knee.fit.answer import FitAnswer
from knee.fit.startup import EngineKv, Memory, StartupReport

_WIDTH = 16
_PROBE_PERIOD_S = 10
_SHOWN_ENGINES = 8


def answer_lines(answer: FitAnswer) -> list[str]:
    """The answer, one aligned row a fact; only what is known."""
    rows: list[tuple[str, str]] = []
    report = answer.report
    if report is not None:
        rows += report_rows(report)
    rows += [("capacity rule" if index == 0 else "", text) for index, text in enumerate(answer.arithmetic)]
    rows += [("" if index else "by the workload", text) for index, text in enumerate(_tail(answer))]
    notes = [
        *(report.notes if report else ()),
        *(answer.capacity.notes if answer.capacity else ()),
        *answer.notes,
    ]
    rows += [("note", text) for text in dict.fromkeys(notes)]
    rows.append(("verdict", answer.verdict))
    if report is not None and report.failure is not None:
        rows.append(("cause", report.failure.cause))
        rows.append(("remedy", report.failure.remedy))
    if answer.recommended is not None and answer.tail is not None and not answer.flag:
        rows.append(("up to", f"--max-num-seqs {answer.recommended}"))
    if answer.flag:
        rows.append(("flag", answer.flag))
    return aligned(rows)


def _tail(answer: FitAnswer) -> Iterator[str]:
    found = answer.tail
    if found is None:
        return
    share = f"p{found.quantile * 100:g}"
    more = " or more" if found.capped else ""
    yield f"{found.full_length:,}{more} requests: {share} of the sum of their full lengths fits"
    yield f"{found.in_flight:,} requests: {share} of what they hold at a random moment fits"
    yield f"mean {found.mean_tokens:,.0f}, p95 {found.p95_tokens:,} tokens ({found.requests:,} requests)"


def aligned(rows: list[tuple[str, str]]) -> list[str]:
    """Names in a left column."""
    return [f"{name:<{_WIDTH}}{text}".rstrip() for name, text in rows]


def report_rows(report: StartupReport) -> Iterator[tuple[str, str]]:
    """What a start-up log said."""
    server = [f"vLLM {report.version}" if report.version else "vLLM", report.model, report.architecture]
    parallel = [
        f"{short} {report.config[key]}"
        for key, short in (
            ("tensor_parallel_size", "TP"),
            ("pipeline_parallel_size", "PP"),
            ("data_parallel_size", "DP"),
        )
        if report.config.get(key, "1") != "1"
    ]
    yield "server", ", ".join(text for text in (*server, *parallel, report.status) if text)
    if report.flags:
        yield (
            "flags",
            " ".join(_flag(key, value) for key, value in report.flags.items() if key != "model_tag"),
        )
    if report.phases:
        yield "start", ", ".join(f"{phase.name} {phase.seconds:g} s" for phase in report.phases)
    total = report.seconds("total")
    if total:
        low, high = (max(1, round(times * total / _PROBE_PERIOD_S)) for times in (2, 3))
        yield (
            "startup probe",
            f"failureThreshold {low} to {high} at periodSeconds 10: two to three times {total:g} s",
        )
    memory = _memory(report.memory)
    if memory:
        yield "memory a GPU", memory
    for engine in report.engines[:_SHOWN_ENGINES]:
        yield (
            "KV cache" if engine is report.engines[0] else "",
            _engine(engine, several=len(report.engines) > 1),
        )
    if len(report.engines) > _SHOWN_ENGINES:
        yield "", f"and {len(report.engines) - _SHOWN_ENGINES} more engines"


def _flag(key: str, value: str) -> str:
    name = f"--{key.replace('_', '-')}"
    if value == "True":
        return name
    if value == "False":
        return name.replace("--", "--no-", 1)
    return f"{name} {value}"


def _memory(memory: Memory) -> str:
    total = f"{memory.total_gib:g} GiB" if memory.total_gib is not None else ""
    used = f"utilization {memory.utilization:g}" if memory.utilization is not None else ""
    parts = [
        f"{name} {value:g}"
        for name, value in (
            ("weights", memory.weights_gib),
            ("activations", memory.activation_gib),
            ("non-torch", memory.non_torch_gib),
            ("consumed", memory.consumed_gib),
            ("graphs", memory.graphs_gib),
            ("KV", memory.kv_gib),
        )
        if value is not None
    ]
    inside = f"{', '.join(parts)} GiB" if parts else ""
    return "; ".join(text for text in (total, used, inside) if text)


def _engine(engine: EngineKv, *, several: bool) -> str:
    parts = [f"engine {engine.name}: " if several else ""]
    if engine.kv_tokens is not None:
        blocks = f" ({engine.kv_blocks:,} blocks of {engine.block_size})" if engine.kv_blocks else ""
        parts.append(f"{engine.kv_tokens:,} tokens{blocks}")
    if engine.concurrency is not None and engine.max_model_len is not None:
        times = f"{engine.concurrency:g} requests of max_model_len {engine.max_model_len:,}"
        parts.append(f"; {times}" if engine.kv_tokens is not None else times)
    parts.append(f" ({engine.device})" if engine.device else "")
    parts.append(f"; smallest of {engine.lines} lines" if engine.lines > 1 else "")
    return "".join(parts)
