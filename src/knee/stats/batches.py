"""How much a share of correlated samples can be trusted: batch means over time."""

import math

import msgspec
import numpy as np

from knee.stats.distributions import student_quantile, wilson
from knee.stats.percentile import Floats
from knee.stats.samples import Samples, Window

MOST_BATCHES = 16
FEWEST_BATCHES = 8


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """A share with what it rests on.

    `trials` is the number of independent samples that would tell as much (never more than the samples
    there are), `degrees` the degrees of freedom of the variance behind it.
    """

    value: float
    trials: float
    degrees: float
    samples: int

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Two-sided bounds of the long-run share; (0, 1) without samples."""
        if self.trials <= 0:
            return 0.0, 1.0
        return wilson(self.value, self.trials, student_quantile((1 + confidence) / 2, self.degrees))


def batch_share(seen: Samples, window: Window) -> Share:
    """The weighted share of samples that are 1 among `seen`, which are 0 or 1, in `window`.

    Batch means over equal stretches of time, a ratio estimator where weights differ (Cochran 1977, ch. 6).
    Beginning with 16 batches, neighbours are joined until no correlation between them is seen, down to 8;
    what correlation is left inflates the variance as in Skart (Tafazzoli and Wilson 2011).
    The independent samples behind one weight (many tokens share one gap) do not count separately: the
    variance is never taken below that of `len(seen)` independent samples.
    """
    samples, weights, (start, end) = len(seen), seen.weights, window
    total = float(weights.sum())
    if samples == 0 or total <= 0:
        return Share(value=math.nan, trials=0.0, degrees=math.inf, samples=0)
    value = float((seen.values * weights).sum()) / total
    binomial = _binomial_trials(weights)
    batches = min(MOST_BATCHES, samples // 4)
    if value in (0.0, 1.0) or batches < FEWEST_BATCHES or end <= start:
        return Share(value=value, trials=binomial, degrees=max(3.0, samples - 1.0), samples=samples)
    index = np.clip(((seen.at - start) / (end - start) * batches).astype(np.int64), 0, batches - 1)
    weight = np.bincount(index, weights, batches)
    excess = np.bincount(index, seen.values * weights, batches) - value * weight
    while batches // 2 >= FEWEST_BATCHES and _lag1(excess) > 1.645 / math.sqrt(batches):
        batches //= 2
        excess = excess[: 2 * batches].reshape(batches, 2).sum(axis=1)
    left = min(0.8, max(0.0, _lag1(excess)))
    variance = float((excess**2).sum()) * batches / (batches - 1) / total**2 * (1 + left) / (1 - left)
    trials = value * (1 - value) / variance if variance > 0 else math.inf
    return Share(value=value, trials=min(trials, binomial), degrees=batches - 1.0, samples=samples)


def _binomial_trials(weights: Floats) -> float:
    """Kish's effective number of samples (Kish 1965) of unequal weights."""
    return float(weights.sum() ** 2 / (weights**2).sum())


def _lag1(values: Floats) -> float:
    """Correlation between neighbours."""
    centred = values - values.mean()
    power = float((centred**2).sum())
    return float((centred[1:] * centred[:-1]).sum()) / power if power > 0 else 0.0
