"""One point on an engine: its load, what it saw, and the drive that fits."""

from collections.abc import Callable, Iterator

from knee.core.requests import Observed, Requests
from knee.core.snapshot import EngineSnapshot
from knee.engine import plain_books
from knee.engine.engine import Engine, cache_config_info
from knee.engine.front_end import Fronted
from knee.engine.load import ClosedLoop, OpenLoop, one_by_one
from knee.engine.plain import NotPlain, Plain, is_plain
from knee.engine.seen import Seen
from knee.engine.skip import skip_until

Schedule = Callable[[], Iterator[Requests]]
"""Makes the requests of a point; twice called, it makes the same ones."""


class Run:
    """Load on an idle engine from `start_ns` on; instants in and out count from there.

    `counted_ns` bounds the requests that `open` counts.
    """

    def __init__(
        self,
        engine: Engine,
        schedule: Schedule,
        start_ns: int,
        counted_ns: tuple[int, int],
        clients: int | None,
    ) -> None:
        self.now_ns = 0
        self._engine = engine
        self._schedule = schedule
        self._start_ns = start_ns
        self._counted_ns = counted_ns
        self._clients = clients
        self._untils: list[int] = []
        plain = clients is None and is_plain(engine.config)
        self._plain = Plain(engine.config, schedule()) if plain else None
        if self._plain is None:
            self._begin()

    def advance(self, until_ns: int) -> None:
        """Run until the first step that ends at `until_ns` or later."""
        if self._plain is not None:
            try:
                self._plain.advance(until_ns)
            except NotPlain:  # the same again by the general drive, as far as the plain one came
                self._plain = None
                self._begin()
                for earlier_ns in self._untils:
                    self._skip(earlier_ns)
            else:
                self._untils.append(until_ns)
                self.now_ns = self._plain.now_ns
                return
        self._skip(until_ns)
        self.now_ns = self._engine_ns - self._start_ns

    def open(self) -> int:
        """How many of the counted requests go on."""
        if self._plain is not None:
            return plain_books.unfinished(self._plain, *self._counted_ns)
        return self._seen.open

    def observed(self) -> Observed:
        """All there is to see now."""
        if self._plain is not None:
            return plain_books.observed(self._plain)
        if self._fronted is not None:
            return self._seen.observed(self._fronted.unfinished(self._engine_ns), self._engine_ns)
        return self._seen.observed(self._engine.unfinished(), self._engine_ns)

    def gauges(self) -> dict[str, float]:
        """The engine's gauges now."""
        return plain_books.gauges(self._plain) if self._plain is not None else self._engine.gauges()

    def snapshot(self) -> EngineSnapshot:
        """The engine's metrics now."""
        if self._plain is None:
            return self._engine.snapshot(self._engine_ns)
        metrics = self._engine.metrics.copy()
        plain_books.count(self._plain, metrics, over=False)
        return EngineSnapshot(
            gauges=self.gauges(),
            counters=metrics.counters(),
            histograms=metrics.histograms(),
            info=cache_config_info(self._engine.config),
        )

    def end(self) -> None:
        """Abort what is unfinished: the engine is idle again."""
        if self._plain is not None:
            plain_books.count(self._plain, self._engine.metrics, over=True)
            self._plain = None
            return
        self._engine.metrics.keep_gaps = False
        for number in list(self._engine.requests):
            self._engine.abort(number, self._engine_ns)

    def _begin(self) -> None:
        self._engine_ns = self._start_ns
        self._seen = Seen(self._start_ns, self._counted_ns)
        requests = one_by_one(self._schedule(), self._start_ns)
        self._load: OpenLoop | ClosedLoop = (
            OpenLoop(requests, self._seen)
            if self._clients is None
            else ClosedLoop(requests, self._seen, self._clients, self._start_ns)
        )

        front = self._engine.config.front_end
        has_front = front.per_request_ns > 0 or front.per_token_ns > 0
        self._fronted = Fronted(self._engine, self._load) if has_front else None
        self._engine.metrics.keep_gaps = not has_front

    def _skip(self, until_ns: int) -> None:
        if self._fronted is not None:
            self._engine_ns = self._fronted.run(self._engine_ns, self._start_ns + until_ns)
            self._seen.gap(self._fronted.take_gaps(self._engine_ns))
            return
        self._engine_ns = skip_until(self._engine, self._load, self._engine_ns, self._start_ns + until_ns)
        self._seen.gap(self._engine.metrics.take_gaps())
