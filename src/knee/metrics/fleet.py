"""Several engines as one: what adds up is added, what does not is not.

Requests waiting and running add up over engines and replicas. KV usage does not: two caches at 40% are not
one at 80%, so the fullest stands for all (a public dashboard sums them).
"""

from knee.core.snapshot import EngineWindow, GaugeStats, Histogram, Window

_ADD_UP = ("num_requests_", "hisparse_pending_page_transfers", "simple_kv_offload_")


def together(window: Window) -> EngineWindow:
    """All engines of `window` as one: counters, histograms and requests added, other gauges at their worst.

    The extremes of an added gauge are bounds: the engines need not have peaked at the same instant.
    """
    engines = list(window.engines.values())
    gauges: dict[str, list[GaugeStats]] = {}
    counters: dict[str, float] = {}
    histograms: dict[str, list[Histogram]] = {}
    for engine in engines:
        for name, stats in engine.gauges.items():
            gauges.setdefault(name, []).append(stats)
        for name, value in engine.counters.items():
            counters[name] = counters.get(name, 0.0) + value
        for name, histogram in engine.histograms.items():
            histograms.setdefault(name, []).append(histogram)
    return EngineWindow(
        gauges={name: _gauge(name, stats) for name, stats in gauges.items()},
        counters=counters,
        histograms={
            name: add(every) for name, every in histograms.items() if len({one.bounds for one in every}) == 1
        },
        reset=any(engine.reset for engine in engines),
    )


def _gauge(name: str, every: list[GaugeStats]) -> GaugeStats:
    if not name.startswith(_ADD_UP):
        return max(every, key=lambda stats: stats.mean)
    return GaugeStats(
        first=sum(stats.first for stats in every),
        last=sum(stats.last for stats in every),
        low=sum(stats.low for stats in every),
        high=sum(stats.high for stats in every),
        mean=sum(stats.mean for stats in every),
        samples=min(stats.samples for stats in every),
    )


def add(every: list[Histogram]) -> Histogram:
    """Histograms of equal bounds as one."""
    return Histogram(
        bounds=every[0].bounds,
        counts=tuple(sum(column) for column in zip(*(one.counts for one in every), strict=True)),
        count=sum(one.count for one in every),
        sum=sum(one.sum for one in every),
    )
