"""At which rate does a share of violations cross what is allowed? An interval from points around it."""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from knee.stats.percentile import Floats

_RATES = 601
_SLOPES = np.exp(np.linspace(math.log(0.5), math.log(2000), 73))
_SLOPE_SPREAD = 1.0
_REACH = 0.25
_TRUST = 0.5
"""The weight of a point: its independent samples are themselves counted from few clusters."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One point: at `rate` a `share` of violations, worth `trials` independent samples."""

    rate: float
    share: float
    trials: float
    degrees: float = math.inf


class Crossing(msgspec.Struct, frozen=True, kw_only=True):
    """The rate at which the allowed share is reached: bounds, the likeliest rate, and the steepness there.

    `slope` is the rise of the log odds of a violation per unit of log rate. `misfit` is the mean squared
    deviation of the points from the fitted curve in units of their own noise (1 where noise explains it).
    """

    low: float
    estimate: float
    high: float
    slope: float
    misfit: float

    @property
    def half_width(self) -> float:
        """Half of the interval over the estimate."""
        return (self.high - self.low) / 2 / self.estimate


def find_crossing(
    points: Sequence[Seen],
    allowed: float,
    ceiling: float,
    ceiling_error: float = 0.03,
    confidence: float = 0.95,
) -> Crossing:
    """Where the curve of violations crosses `allowed`, from points on any side of it.

    The log odds of a violation rise linearly with the log of the rate near the crossing: the tail of a
    queue's wait is exponential with a decay that shrinks linearly as load nears capacity (Kingman 1962;
    Abate, Choudhury and Whitt 1995). Crossing and slope get a posterior on a grid: the likelihood is
    binomial in effective samples with Student tails in the deviance (so that a point with an underestimated
    variance cannot decide alone), the prior of the crossing is flat in the log of the rate up to `ceiling`
    (the capacity, as far as known) and fades above it with its relative error, that of the slope log-normal
    around the slope which the same law gives for a capacity of `ceiling`. Points far from the crossing count
    less, since the law is local.

    Raises:
        ValueError: there are no points.
    """
    if not points:
        raise ValueError("a crossing needs points")
    rates = [point.rate for point in points]
    top = max(max(rates) * 1.1, ceiling * max(1.25, 1 + 4 * ceiling_error))
    grid = np.linspace(math.log(min(*rates, ceiling)) - 1.2, math.log(top), _RATES)
    prior = _log_prior(grid, allowed, math.log(ceiling), ceiling_error)
    posterior = _posterior(points, allowed, prior, grid, centre=None)
    centre = float(grid[int(np.searchsorted(_cumulated(posterior.sum(axis=1)), 0.5))])
    posterior = _posterior(points, allowed, prior, grid, centre)
    cumulated = _cumulated(posterior.sum(axis=1))
    low, middle, high = (
        float(np.exp(np.interp(level, cumulated, grid)))
        for level in ((1 - confidence) / 2, 0.5, (1 + confidence) / 2)
    )
    slope = float(np.exp(np.average(np.log(_SLOPES), weights=posterior.sum(axis=0))))
    misfit = _misfit(points, allowed, math.log(middle), slope)
    return Crossing(low=low, estimate=middle, high=high, slope=slope, misfit=misfit)


def _posterior(
    points: Sequence[Seen], allowed: float, log_prior: Floats, grid: Floats, centre: float | None
) -> Floats:
    """Weights over (crossing, slope), normalised."""
    total = log_prior.copy()
    for point in points:
        distance = math.log(point.rate) - grid
        law = _deviance(point, _logit(allowed) + _SLOPES[None, :] * distance[:, None])
        # Far away the law may fail, but what held still lies below the crossing, and what broke above.
        at_bound = _deviance(point, np.array(_logit(allowed)))
        contradicts = (distance > 0) == (point.share < allowed)
        side = np.where(contradicts, at_bound, 0.0)[:, None]
        local = 1.0
        if centre is not None:
            local = math.exp(-0.5 * ((math.log(point.rate) - centre) / _REACH) ** 2)
        total -= _TRUST * (local * _log_odds(law, point) + (1 - local) * _log_odds(side, point))
    found: Floats = np.exp(total - total.max())
    found /= found.sum()
    return found


def _log_odds(deviance: Floats, point: Seen) -> Floats:
    """The log likelihood lost to a deviance, with Student tails for a variance that is itself estimated."""
    degrees = max(3.0, min(point.degrees, 30.0))
    lost: Floats = (degrees + 1) / 2 * np.log1p(deviance / degrees)
    return lost


def _log_prior(grid: Floats, allowed: float, ceiling: float, error: float) -> Floats:
    """Flat in the crossing up to the ceiling, then fading; slopes around what the tail law gives."""
    room = np.maximum(0.01, 1 - np.exp(grid - ceiling))
    expected = np.log(np.clip(-math.log(allowed) / room, 5, 300))
    slopes = -0.5 * ((np.log(_SLOPES)[None, :] - expected[:, None]) / _SLOPE_SPREAD) ** 2
    above = np.maximum(0.0, grid - ceiling)
    prior: Floats = slopes - 0.5 * (above / error)[:, None] ** 2
    return prior


def _deviance(point: Seen, logit: Floats) -> Floats:
    """Twice the log likelihood ratio of the share against each predicted one."""
    logit = np.clip(logit, -40, 40)
    share = min(1.0, max(0.0, point.share))
    yes = share * (math.log(share) + np.log1p(np.exp(-logit))) if share > 0 else 0.0
    no = (1 - share) * (math.log1p(-share) + np.log1p(np.exp(logit))) if share < 1 else 0.0
    found: Floats = 2 * point.trials * np.maximum(0.0, yes + no)
    return found


def _misfit(points: Sequence[Seen], allowed: float, crossing: float, slope: float) -> float:
    near = [point for point in points if abs(math.log(point.rate) - crossing) < _REACH]
    if len(near) < 2:
        return 1.0
    logits = [np.array(_logit(allowed) + slope * (math.log(point.rate) - crossing)) for point in near]
    return float(np.mean([_deviance(point, logit) for point, logit in zip(near, logits, strict=True)]))


def _cumulated(weights: Floats) -> Floats:
    return np.cumsum(weights) - weights / 2


def _logit(share: float) -> float:
    return math.log(share / (1 - share))
