"""Steady state: where the warm-up ends, and whether a series stays where it is."""

import math
from itertools import pairwise

import msgspec
import numpy as np

from knee.stats.distributions import normal_cdf
from knee.stats.percentile import Floats

_BATCH = 5


def mser5(values: Floats) -> int:
    """How many leading samples to drop so that the rest has the smallest marginal standard error.

    MSER-5 (White, Cobb and Spratt 2000): means of five samples, and of all cuts in the first half the one
    that minimises the variance of what remains over its number squared. Returns a multiple of 5; a cut at
    half of the series says that no steady state was reached. Values must be finite.
    """
    batches = len(values) // _BATCH
    if batches < 4:
        return 0
    means = values[: batches * _BATCH].reshape(batches, _BATCH).mean(axis=1)
    remaining = np.arange(batches, 0, -1, dtype=np.float64)
    total = np.cumsum(means[::-1])[::-1]
    squares = np.cumsum((means**2)[::-1])[::-1]
    statistic = (squares - total**2 / remaining) / remaining**2
    return int(np.argmin(statistic[: batches // 2 + 1])) * _BATCH


class Trend(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a series drifts: Kendall's tau, and the two-sided probability of as much by chance."""

    tau: float
    p_value: float
    batches: int

    @property
    def stationary(self) -> bool:
        """No trend at the 1 % level."""
        return self.p_value >= 0.01


def trend(values: Floats, batches: int = 16) -> Trend:
    """Mann and Kendall's test (Mann 1945) on the means of equal batches.

    Ranks make it hold for heavy tails, batches for short-range correlation; a correlation that reaches over
    several batches makes it report drift more often than it should, which errs on the side of a warning.
    """
    usable = min(batches, len(values) // 4)
    if usable < 4:
        return Trend(tau=0.0, p_value=1.0, batches=0)
    edges = np.linspace(0, len(values), usable + 1).astype(np.int64)
    means = np.array([values[a:b].mean() for a, b in pairwise(edges)])
    signs = np.sign(means[None, :] - means[:, None])
    score = float(np.triu(signs, 1).sum())
    pairs = usable * (usable - 1) / 2
    _, ties = np.unique(means, return_counts=True)
    variance = (
        usable * (usable - 1) * (2 * usable + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())
    ) / 18
    if variance <= 0:
        return Trend(tau=0.0, p_value=1.0, batches=usable)
    z = (abs(score) - 1) / math.sqrt(variance) if score else 0.0
    return Trend(tau=score / pairs, p_value=min(1.0, 2 * (1 - normal_cdf(max(0.0, z)))), batches=usable)
