"""Two instants and what happened between them: gauges summarised, counters and histograms as differences."""

import math
from collections.abc import Sequence

import msgspec

from knee.core.errors import InputError
from knee.core.snapshot import EngineSnapshot, EngineWindow, GaugeStats, Histogram, Snapshot, Window

MAX_WARNINGS = 20
WAITING = "num_requests_waiting"


def window(snapshots: Sequence[Snapshot]) -> Window:
    """The window that `snapshots` span, in any order; one snapshot gives gauges and no differences.

    Engines are keyed by their label, with the source before it (`SOURCE#LABEL`) where there are several
    sources. A counter that is missing at either end is missing from the window. Where a counter goes
    backwards the engine restarted: its differences then cover what came after the last restart.

    Raises:
        InputError: there is no snapshot.
    """
    if not snapshots:
        raise InputError("no metrics were seen")
    ordered = sorted(snapshots, key=lambda snapshot: snapshot.at_ns)
    several = len({snapshot.source for snapshot in ordered}) > 1
    series: dict[str, list[EngineSnapshot]] = {}
    for snapshot in ordered:
        for label, engine in snapshot.engines.items():
            series.setdefault(f"{snapshot.source}#{label}" if several else label, []).append(engine)
    warnings = dict.fromkeys(warning for snapshot in ordered for warning in snapshot.warnings)
    return Window(
        start_ns=ordered[0].at_ns,
        end_ns=ordered[-1].at_ns,
        engines={key: _engine_window(seen) for key, seen in sorted(series.items())},
        version=next((snapshot.version for snapshot in reversed(ordered) if snapshot.version), ""),
        model_name=next((snapshot.model_name for snapshot in ordered if snapshot.model_name), ""),
        warnings=tuple(warnings)[:MAX_WARNINGS],
    )


def _engine_window(seen: list[EngineSnapshot]) -> EngineWindow:
    restarts = [i for i in range(1, len(seen)) if _went_backwards(seen[i - 1], seen[i])]
    last = seen[-1]
    first = EngineSnapshot() if restarts else seen[0]
    counters: dict[str, float] = {}
    histograms: dict[str, Histogram] = {}
    if len(seen) > 1:
        counters = {
            name: value - (0.0 if restarts else first.counters[name])
            for name, value in last.counters.items()
            if restarts or name in first.counters
        }
        for name, histogram in last.histograms.items():
            start = first.histograms.get(name)
            if restarts:
                histograms[name] = histogram
            elif start is not None and start.bounds == histogram.bounds:
                histograms[name] = subtract(histogram, start)
    return EngineWindow(
        gauges=_summaries(seen),
        queued=_summaries([engine for engine in seen if engine.gauges.get(WAITING, 0) > 0], WAITING),
        counters=counters,
        histograms=histograms,
        info=last.info or seen[0].info,
        reset=bool(restarts),
    )


def _summaries(seen: list[EngineSnapshot], weight: str = "") -> dict[str, GaugeStats]:
    """The summary of every gauge; means are weighted by the gauge `weight` where one is named."""
    values: dict[str, list[float]] = {}
    weights: dict[str, list[float]] = {}
    for engine in seen:
        for name, value in engine.gauges.items():
            values.setdefault(name, []).append(value)
            weights.setdefault(name, []).append(engine.gauges.get(weight, 1.0))
    return {name: gauge_stats(samples, weights[name]) for name, samples in values.items()}


def _went_backwards(before: EngineSnapshot, after: EngineSnapshot) -> bool:
    """Whether the engine restarted in between: nothing that only grows may shrink."""
    started = "process_start_time_seconds"
    if before.gauges.get(started) != after.gauges.get(started):
        return started in before.gauges and started in after.gauges
    return any(after.counters.get(name, value) < value for name, value in before.counters.items()) or any(
        name in after.histograms and after.histograms[name].count < histogram.count
        for name, histogram in before.histograms.items()
    )


def gauge_stats(samples: Sequence[float], weights: Sequence[float] | None = None) -> GaugeStats:
    """The summary of a gauge's samples, in order of time; mean and share are weighted by `weights`."""
    weighed = weights or [1.0] * len(samples)
    whole, high = math.fsum(weighed), max(samples)
    return GaugeStats(
        first=samples[0],
        last=samples[-1],
        low=min(samples),
        high=high,
        mean=math.fsum(s * w for s, w in zip(samples, weighed, strict=True)) / whole,
        samples=len(samples),
        at_high=math.fsum(w for s, w in zip(samples, weighed, strict=True) if s == high) / whole,
    )


def subtract(after: Histogram, before: Histogram) -> Histogram:
    """What a histogram counted between two instants; both must have the same bounds."""
    return Histogram(
        bounds=after.bounds,
        counts=tuple(max(0.0, a - b) for a, b in zip(after.counts, before.counts, strict=True)),
        count=max(0.0, after.count - before.count),
        sum=after.sum - before.sum,
    )


class Bracket(msgspec.Struct, frozen=True):
    """A quantile lies in (low, high]; `high` is None above the last bound."""

    low: float
    high: float | None


def quantile(histogram: Histogram, q: float) -> Bracket | None:
    """The bucket that holds quantile `q` (0 to 1); None where nothing was observed.

    A histogram knows no more than that: interpolating inside the bucket, as PromQL's `histogram_quantile`
    does, invents the digits it prints.
    """
    if histogram.count <= 0:
        return None
    rank = q * histogram.count
    low = 0.0
    for bound, count in zip(histogram.bounds, histogram.counts, strict=True):
        if count >= rank and count > 0:
            return Bracket(low, bound)
        low = bound
    return Bracket(low, None)


def mean(histogram: Histogram) -> float | None:
    """The mean of what was observed; None where nothing was, or the sum is not known."""
    if histogram.count <= 0 or math.isnan(histogram.sum):
        return None
    return histogram.sum / histogram.count


def share_above(histogram: Histogram, value: float) -> tuple[float, float] | None:
    """The share of observations above `value`, as a bracket (at least, at most)."""
    if histogram.count <= 0:
        return None
    below_most = next(
        (c for b, c in zip(histogram.bounds, histogram.counts, strict=True) if b >= value), None
    )
    below_least = max(
        (c for b, c in zip(histogram.bounds, histogram.counts, strict=True) if b <= value), default=0.0
    )
    most = 1 - below_least / histogram.count
    least = 0.0 if below_most is None else 1 - below_most / histogram.count
    return max(0.0, least), min(1.0, most)
