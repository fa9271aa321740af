"""Fit the step cost of a batch engine closely, on a machine whose pace may change."""

from collections.abc import Sequence

import numpy as np

from knee.core.requests import Ints, Observed
from knee.measure.model.fitting import FEWEST_BINS, WORTH, StepFit, bins_of, nonnegative, step_fit, weighted
from knee.stats.percentile import Floats

_CHANCE = 4.0
"""A term that means nothing lowers the sum of absolute errors by about one part in the number of bins."""
_TURNS = 20
_SMALL = 0.01
"""Relative errors below this weigh alike, so that no bin decides alone."""
_ROUNDS = 8
"""Turns of pace and costs; more hardly move them."""


def fit_steps_closely(seen: Sequence[Observed]) -> StepFit | None:
    """As `fit_steps`, for predictions far from what was seen; None where there are too few gaps.

    Three things matter there that one point's control variate can do without. A stall of the machine
    lengthens a step and, as requests go on arriving, fills the batch, so that least squares take the stall
    for the cost of a sequence: here the sum of absolute relative errors is least instead (iteratively
    reweighted, Schlossmacher 1973), which a few long bins hardly move. A machine that is slow for seconds
    fills the batch for as long: blocks of time have a pace of their own (`_paces`), so that costs are told
    apart within them. Slow times come at any load, so all parts are then scaled until they add up to the time
    that was seen. And a step that reads prompts costs something beyond their tokens, which larger batches
    share: it is told from the tokens where prompts came together. Prefill steps are left out where they
    explain no more than chance would, and context as in `fit_steps`.
    """
    table = bins_of(seen)
    if len(table) < FEWEST_BINS:
        return None
    blocks = np.unique(table[:, -1], return_inverse=True)[1]
    times, causes = table[:, 0], table[:, 1:-1]
    kept = [*range(causes.shape[1])]
    found, error = _paced(times, causes, blocks)
    for optional, worth in ((3, WORTH), (4, 1 + _CHANCE / len(table))):
        fewer = [column for column in kept if column != optional]
        simple, simple_error = _paced(times, causes[:, fewer], blocks)
        if simple_error < error * worth:
            kept, found, error = fewer, simple, simple_error
    whole = np.zeros(causes.shape[1])
    whole[kept] = found
    if not whole.any():
        return None
    whole *= times.sum() / (causes @ whole).sum()
    return step_fit(whole, _squared_error(times, causes @ whole))


def _paced(times: Floats, causes: Floats, blocks: Ints) -> tuple[Floats, float]:
    """As `_least_absolute`, each block of time at a pace of its own: pace and costs are found in turns."""
    found, error = _least_absolute(times, causes)
    for _ in range(_ROUNDS):
        even = times / _paces(times / np.maximum(causes @ found, 0.1 * times), blocks)[blocks]
        found, error = _least_absolute(even, causes)
    return found, error


def _paces(off: Floats, blocks: Ints) -> Floats:
    """How many times as long as fitted each block of bins took; about 1 on the whole.

    `off` is what each bin took over what was fitted. Blocks differ by chance, too: each median is drawn
    towards 1 by the share of its variance that the bins' own scatter explains (best linear prediction of a
    random effect, Robinson 1991), so that a steady machine has the same pace throughout.
    """
    count = np.bincount(blocks)
    order = np.argsort(blocks, kind="stable")
    parts = np.split(np.log(off)[order], np.cumsum(count)[:-1])
    middle = np.array([np.median(part) for part in parts])
    middle -= np.average(middle, weights=count)
    chance = ((np.log(off) - middle[blocks]) ** 2).mean() / count
    swing = max(0.0, float(np.average(middle**2 - chance, weights=count)))
    found: Floats = np.exp(middle * swing / (swing + chance)) if swing else np.ones(len(count))
    return found


def _least_absolute(times: Floats, causes: Floats) -> tuple[Floats, float]:
    """Coefficients >= 0 with the least mean of absolute errors, relative to the fitted times; that mean."""
    found, _ = weighted(times, causes)
    for _ in range(_TURNS):
        fitted = np.maximum(causes @ found, 0.1 * times)
        off = np.abs(times / fitted - 1)
        weights = 1 / (fitted * np.sqrt(np.maximum(off, _SMALL)))
        found = nonnegative(times * weights, causes * weights[:, None])
    fitted = np.maximum(causes @ found, 0.1 * times)
    return found, float(np.abs(times / fitted - 1).mean())


def _squared_error(times: Floats, fitted: Floats) -> float:
    """The relative residual, root mean square."""
    return float(np.sqrt(((times / np.maximum(fitted, 0.1 * times) - 1) ** 2).mean()))
