"""Token counts drawn from a distribution."""

import math
from collections.abc import Callable

import numpy as np
from numpy.random import Generator

from knee.core.errors import UsageError
from knee.core.requests import Ints
from knee.workload.spec import Lengths

Draw = Callable[[int], Ints]
"""The next n token counts. Drawing n then m gives the same counts as drawing n + m."""


def draw_lengths(lengths: Lengths, generator: Generator) -> Draw:
    """An endless sequence of token counts from `generator`.

    Raises:
        UsageError: the distribution is not one (no values, bounds that cross, a mean below one token).
    """
    check_lengths(lengths)
    return _KINDS[lengths.kind](lengths, generator)


def check_lengths(lengths: Lengths) -> None:
    """See that `lengths` describes a distribution of whole token counts of at least 1.

    Raises:
        UsageError: it does not.
    """
    bounded = lengths.kind in ("uniform", "lognormal")
    if bounded and not 1 <= lengths.low <= lengths.high:
        raise UsageError(
            f"token counts from {lengths.low} to {lengths.high}", "the bounds are 1 <= low <= high"
        )
    if lengths.kind in ("fixed", "lognormal") and not 1 <= lengths.mean < math.inf:
        raise UsageError(f"a mean of {lengths.mean:g} tokens", "a request has at least 1 token")
    if lengths.kind == "lognormal" and not 0 <= lengths.cv < math.inf:
        raise UsageError(f"a coefficient of variation of {lengths.cv:g}", "it is 0 or more")
    if lengths.kind == "empirical":
        check_weighted(lengths.values, lengths.weights)


def check_weighted(values: tuple[int, ...], weights: tuple[float, ...]) -> None:
    """See that `values` are token counts and `weights` (or none) fit them.

    Raises:
        UsageError: they do not.
    """
    if not values or min(values) < 1:
        raise UsageError("an empirical distribution needs values of at least 1 token")
    if weights and (len(weights) != len(values) or min(weights) < 0 or not 0 < sum(weights) < math.inf):
        raise UsageError("weights do not fit their values", "one weight >= 0 a value, not all 0")


def draw_weighted(weights: tuple[float, ...], count: int, generator: Generator) -> Draw:
    """An endless sequence of indices below `count`, each as likely as its weight."""
    if not weights:
        return lambda n: (generator.random(n) * count).astype(np.int64)
    edges = np.cumsum(np.asarray(weights, dtype=np.float64))
    edges /= edges[-1]
    return lambda n: np.searchsorted(edges, generator.random(n), side="right").astype(np.int64)


def _fixed(lengths: Lengths, generator: Generator) -> Draw:  # noqa: ARG001 - every kind takes the same
    return lambda n: np.full(n, round(lengths.mean), dtype=np.int64)


def _uniform(lengths: Lengths, generator: Generator) -> Draw:
    span = lengths.high - lengths.low + 1
    return lambda n: lengths.low + (generator.random(n) * span).astype(np.int64)


def _lognormal(lengths: Lengths, generator: Generator) -> Draw:
    sigma = math.sqrt(math.log1p(lengths.cv**2))
    middle = math.log(lengths.mean) - sigma**2 / 2

    def draw(n: int) -> Ints:
        raw = np.exp(middle + sigma * generator.standard_normal(n))
        drawn: Ints = np.rint(np.clip(raw, lengths.low, lengths.high)).astype(np.int64)
        return drawn

    return draw


def _empirical(lengths: Lengths, generator: Generator) -> Draw:
    values = np.asarray(lengths.values, dtype=np.int64)
    pick = draw_weighted(lengths.weights, len(values), generator)

    def draw(n: int) -> Ints:
        drawn: Ints = values[pick(n)]
        return drawn

    return draw


_KINDS = {"fixed": _fixed, "uniform": _uniform, "lognormal": _lognormal, "empirical": _empirical}
