"""Read a start-up log of any vLLM since 0.5.4, in one pass, whatever its size."""

import re

import msgspec

from knee.catalog.logs import log_line, pattern
from knee.core.errors import InputError
from knee.fit.failing import FAILURES
from knee.fit.handlers import HANDLERS
from knee.fit.lines import Line, Readable, is_vllm_line, scan
from knee.fit.reading import Server
from knee.fit.report import report
from knee.fit.startup import StartupReport

_HEAD_BYTES = 256 << 10
QUIET_BYTES = 64 << 20
"""A start never writes this much without a line that says something: what follows is serving."""

_WEAK = frozenset(
    {"bad_argument", "exception", "graph_capture_start", "oom", "probe_kill", "ready", "shutdown_done"}
)
"""Lines that other programs write too: they do not make a log one of vLLM."""

_OTHERS = (
    ("SGLang", re.compile(r"sglang|server_args=ServerArgs\(|max_total_num_tokens=")),
    ("Text Generation Inference", re.compile(r"text[-_]generation[-_](?:launcher|router|inference|server)")),
    ("llama.cpp", re.compile(r"llama_model_loader|llama_context:|llama_new_context|llama_kv_cache|ggml_")),
    ("TensorRT-LLM", re.compile(r"\[TensorRT-LLM\]|\[TRT-LLM\]|tensorrt_llm")),
    ("LMDeploy", re.compile(r"lmdeploy|\[TM\]\[")),
    ("Ollama", re.compile(r"source=server\.go|ollama")),
    ("Triton", re.compile(r"tritonserver|server\.cc:\d+\] .*Triton")),
    ("MLC", re.compile(r"mlc_llm|mlc-llm")),
)


def read_log(stream: Readable, name: str = "the log") -> StartupReport:
    """What the log in `stream` says. Reads it once, in bounded memory.

    Raises:
        InputError: the log is empty, or is not one of vLLM.
    """
    watched = _Watched(stream)
    servers: dict[str, Server] = {}
    ours, progress = False, 0

    def settled() -> bool:
        quiet = watched.count - progress > QUIET_BYTES
        return quiet or (bool(servers) and all(server.settled() for server in servers.values()))

    for line in scan(watched, settled):
        server = servers.setdefault(line.source, Server(line.source))
        server.see(line)
        if _apply(server, line):
            ours, progress = True, watched.count
    start = watched.head.decode("utf-8", "replace")
    if not start.strip():
        raise InputError(
            f"{name} is empty", "redirect the server's stdout and stderr: vllm serve … > server.log 2>&1"
        )
    if not ours and not any(is_vllm_line(text) for text in start.splitlines()):
        _refuse(name, start)
    found = report(servers.values())
    if found.status == "unfinished" and "Avg prompt throughput" in start:
        note = "the log begins after the start: it holds a running server's periodic lines"
        return msgspec.structs.replace(found, notes=(*found.notes, note))
    return found


class _Watched:
    """A stream that keeps its first bytes and counts all."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self.head = b""
        self.count = 0

    def read(self, size: int, /) -> bytes:
        """Like the stream's."""
        piece = self._stream.read(size)
        self.count += len(piece)
        if len(self.head) < _HEAD_BYTES:
            self.head += piece[: _HEAD_BYTES - len(self.head)]
        return piece


def _apply(server: Server, line: Line) -> bool:
    """Hand the line to every handler whose expression finds something; whether one of vLLM's own did."""
    ours = False
    for name, handle in HANDLERS.items():
        kind = log_line(name)
        if kind is None or kind.needle not in line.text:
            continue
        found = _search(name, line)
        if found is not None:
            handle(server, line, found)
            if name not in FAILURES:
                server.went_on()
            ours = ours or name not in _WEAK
    return ours


def _search(name: str, line: Line) -> re.Match[str] | None:
    """Find the expression in the line, or in the line joined with those after it where it was wrapped.

    A number that ends a last line without line end may be cut: it does not count.
    """
    expression = pattern(name)
    text = line.text if line.whole else line.text.rstrip("0123456789.,")
    found = expression.search(text)
    if name in _WRAPPED or found is None:
        for joiner in (" ", ""):
            joined = joiner.join((text.rstrip(), *(following.strip() for following in line.following())))
            longer = expression.search(joined)
            if longer is not None and (found is None or longer.end() > found.end()):
                found = longer
    return found


_WRAPPED = frozenset({"err_max_len"})
"""Expressions with an optional end, which a wrapped line would hide."""


def _refuse(name: str, start: str) -> None:
    other = next((engine for engine, sign in _OTHERS if sign.search(start)), None)
    if other is not None:
        raise InputError(
            f"{name} is a log of {other}, not of vLLM", "knee reads start-up logs of vLLM 0.5.4 and newer"
        )
    raise InputError(
        f"{name} does not look like a log of vLLM: none of its lines is one that vLLM writes",
        "give the output of `vllm serve` from its start, stderr included",
    )
