"""A workload learned from what a server counted: its histograms of request lengths."""

import math

from knee.core.errors import InputError
from knee.core.snapshot import Histogram
from knee.workload.spec import Arrivals, Lengths, Workload

PER_BUCKET = 3
"""Lengths that stand for a bucket: they are spread evenly through it."""


def learn_workload(prompts: Histogram, outputs: Histogram) -> Workload:
    """Poisson arrivals with the lengths of the two histograms, drawn apart (a server counts them apart).

    Raises:
        InputError: a histogram is empty.
    """
    return Workload(
        prompt_tokens=learn_lengths(prompts, "prompt"),
        output_tokens=learn_lengths(outputs, "output"),
        arrivals=Arrivals(),
    )


def learn_lengths(histogram: Histogram, what: str) -> Lengths:
    """Lengths with the shares of the buckets and, as far as these allow, the mean of the histogram.

    Within a bucket lengths are spread evenly, then all are moved towards one end of their buckets by the
    same share until the mean is met. The bucket without upper end is taken to twice its lower one.

    Raises:
        InputError: nothing was counted.
    """
    if histogram.count < 1:
        raise InputError(f"the server has counted no {what} lengths yet", "let it serve real traffic first")
    edges = [0.0, *histogram.bounds, 2 * max(1.0, histogram.bounds[-1] if histogram.bounds else 1.0)]
    cumulative = [0.0, *histogram.counts, histogram.count]
    buckets = [
        (max(1, math.floor(low) + 1), max(1, math.floor(high)), after - before)
        for low, high, before, after in zip(edges, edges[1:], cumulative, cumulative[1:], strict=False)
        if after > before
    ]
    share = _shift(buckets, histogram.sum / histogram.count)
    values, weights = [], []
    for low, high, count in buckets:
        for place in _places(share):
            values.append(round(low + place * (high - low)))
            weights.append(count / PER_BUCKET)
    return Lengths(kind="empirical", values=tuple(values), weights=tuple(weights))


def _places(share: float) -> list[float]:
    """Where in a bucket, from 0 to 1, its lengths lie when `share` is their mean place."""
    reach = min(share, 1 - share)
    return [share + reach * (2 * (i + 0.5) / PER_BUCKET - 1) for i in range(PER_BUCKET)]


def _shift(buckets: list[tuple[int, int, float]], mean: float) -> float:
    """The mean place in the buckets, 0 to 1, at which the mean of all is `mean`."""
    total = sum(count for _, _, count in buckets)
    low = sum(low * count for low, _, count in buckets) / total
    high = sum(high * count for _, high, count in buckets) / total
    return 0.5 if high <= low else min(1.0, max(0.0, (mean - low) / (high - low)))
