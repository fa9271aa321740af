"""What one server's log has said so far."""

import ast
import re

from knee.fit.lines import Line
from knee.fit.startup import Failure, Memory

_SECRET = re.compile(r"api_?key|token$|password|secret|credential", re.IGNORECASE)
_PAIR = re.compile(r"'(\w+)': ('(?:[^'\\]|\\.)*'|\[[^\]]*\]|[^,{}\[\]]+)")
_FLAG_LIMIT = 200


class Engine:
    """Capacity lines of one engine as they come."""

    def __init__(self) -> None:
        self.tokens: int | None = None
        self.blocks: int | None = None
        self.concurrency: float | None = None
        self.max_model_len: int | None = None
        self.device = ""
        self.lines = 0


class Server:
    """What one server's log has said so far."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.starts = 1
        self.clear()

    def clear(self) -> None:
        """Forget everything: a new start begins."""
        self.first: int | None = None
        self.last: int | None = None
        self.version = ""
        self.model = ""
        self.architecture = ""
        self.flags: dict[str, str] = {}
        self.config: dict[str, str] = {}
        self.max_model_len: int | None = None
        self.batched_tokens: int | None = None
        self.engines: dict[str, Engine] = {}
        self.memory: dict[str, float] = {}
        self.phases: dict[str, float] = {}
        self.marks: dict[str, int] = {}
        self.failures: dict[str, Failure] = {}
        self.exceptions: list[str] = []
        self.failed_to_start = False
        self.capturing = False
        self.on_cpu = False
        self.ready = False
        self.openers: set[str] = set()
        self.readies = 0
        self.over = False
        self.notes: dict[str, None] = {}

    def see(self, line: Line) -> None:
        """Take note of when the line was written."""
        if line.second is not None:
            self.first = line.second if self.first is None else self.first
            if not self.ready:
                self.last = line.second

    def engine(self, line: Line) -> Engine:
        """The engine that wrote the line: by vLLM's process prefix and its id, or the only one."""
        name = line.process if line.process.startswith("EngineCore") else ""
        return self.engines.setdefault(f"{name}/{line.pid}" if name else "", Engine())

    def known(self) -> Memory:
        """The memory figures seen so far."""
        utilization = self.memory.get("utilization")
        if utilization is None and "gpu_memory_utilization" in self.flags:
            utilization = number(self.flags["gpu_memory_utilization"])
        return Memory(
            total_gib=self.memory.get("total"), utilization=utilization, kv_gib=self.memory.get("kv")
        )

    def keep(self, name: str, value: float, *, smallest: bool = False) -> None:
        """Keep the worst of what the workers say."""
        old = self.memory.get(name)
        self.memory[name] = value if old is None else (min if smallest else max)(old, value)

    def settled(self) -> bool:
        """Whether every process whose start is in this log has become ready."""
        return self.readies >= max(1, len(self.openers))

    def went_on(self) -> None:
        """An exception before a line of progress was not the end."""
        if not self.failed_to_start:
            self.exceptions.clear()

    def fail(self, item: Failure) -> None:
        """Keep the first failure of each kind; what comes after the server was ready is no failed start."""
        if not self.ready:
            self.failures.setdefault(item.kind, item)


def read_flags(text: str) -> dict[str, str]:
    """The dictionary that vLLM prints as `non-default args`, values as text, secrets masked.

    What Python cannot read as a literal is read pair by pair.
    """
    try:
        literal = ast.literal_eval(text)
        pairs = {str(key): str(value) for key, value in literal.items()}
    except (ValueError, SyntaxError, AttributeError, RecursionError, MemoryError):
        pairs = {key: value.strip().strip("'") for key, value in _PAIR.findall(text)}
    return {key: "(masked)" if _SECRET.search(key) else value[:_FLAG_LIMIT] for key, value in pairs.items()}


def number(text: str | None) -> float | None:
    """The number in `text`, thousands separators allowed; None where there is none."""
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None
