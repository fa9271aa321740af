"""What the gateway tells about itself: Prometheus metrics, and one line per request without its text."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import IO

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from knee.core.units import NS_PER_S

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
CONTENT_TYPE = b"text/plain; version=1.0.0; charset=utf-8"


class Entry(msgspec.Struct, kw_only=True):
    """One request in the access log. The path is without its query, which may hold a secret."""

    at: str
    id: str
    method: str
    path: str
    status: int
    end: str
    replica: str
    queue_ms: float
    first_byte_ms: float
    total_ms: float
    bytes_in: int
    bytes_out: int


class Times:
    """A histogram of durations, filled without label look-ups on the way of a request."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_ns = 0

    def add(self, ns: int) -> None:
        """One duration."""
        self._sum_ns += ns
        for index, bound in enumerate(BOUNDS_S):
            if ns <= bound * NS_PER_S:
                self._counts[index] += 1
                return
        self._counts[-1] += 1

    def family(self, name: str, text: str) -> HistogramMetricFamily:
        """As Prometheus wants it: cumulative, in seconds."""
        total, buckets = 0, []
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, total))
        return HistogramMetricFamily(name, text, buckets=buckets, sum_value=self._sum_ns / NS_PER_S)


class Books(Collector):
    """Counts of what became of requests. `more` yields what others count, at the time of a scrape."""

    def __init__(self, more: Callable[[], Iterator[Metric]], log: IO[str] | None) -> None:
        self.ends: Counter[tuple[int, str]] = Counter()
        self.queue, self.first_byte, self.total = Times(), Times(), Times()
        self.bytes_out = 0
        self._more = more
        self._log = log
        self._second = (0, "")
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def stamp(self, wall_ns: int) -> str:
        """`wall_ns` as ISO 8601 in UTC with milliseconds; the date is made once a second."""
        second, rest_ns = divmod(wall_ns, NS_PER_S)
        if second != self._second[0]:
            self._second = (second, datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S"))
        return f"{self._second[1]}.{rest_ns // 1_000_000:03d}Z"

    def note(self, entry: Entry) -> None:
        """A request is over."""
        self.ends[entry.status, entry.end] += 1
        self.bytes_out += entry.bytes_out
        if self._log is not None:
            self._log.write(msgspec.json.encode(entry).decode() + "\n")

    def flush(self) -> None:
        """Write out the log; a log that cannot be written is given up, the requests go on."""
        try:
            if self._log is not None:
                self._log.flush()
        except OSError as error:
            self._log = None
            sys.stderr.write(f"knee: the access log cannot be written any more: {error.strerror}\n")

    def page(self) -> bytes:
        """The metrics page."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Called by the registry."""
        ends = CounterMetricFamily(
            "knee_gateway_requests",
            "Requests by status and by how they ended: ok, upstream_error, client_gone, shed, stopped.",
            labels=("status", "end"),
        )
        for (status, end), count in sorted(self.ends.items()):
            ends.add_metric((str(status), end), count)
        yield ends
        yield self.queue.family("knee_gateway_queue_seconds", "Wait for a place, of requests that got one.")
        yield self.first_byte.family("knee_gateway_first_byte_seconds", "Arrival to head of the answer.")
        yield self.total.family("knee_gateway_request_seconds", "Arrival to last byte.")
        yield CounterMetricFamily("knee_gateway_response_bytes", "Body bytes sent.", value=self.bytes_out)
        yield from self._more()


def gauge(name: str, text: str, value: float) -> Metric:
    """A single gauge."""
    return GaugeMetricFamily(name, text, value=value)
