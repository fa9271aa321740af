"""Windows made of the values that a report gives, and nothing else: what it does not say is missing."""

from collections.abc import Sequence

from knee.core.snapshot import EngineSnapshot, Histogram, Snapshot, Window
from knee.metrics.window import window

LATENCY = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0)
TTFT = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
ITL = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
STEPS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
TOKENS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 100000.0)


def histogram(values: Sequence[float], bounds: tuple[float, ...] = LATENCY) -> Histogram:
    return Histogram(
        bounds=bounds,
        counts=tuple(float(sum(1 for value in values if value <= bound)) for bound in bounds),
        count=float(len(values)),
        sum=float(sum(values)),
    )


def world(
    running: Sequence[float] = (),
    waiting: Sequence[float] = (),
    kv: Sequence[float] = (),
    *,
    every_s: float = 10.0,
    counters: dict[str, float] | None = None,
    histograms: dict[str, Histogram] | None = None,
    info: dict[str, str] | None = None,
    more: dict[str, Sequence[float]] | None = None,
    label: str = "0",
) -> Window:
    """A window of one engine; counters and histograms are what they grew by in it."""
    columns = {
        "num_requests_running": running,
        "num_requests_waiting": waiting,
        "kv_cache_usage_perc": kv,
        **(more or {}),
    }
    n = max([len(column) for column in columns.values()] + [2 if counters or histograms else 1])
    snapshots = []
    for i in range(n):
        gauges = {name: float(column[min(i, len(column) - 1)]) for name, column in columns.items() if column}
        last = i == n - 1
        empty = {
            name: Histogram(bounds=h.bounds, counts=(0.0,) * len(h.bounds), count=0, sum=0)
            for name, h in (histograms or {}).items()
        }
        snapshots.append(
            Snapshot(
                at_ns=round(i * every_s * 1e9),
                engines={
                    label: EngineSnapshot(
                        gauges=gauges,
                        counters={name: value if last else 0.0 for name, value in (counters or {}).items()},
                        histograms=(histograms or {}) if last else empty,
                        info=info or {},
                    )
                },
            )
        )
    return window(snapshots)
