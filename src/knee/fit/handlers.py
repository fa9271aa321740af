"""What each kind of log line adds to what is known of a server."""

import re
from collections.abc import Callable

from knee.fit.failing import FAILURES
from knee.fit.lines import Line
from knee.fit.reading import Server, number, read_flags

Match = re.Match[str]
Handler = Callable[[Server, Line, Match], None]

_CONFIG = re.compile(r"\b([a-z_]+)=('[^']*'|[^,\s)]+)")
_CONFIG_KEYS = frozenset(
    {
        "block_size",
        "data_parallel_size",
        "decode_context_parallel_size",
        "dtype",
        "enforce_eager",
        "kv_cache_dtype",
        "max_seq_len",
        "model",
        "pipeline_parallel_size",
        "quantization",
        "tensor_parallel_size",
    }
)


def _count(text: str) -> int:
    return int(text.replace(",", ""))


def _start(server: Server, line: Line) -> None:
    """A line that opens a start: after one that is over, forget that one."""
    if server.over or (server.failures and line.pid not in server.openers):
        server.clear()
        server.starts += 1
        server.see(line)
    server.openers.add(line.pid)


def _version(server: Server, line: Line, found: Match) -> None:
    _start(server, line)
    server.version = server.version or found["v"].rstrip(".,)")


def _flags(server: Server, line: Line, found: Match) -> None:
    _start(server, line)
    server.flags = read_flags(found["d"])
    server.model = server.flags.get("model", server.model)


def _engine_init(server: Server, line: Line, found: Match) -> None:
    if server.engines and server.over:
        _start(server, line)
    server.version = server.version or found["v"]
    for key, value in _CONFIG.findall(found["cfg"]):
        if key in _CONFIG_KEYS:
            server.config.setdefault(key, value.strip("'"))
    server.model = server.model or server.config.get("model", "")
    length = number(server.config.get("max_seq_len"))
    server.max_model_len = int(length) if length else server.max_model_len


def _kv_tokens(server: Server, line: Line, found: Match) -> None:
    engine = server.engine(line)
    tokens = _count(found["tokens"])
    engine.lines += 1
    engine.device = found["device"]
    if engine.tokens is None or tokens < engine.tokens:
        engine.tokens = tokens
    server.capturing = False


def _kv_blocks(server: Server, line: Line, found: Match) -> None:
    engine = server.engine(line)
    blocks = int(found["blocks"])
    engine.lines += 1
    engine.device = found["device"].upper()
    engine.blocks = blocks if engine.blocks is None else min(engine.blocks, blocks)


def _concurrency(server: Server, line: Line, found: Match) -> None:
    engine = server.engine(line)
    times = number(found["x"].rstrip("."))
    if times is not None and (engine.concurrency is None or times < engine.concurrency):
        engine.concurrency = times
        engine.max_model_len = _count(found["max_model_len"])


def _blocks_later(server: Server, line: Line, found: Match) -> None:
    if "Engines" not in found.group():
        engine = server.engine(line)
        engine.blocks = engine.blocks if engine.blocks is not None else int(found["blocks"])


def _kv_memory(server: Server, line: Line, found: Match) -> None:
    del line
    server.keep("kv", float(found["gib"]), smallest=True)


def _cpu_memory(server: Server, line: Line, found: Match) -> None:
    _kv_memory(server, line, found)
    server.on_cpu = True
    server.keep("total", float(found["total"]), smallest=True)
    if "want" in found.re.groupindex:
        server.keep("requested", float(found["want"]))
        server.keep("consumed", float(found["other"]))


def _profile_v0(server: Server, line: Line, found: Match) -> None:
    del line
    server.keep("weights", float(found["weights"]))
    server.keep("non_torch", float(found["nontorch"]))
    server.keep("activation", float(found["act"]))
    server.keep("kv", float(found["kv"]), smallest=True)


def _total_memory(server: Server, line: Line, found: Match) -> None:
    """Lines that give a device's total memory and the utilization asked for."""
    del line
    groups = found.groupdict()
    server.keep("total", float(found["total"]), smallest=True)
    server.memory["utilization"] = float(found["util"])
    for group, name in (
        ("want", "requested"),
        ("free", "free"),
        ("weights", "weights"),
        ("consumed", "consumed"),
        ("activation", "activation"),
        ("non_torch", "non_torch"),
        ("graphs", "graphs"),
    ):
        if groups.get(group) is not None:
            server.keep(name, float(groups[group]), smallest=name == "free")
    if groups.get("kv") is not None:
        server.keep("kv", float(found["kv"]), smallest=True)


def _model_load(server: Server, line: Line, found: Match) -> None:
    del line
    server.keep("weights", float(found["gib"]))
    if "s" in found.re.groupindex:
        _longest(server, "load", float(found["s"]))


def _graph_capture(server: Server, line: Line, found: Match) -> None:
    del line
    server.capturing = False
    _longest(server, "graph capture", float(found["s"]))
    if found["gib"] is not None:
        server.keep("graphs", float(found["gib"]))


def _graphs(server: Server, line: Line, found: Match) -> None:
    del line
    server.keep("graphs", float(found["gib"]))


def _phase(name: str) -> Handler:
    def handle(server: Server, line: Line, found: Match) -> None:
        del line
        _longest(server, name, float(found["s"]))

    return handle


def _longest(server: Server, name: str, seconds: float) -> None:
    if not server.ready:
        server.phases[name] = max(server.phases.get(name, 0.0), seconds)


def _mark(name: str) -> Handler:
    def handle(server: Server, line: Line, found: Match) -> None:
        del found
        if line.second is not None:
            server.marks.setdefault(name, line.second)

    return handle


def _warm(server: Server, line: Line, found: Match) -> None:
    del found
    begun = server.marks.get("compile")
    if begun is not None and line.second is not None and line.second >= begun:
        _longest(server, "compile", float(line.second - begun))


def _capturing(server: Server, line: Line, found: Match) -> None:
    del line, found
    server.capturing = True


def _ready(server: Server, line: Line, found: Match) -> None:
    del line, found
    server.ready = True
    server.readies += 1


def _over(server: Server, line: Line, found: Match) -> None:
    del line, found
    server.over = True


def _length(server: Server, line: Line, found: Match) -> None:
    del line
    server.max_model_len = int(found["n"])


def _fitted_length(server: Server, line: Line, found: Match) -> None:
    del line
    server.max_model_len = int(found["new"] or found["full"])


def _budget(server: Server, line: Line, found: Match) -> None:
    del line
    server.batched_tokens = int(found["n"])


def _architecture(server: Server, line: Line, found: Match) -> None:
    del line
    server.architecture = found["name"]


def _note(text: str) -> Handler:
    def handle(server: Server, line: Line, found: Match) -> None:
        del line
        server.notes.setdefault(text.format(**found.groupdict()))

    return handle


def _graph_reservation(server: Server, line: Line, found: Match) -> None:
    del line
    server.memory["utilization"] = float(found["util"])
    server.notes.setdefault(
        f"memory for CUDA graphs is reserved: utilization {found['util']} acts like {found['old']} without; "
        f"{found['new'].rstrip('.')} would keep the cache as large as before"
    )


HANDLERS: dict[str, Handler] = {
    "version_api_server": _version,
    "version_logo": _version,
    "non_default_args": _flags,
    "engine_init": _engine_init,
    "architecture": _architecture,
    "max_model_len": _length,
    "auto_fit": _fitted_length,
    "chunked_prefill": _budget,
    "kv_tokens": _kv_tokens,
    "kv_blocks": _kv_blocks,
    "max_concurrency": _concurrency,
    "dp_engine_blocks_single": _blocks_later,
    "available_kv_memory": _kv_memory,
    "kv_reserved": _kv_memory,
    "cpu_kv_explicit": _cpu_memory,
    "cpu_kv_auto": _cpu_memory,
    "v0_memory_profile": _profile_v0,
    "v0_memory_profile_old": _total_memory,
    "v0_total_memory": _total_memory,
    "memory_breakdown": _total_memory,
    "model_load": _model_load,
    "model_load_v0": _model_load,
    "cudagraph_mem_estimate": _graphs,
    "graph_capture": _graph_capture,
    "graph_capture_start": _capturing,
    "weights_load_time": _phase("weights"),
    "torch_compile": _phase("compile"),
    "cpu_warmup_start": _mark("compile"),
    "cpu_warmup_done": _warm,
    "memory_profiling": _phase("profile"),
    "init_engine": _phase("engine"),
    "listening": _mark("listening"),
    "ready": _ready,
    "shutdown_done": _over,
    "hybrid_disabled": _note(
        "the hybrid KV cache manager is off: sliding-window layers pay for the full context"
    ),
    "kv_padding": _note("padding between layer groups may waste up to {pct}% of the KV cache"),
    "cp_multiplier": _note("the printed tokens count the context parallel size {n} already"),
    "cudagraph_util_equivalence": _graph_reservation,
    **FAILURES,
}
"""What to do with each kind of line of the catalog; a line may be of several kinds."""
