"""Percentiles of weighted samples, some of which never finished: those are infinite, never left out."""

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Sorted:
    """Weighted samples in order, so that several percentiles cost one sort.

    `values` may hold infinities; `weights` are positive counts, one each where None.
    """

    def __init__(self, values: Floats, weights: Floats | None = None) -> None:
        order = np.argsort(values, kind="stable")
        self.values: Floats = np.asarray(values, dtype=np.float64)[order]
        held = np.ones(len(order)) if weights is None else np.asarray(weights, dtype=np.float64)[order]
        self.cumulative: Floats = np.cumsum(held)

    @property
    def total(self) -> float:
        """The sum of the weights."""
        return float(self.cumulative[-1]) if len(self.cumulative) else 0.0

    def quantile(self, share: float) -> float:
        """The smallest value with at least `share` of the weight at or below it; NaN without samples.

        The inverse of the empirical distribution function (definition 1 of Hyndman and Fan 1996): it is a
        value that was seen, and it needs no arithmetic between a finite and an infinite neighbour.
        """
        if not len(self.values):
            return math.nan
        wanted = share * self.total * (1 - 1e-12)
        index = int(np.searchsorted(self.cumulative, wanted, side="left"))
        return float(self.values[min(index, len(self.values) - 1)])

    def share_above(self, bound: float) -> float:
        """The share of the weight strictly above `bound`; NaN without samples."""
        if not len(self.values):
            return math.nan
        index = int(np.searchsorted(self.values, bound, side="right"))
        below = float(self.cumulative[index - 1]) if index else 0.0
        return 1 - below / self.total


def quantile(values: Floats, share: float, weights: Floats | None = None) -> float:
    """One percentile of weighted samples; see `Sorted.quantile`."""
    return Sorted(values, weights).quantile(share)


def minimum_samples(share: float, confidence: float = 0.95) -> int:
    """How many independent samples a percentile needs before it has an upper confidence bound at all.

    The largest of n samples lies above the `share` quantile with probability 1 - share**n (order statistics;
    David and Nagaraja 2003, section 7.1): 29 samples for a p90, 59 for a p95, 299 for a p99 at 95 %. With
    fewer, the percentile that is printed is the maximum under another name.
    """
    return math.ceil(math.log(1 - confidence) / math.log(share) - 1e-9)
