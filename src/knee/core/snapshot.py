"""A server's own signals, under one set of names whatever its version.

Names are vLLM's newest, without the `vllm:` prefix and without `_total`: `num_requests_running`,
`kv_cache_usage_perc`, `num_preemptions`, `time_to_first_token_seconds`. A further label stands in braces
after the name, value only: `request_success{stop}`, `num_requests_waiting_by_reason{capacity}`.
A name that is not there was not exposed: missing is never zero.
"""

import msgspec


class Histogram(msgspec.Struct, frozen=True, kw_only=True):
    """A cumulative histogram: `counts[i]` observations were <= `bounds[i]`; the last bound may be infinite.

    `bounds` is stored without the infinite bound; `count` is the total and `sum` the sum of observations, in
    the unit of the metric's name (seconds, tokens).
    """

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    count: float
    sum: float


class EngineSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One engine (data-parallel rank) at one instant."""

    gauges: dict[str, float] = {}
    counters: dict[str, float] = {}
    histograms: dict[str, Histogram] = {}
    info: dict[str, str] = {}


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All engines behind one address at one instant.

    `engines` is keyed by the `engine` label ("0" where the version has none). `took_ns` is how long the
    scrape took; `warnings` names what could not be read.
    """

    at_ns: int
    engines: dict[str, EngineSnapshot]
    source: str = ""
    version: str = ""
    model_name: str = ""
    took_ns: int = 0
    warnings: tuple[str, ...] = ()


class GaugeStats(msgspec.Struct, frozen=True, kw_only=True):
    """A gauge over a window of `samples` instants; at the share `at_high` of them it stood at `high`."""

    first: float
    last: float
    low: float
    high: float
    mean: float
    samples: int
    at_high: float = 0.0


class EngineWindow(msgspec.Struct, frozen=True, kw_only=True):
    """One engine between two instants: gauges summarised, counters and histograms as differences.

    `queued` summarises the gauges over those instants at which requests waited, so that what was full while
    they waited can be told from what was full at another time; its means are weighted by how many waited, and
    it is empty where none did. `reset` says that a
    counter went backwards: the engine restarted inside the window, and the differences cover only what came
    after.
    """

    gauges: dict[str, GaugeStats] = {}
    queued: dict[str, GaugeStats] = {}
    counters: dict[str, float] = {}
    histograms: dict[str, Histogram] = {}
    info: dict[str, str] = {}
    reset: bool = False


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The difference of two snapshots, with the gauges seen between them. Keyed by (source, engine)."""

    start_ns: int
    end_ns: int
    engines: dict[str, EngineWindow]
    version: str = ""
    model_name: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Length in seconds."""
        return (self.end_ns - self.start_ns) / 1e9
