"""Quantiles and tails of the normal, Student and binomial distributions, as far as intervals need them."""

import math
from statistics import NormalDist

_NORMAL = NormalDist()


def normal_quantile(probability: float) -> float:
    """The standard normal quantile of `probability` in (0, 1)."""
    return _NORMAL.inv_cdf(probability)


def normal_cdf(value: float) -> float:
    """The standard normal distribution function."""
    return _NORMAL.cdf(value)


def student_quantile(probability: float, degrees: float) -> float:
    """Student's t quantile of `probability` in (0, 1), `degrees` of freedom >= 3.

    Cornish-Fisher expansion (Abramowitz and Stegun 1964, 26.7.5): within 0.3 % for 4 degrees and more at
    the probabilities of usual intervals; infinite degrees give the normal quantile.
    """
    z = normal_quantile(probability)
    if math.isinf(degrees):
        return z
    n = max(3.0, degrees)
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4)
    )


def binomial_cdf(successes: int, trials: int, probability: float) -> float:
    """P(X <= successes) for X binomial, summed term by term from the largest in logarithms."""
    if successes < 0:
        return 0.0
    if successes >= trials or probability <= 0:
        return 1.0
    if probability >= 1:
        return 0.0
    odds = probability / (1 - probability)
    start = min(successes, int((trials + 1) * probability))
    peak = (
        math.lgamma(trials + 1)
        - math.lgamma(start + 1)
        - math.lgamma(trials - start + 1)
        + start * math.log(probability)
        + (trials - start) * math.log1p(-probability)
    )
    total = term = 1.0
    for k in range(start, 0, -1):
        term *= k / ((trials - k + 1) * odds)
        total += term
        if term < total * 1e-15:
            break
    term = 1.0
    for k in range(start, successes):
        term *= (trials - k) * odds / (k + 1)
        total += term
    return min(1.0, math.exp(peak) * total)


def wilson(share: float, trials: float, critical: float) -> tuple[float, float]:
    """The score interval of a share seen in `trials` (which may be an effective, fractional number).

    Wilson 1927, as recommended by Brown, Cai and DasGupta 2001: it keeps its level where the share is near 0
    or 1, even at exactly 0. `critical` is the two-sided critical value (1.96 for 95 %).
    """
    if trials <= 0:
        return 0.0, 1.0
    z2 = critical**2 / trials
    centre = (share + z2 / 2) / (1 + z2)
    half = critical / (1 + z2) * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials))
    return max(0.0, centre - half), min(1.0, centre + half)
