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
    variance, degrees = _variance(_excess(seen, window, batches))
    trials = value * (1 - value) / variance if variance > 0 else math.inf
    return Share(value=value, trials=min(trials, binomial), degrees=degrees, samples=samples)


class Mean(msgspec.Struct, frozen=True, kw_only=True):
    """A mean of correlated samples with its standard error and the degrees of freedom behind that."""

    value: float
    error: float
    degrees: float

    def high(self, confidence: float = 0.95) -> float:
        """The upper end of the two-sided interval of the long-run mean."""
        return self.value + student_quantile((1 + confidence) / 2, self.degrees) * self.error


def batch_mean(seen: Samples, window: Window) -> Mean:
    """The weighted mean of samples in `window` by batch means over equal stretches of time, as `batch_share`.

    Too few samples for batches have an infinite error.
    """
    samples, (start, end) = len(seen), window
    total = float(seen.weights.sum())
    batches = min(MOST_BATCHES, samples // 4)
    value = float((seen.values * seen.weights).sum()) / total if total > 0 else 0.0
    if total <= 0 or batches < FEWEST_BATCHES or end <= start:
        return Mean(value=value, error=math.inf, degrees=3.0)
    spread = float((seen.weights * (seen.values - value) ** 2).sum()) / total
    variance, degrees = _variance(_excess(seen, window, batches))
    return Mean(
        value=value, error=math.sqrt(max(variance, spread / _binomial_trials(seen.weights))), degrees=degrees
    )


def paired_error(one: Samples, other: Samples, window: Window, stretch: float) -> tuple[float, float]:
    """The standard error of the difference of two shares seen under the same arrivals, and its degrees.

    `other` was seen with time divided by `stretch`, so its window is `window` divided by `stretch`. Chance
    that both saw alike cancels batch by batch (a control variate with coefficient one: Lavenberg and Welch
    1981; with batch means: Nelson 1989).
    """
    scaled = (window[0] / stretch, window[1] / stretch)
    batches = min(MOST_BATCHES, len(one) // 4, len(other) // 4)
    if batches < FEWEST_BATCHES:
        return math.inf, 3.0
    variance, degrees = _variance(_excess(one, window, batches) - _excess(other, scaled, batches))
    return math.sqrt(variance), degrees


def _excess(seen: Samples, window: Window, batches: int) -> Floats:
    """Per batch of equal time: what its violations exceed the overall share by, relative to the total."""
    start, end = window
    total = float(seen.weights.sum())
    share = float((seen.values * seen.weights).sum()) / total
    index = np.clip(((seen.at - start) / (end - start) * batches).astype(np.int64), 0, batches - 1)
    bad = np.bincount(index, seen.values * seen.weights, batches)
    found: Floats = (bad - share * np.bincount(index, seen.weights, batches)) / total
    return found


def _variance(excess: Floats) -> tuple[float, float]:
    """The variance of a sum of correlated batches, and its degrees of freedom."""
    while len(excess) // 2 >= FEWEST_BATCHES and _lag1(excess) > 1.645 / math.sqrt(len(excess)):
        excess = excess[: len(excess) // 2 * 2].reshape(-1, 2).sum(axis=1)
    batches = len(excess)
    left = min(0.8, max(0.0, _lag1(excess)))
    variance = float((excess**2).sum()) * batches / (batches - 1) * (1 + left) / (1 - left)
    return variance, batches - 1.0


def _binomial_trials(weights: Floats) -> float:
    """Kish's effective number of samples (Kish 1965) of unequal weights."""
    return float(weights.sum() ** 2 / (weights**2).sum())


def _lag1(values: Floats) -> float:
    """Correlation between neighbours."""
    centred = values - values.mean()
    power = float((centred**2).sum())
    return float((centred[1:] * centred[:-1]).sum()) / power if power > 0 else 0.0
