"""The lines of a log that may say something, out of however many there are.

A log is scanned in large pieces for a few plain words; only lines with one of them are decoded and handed on.
So memory stays bounded and speed is that of a substring search, whatever the log holds.
"""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

CHUNK_BYTES = 4 << 20
MAX_LINE_BYTES = 64 << 10
FOLLOWING_LINES = 3

WORDS: tuple[bytes, ...] = (
    b"KV cache s",
    b"KV cache m",
    b" for KV cache",
    b"for KV Cache",
    b"in KV cache (",
    b"total_gpu_memory",
    b"Free memory on device",
    b"Estimated CUDA graph",
    b"CUDA graph memory profiling",
    b"out of memory",
    b"No available memory",
    b"To serve at least one",
    b"Maximum concurrency for",
    b" blocks: ",
    b"num_gpu_blocks is",
    b" took ",
    b" takes ",
    b"Graph capturing finished",
    b"Capturing ",
    b"Warming up ",
    b"Starting to load model",
    b"version ",
    b"non-default args",
    b" LLM engine ",
    b"max model len",
    b"max_model_len: ",
    b"with max_num_batched_tokens",
    b"Resolved architecture",
    b"failed to start",
    b"died unexpectedly",
    b"encountered a fatal",
    b"Error: ",
    b": error: ",
    b"KeyboardInterrupt: ",
    b"startup complete",
    b"shutdown complete",
    b"Starting vLLM ",
)
"""Every kind of line that `knee.fit` reads holds at least one of these."""

OPENERS: tuple[bytes, ...] = (
    b"version ",
    b"non-default args",
    b" LLM engine ",
    b"encountered a fatal",
    b"shutdown complete",
)
"""Where every server is ready only these lines can say something: a new start, or an end."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_OUTER = re.compile(
    r"(?:\[(?:pod/)?(?P<pod>[\w.-]+(?:/[\w.-]+)*)\]\s+"  # kubectl logs --prefix
    r"|(?P<service>[A-Za-z0-9][\w.-]*)\s+\|\s"  # docker compose
    r"|\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)?\s+)+"  # kubectl logs --timestamps
)
_PROCESS = re.compile(
    r"\((?P<name>[A-Za-z][\w -]*?)(?:\s+(?:rank=\d+|TP\d+|PP\d+))*\s+pid=(?P<pid>\d+)[^)]*\)"
)
_STAMP = re.compile(r"\b(?:INFO|WARNING|ERROR|DEBUG) (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\b")
_LOGGER = re.compile(
    r"\b(?:INFO|WARNING|ERROR|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d (?:\[\w+\.py:\d+\]|\w+\.py:\d+\])"
)
_BARE = ("(", "INFO", "WARNING", "ERROR", " ")
_DAYS_BEFORE = (0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335)


class Line(NamedTuple):
    """One line without colours, line end and outer prefix.

    `source` is the pod or service whose log it is, `process` and `pid` vLLM's own prefix, "" where there is
    none. `second` counts from the start of a leap year (vLLM writes no year), None without a time stamp.
    `whole` is False for a last line without its end. `rest` is what follows the line, undecoded.
    """

    text: str
    source: str
    process: str
    pid: str
    second: int | None
    whole: bool
    rest: bytes

    def following(self) -> tuple[str, ...]:
        """The next lines, without outer prefixes."""
        return tuple(_OUTER.sub("", _clean(raw), count=1) for raw in self.rest.split(b"\n")[:FOLLOWING_LINES])


class Readable(Protocol):
    """What can be read in pieces: a binary file, standard input."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; none at the end."""
        ...


def scan(stream: Readable, settled: Callable[[], bool]) -> Iterator[Line]:
    """The lines of `stream` that hold one of `WORDS`, in order.

    While `settled` says so, pieces without any of `OPENERS` are passed over.
    """
    rest = b""
    dropping = False
    while True:
        piece = stream.read(CHUNK_BYTES)
        buffer = rest + piece
        if dropping:  # inside a line too long to be one of vLLM's
            cut = buffer.find(b"\n")
            buffer = b"" if cut < 0 else buffer[cut + 1 :]
            dropping = cut < 0
        end = len(buffer) if not piece else _last_safe_line(buffer)
        if len(buffer) - end > MAX_LINE_BYTES * (FOLLOWING_LINES + 1):
            end = buffer.rfind(b"\n") + 1
            dropping = len(buffer) - end > MAX_LINE_BYTES
        if not settled() or any(buffer.find(word, 0, end) >= 0 for word in OPENERS):
            yield from _hits(buffer, end)
        if not piece:
            return
        rest = b"" if dropping else buffer[end:]


def is_vllm_line(text: str) -> bool:
    """Whether the line carries the prefix that vLLM's logger writes."""
    return _LOGGER.search(text) is not None


def _last_safe_line(buffer: bytes) -> int:
    """Where the lines begin that must wait for those that follow them."""
    end = len(buffer)
    for _ in range(FOLLOWING_LINES + 1):
        end = buffer.rfind(b"\n", 0, end)
        if end < 0:
            return 0
    return end + 1


def _hits(buffer: bytes, end: int) -> Iterator[Line]:
    starts: set[int] = set()
    for word in WORDS:
        at = buffer.find(word, 0, end)
        while at >= 0:
            starts.add(buffer.rfind(b"\n", 0, at) + 1)
            at = buffer.find(b"\n", at, end)  # one hit a line is enough
            at = buffer.find(word, at, end) if at >= 0 else -1
    for start in sorted(starts):
        stop = buffer.find(b"\n", start)
        raw = buffer[start : stop if stop >= 0 else len(buffer)]
        if len(raw) <= MAX_LINE_BYTES:
            yield _line(raw, _rest(buffer, stop) if stop >= 0 else b"", whole=stop >= 0)


def _rest(buffer: bytes, stop: int) -> bytes:
    end = stop
    for _ in range(FOLLOWING_LINES):
        end = buffer.find(b"\n", end + 1, stop + MAX_LINE_BYTES)
        if end < 0:
            return buffer[stop + 1 : stop + MAX_LINE_BYTES]
    return buffer[stop + 1 : end]


def _clean(raw: bytes) -> str:
    text = raw.decode("utf-8", "replace")
    return (_ANSI.sub("", text) if "\x1b" in text else text).rstrip("\r")


def _line(raw: bytes, rest: bytes, *, whole: bool) -> Line:
    text = _clean(raw)
    outer = None if text.startswith(_BARE) else _OUTER.match(text)
    source = (outer["pod"] or outer["service"] or "") if outer else ""
    if outer:
        text = text[outer.end() :]
    process = _PROCESS.match(text)
    return Line(
        text=text,
        source=source,
        process=process["name"] if process else "",
        pid=process["pid"] if process else "",
        second=_second(text),
        whole=whole,
        rest=rest,
    )


def _second(text: str) -> int | None:
    found = _STAMP.search(text)
    if found is None:
        return None
    month, day, hour, minute, second = (int(part) for part in found.groups())
    if not 1 <= month <= 12:
        return None
    return ((_DAYS_BEFORE[month - 1] + day - 1) * 24 + hour) * 3600 + minute * 60 + second
