"""Intervals for percentiles: order statistics for independent samples, batch means for correlated ones."""

import math

import msgspec
import numpy as np

from knee.stats.batches import Share, batch_share
from knee.stats.distributions import binomial_cdf, student_quantile, wilson
from knee.stats.percentile import Floats, Sorted, minimum_samples
from knee.stats.samples import Samples, Window


def order_statistic_interval(values: Floats, share: float, confidence: float = 0.95) -> tuple[float, float]:
    """Distribution-free bounds of a percentile from independent samples.

    The ranks come from the binomial distribution (David and Nagaraja 2003, section 7.1). Where there are too
    few samples for an upper bound it is infinite, and the lower one -infinity.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    n = len(ordered)
    miss = (1 - confidence) / 2
    low = _rank(n, share, miss)
    high = n + 1 - _rank(n, 1 - share, miss)
    return (
        float(ordered[low - 1]) if low >= 1 else -math.inf,
        float(ordered[high - 1]) if high <= n else math.inf,
    )


def percentile_interval(
    seen: Samples, share: float, window: Window, confidence: float = 0.95
) -> tuple[float, float, float]:
    """A percentile of samples with its bounds: (estimate, low, high).

    The distribution function at the estimate gets its interval from batch means (`batch_share`), which
    holds under autocorrelation, and is inverted (Woodruff 1952; for dependent sequences Heidelberger and
    Lewis 1984). Fewer effective samples than `minimum_samples` leave the upper bound infinite.
    """
    ordered = Sorted(seen.values, seen.weights)
    estimate = ordered.quantile(share)
    if math.isnan(estimate):
        return math.nan, -math.inf, math.inf
    behind = evidence(seen, ordered, share, window)
    critical = student_quantile((1 + confidence) / 2, behind.degrees)
    least, most = wilson(1 - share, behind.trials, critical)
    low = ordered.quantile(1 - most)
    # Two-sided at `confidence`, so that the upper side needs as many samples as its own level asks for.
    enough = behind.trials >= minimum_samples(share, (1 + confidence) / 2)
    return estimate, low, ordered.quantile(1 - least) if enough else math.inf


def evidence(seen: Samples, ordered: Sorted, share: float, window: Window) -> Share:
    """The share above the `share` percentile, resting on as few independent samples as any level suggests.

    Samples above a high percentile come in few clusters, and how few is itself badly known from one window.
    Lower percentiles have more clusters and at least as long a memory in a queue, so the fewest independent
    samples seen at the median, p75, p90 and the percentile itself count for it. On an M/M/1 queue at 80 %
    load over 10,000 requests this lifts the coverage of a p99's 95 % interval from 0.80 to 0.97 (of a p95's
    from 0.89 to 0.91); at 90 % load, where over as many requests the queue forgets its state only 26 times,
    a p95's is 0.83.
    """
    levels = [level for level in (0.5, 0.75, 0.9) if level < share]
    found = [batch_share(above(seen, ordered.quantile(level)), window) for level in (share, *levels)]
    least = min(found, key=lambda one: one.trials)
    return msgspec.structs.replace(found[0], trials=least.trials, degrees=least.degrees)


def above(seen: Samples, estimate: float) -> Samples:
    """1 for samples above an estimate, or, where the estimate is infinite, for the infinite ones."""
    bad = seen.values > estimate if math.isfinite(estimate) else ~np.isfinite(seen.values)
    return Samples(at=seen.at, values=bad.astype(np.float64), weights=seen.weights)


def _rank(n: int, share: float, miss: float) -> int:
    """The largest rank r with P(Binomial(n, share) < r) <= miss; 0 where there is none."""
    low, high = 0, n
    while low < high:
        middle = (low + high + 1) // 2
        if binomial_cdf(middle - 1, n, share) <= miss:
            low = middle
        else:
            high = middle - 1
    return low
