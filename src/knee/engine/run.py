"""One point on an engine: its load, what it saw, and the drive that fits."""

from collections.abc import Iterator
from itertools import chain
from typing import Protocol

from knee.core.requests import Observed, Requests
from knee.core.snapshot import EngineSnapshot
from knee.engine.books import Books
from knee.engine.columns import Columns
from knee.engine.engine import Engine
from knee.engine.front_end import Fronted, FrontEndQueue
from knee.engine.leap import leap_until
from knee.engine.load import ClosedLoop, OpenLoop, one_by_one
from knee.engine.plain import Plain, is_plain
from knee.engine.seen import Seen
from knee.engine.skip import Skip, can_skip


class Run(Protocol):
    """Load on an idle engine; instants in and out count from its start."""

    @property
    def now_ns(self) -> int:
        """How far it has come: the end of a step, or an idle instant."""

    def advance(self, until_ns: int) -> None:
        """Run until the first step that ends at `until_ns` or later."""

    def open(self) -> int:
        """How many of the counted requests go on."""

    def observed(self) -> Observed:
        """All there is to see now."""

    def gauges(self) -> dict[str, float]:
        """The engine's gauges now."""

    def snapshot(self) -> EngineSnapshot:
        """The engine's metrics now."""

    def end(self) -> None:
        """Abort what is unfinished: the engine is idle again."""


def run(
    engine: Engine,
    schedule: Iterator[Requests],
    start_ns: int,
    counted_ns: tuple[int, int],
    clients: int | None,
) -> Run:
    """`schedule` on the idle `engine` from `start_ns` on, at its instants or by `clients` in a closed loop.

    `counted_ns` bounds the requests that `open` counts.
    """
    first = next(schedule, None)
    schedule = chain(() if first is None else (first,), schedule)
    front = FrontEndQueue(engine.config.front_end) if engine.config.front_end.per_request_ns else None
    waits = clients is not None or (first is not None and first.follows is not None)
    if can_skip(engine.config) and not (front and waits):
        columns = Columns(schedule, clients, engine.config.enable_prefix_caching, front)
        return _Skipping(engine, columns, counted_ns)
    return _Leaping(engine, schedule, start_ns, counted_ns, clients)


class _Skipping:
    """From change to change of the batch."""

    def __init__(self, engine: Engine, columns: Columns, counted_ns: tuple[int, int]) -> None:
        self._engine = engine
        self._columns = columns
        self._drive: Plain | Skip = (Plain if is_plain(engine.config) else Skip)(engine, columns)
        self._books = Books(self._drive, engine.metrics)
        self._counted_ns = counted_ns

    @property
    def now_ns(self) -> int:
        return self._drive.now_ns

    def advance(self, until_ns: int) -> None:
        if isinstance(self._drive, Plain):
            if self._drive.advance(until_ns):
                return
            skip = Skip(self._engine, self._columns)
            skip.take_over(self._drive)
            self._drive = self._books.drive = skip
        self._drive.advance(until_ns)

    def open(self) -> int:
        return self._books.open(*self._counted_ns)

    def observed(self) -> Observed:
        return self._books.observed()

    def gauges(self) -> dict[str, float]:
        return self._drive.gauges()

    def snapshot(self) -> EngineSnapshot:
        self._books.enter()
        return self._engine.snapshot_of(self._drive.gauges())

    def end(self) -> None:
        self._books.close()


class _Leaping:
    """From change to change on requests one by one; behind a front end, step by step."""

    def __init__(
        self,
        engine: Engine,
        schedule: Iterator[Requests],
        start_ns: int,
        counted_ns: tuple[int, int],
        clients: int | None,
    ) -> None:
        self._engine = engine
        self._start_ns = self._now_ns = start_ns
        self._seen = Seen(start_ns, counted_ns)
        requests = one_by_one(schedule, start_ns)
        self._load: OpenLoop | ClosedLoop = (
            OpenLoop(requests, self._seen)
            if clients is None
            else ClosedLoop(requests, self._seen, clients, start_ns)
        )
        front = engine.config.front_end
        has_front = front.per_request_ns > 0 or front.per_token_ns > 0
        self._fronted = Fronted(engine, self._load) if has_front else None
        engine.metrics.keep_gaps = not has_front

    @property
    def now_ns(self) -> int:
        return self._now_ns - self._start_ns

    def advance(self, until_ns: int) -> None:
        if self._fronted is None:
            self._now_ns = leap_until(self._engine, self._load, self._now_ns, self._start_ns + until_ns)
            self._seen.gap(self._engine.metrics.take_gaps())
        else:
            self._now_ns = self._fronted.run(self._now_ns, self._start_ns + until_ns)
            self._seen.gap(self._fronted.take_gaps(self._now_ns))

    def open(self) -> int:
        return self._seen.open

    def observed(self) -> Observed:
        source = (
            self._engine.unfinished() if self._fronted is None else self._fronted.unfinished(self._now_ns)
        )
        return self._seen.observed(source, self._now_ns)

    def gauges(self) -> dict[str, float]:
        return self._engine.gauges()

    def snapshot(self) -> EngineSnapshot:
        return self._engine.snapshot(self._now_ns)

    def end(self) -> None:
        self._engine.metrics.keep_gaps = False
        for number in list(self._engine.requests):
            self._engine.abort(number, self._now_ns)
