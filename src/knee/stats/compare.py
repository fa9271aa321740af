"""Better, worse, the same, or not to be told: two measured values with their noise."""

import math
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from knee.stats.distributions import normal_quantile, student_quantile

Verdict = Literal["regressed", "improved", "unchanged", "inconclusive"]

BETWEEN_RUNS = 0.02
"""Standard deviation of the log of a latency between runs of one server, beyond what varies inside a run.

It is taken where runs were not repeated. Identical runs of a quiet server differ by some 1 to 2 %; an
interval from inside one run does not see that.
"""


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """A positive value with the standard error of its log."""

    value: float
    error: float


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Candidate over baseline, minus 1, with its interval; what follows at a margin."""

    change: float
    low: float
    high: float
    verdict: Verdict


def from_interval(value: float, low: float, high: float, confidence: float = 0.95) -> Measurement:
    """A measurement from an interval around it, on the log scale; the wider side counts."""
    reach = normal_quantile((1 + confidence) / 2)
    sides = [abs(math.log(end / value)) for end in (low, high) if end > 0]
    return Measurement(value=value, error=max(sides, default=math.inf) / reach)


def pooled(runs: Sequence[Measurement]) -> Measurement:
    """Repeated runs as one: the mean of the logs, with the error that their spread shows.

    Three runs or more know their spread themselves; of one or two the error inside a run counts as well, and
    a single run is given the usual noise between runs.
    """
    logs = np.log([run.value for run in runs])
    count = len(runs)
    inside = math.sqrt(sum(run.error**2 for run in runs)) / count
    if count == 1:
        return Measurement(value=runs[0].value, error=math.hypot(inside, BETWEEN_RUNS))
    # Few runs know their own spread badly: Student's quantile over the normal one widens it.
    widen = student_quantile(0.975, max(3, count - 1)) / normal_quantile(0.975)
    between = float(logs.std(ddof=1)) / math.sqrt(count) * widen
    floor = BETWEEN_RUNS / math.sqrt(count)
    error = max(between, floor) if count > 2 else max(inside, between, floor)
    return Measurement(value=float(np.exp(logs.mean())), error=error)


def compare(
    baseline: Measurement,
    candidate: Measurement,
    *,
    margin: float,
    comparisons: int = 1,
    higher_is_better: bool = False,
    confidence: float = 0.95,
) -> Difference:
    """The verdict on candidate against baseline at an equivalence margin (relative, like 0.05).

    `unchanged` needs proof: the whole interval of the ratio inside the margin (two one-sided tests,
    Schuirmann 1987). `regressed` and `improved` need an interval without 1 and a change beyond the margin.
    Everything else is `inconclusive`. `comparisons` made together share the error (Bonferroni).
    """
    middle = math.log(candidate.value / baseline.value)
    error = math.hypot(baseline.error, candidate.error)
    reach = normal_quantile(1 - (1 - confidence) / 2 / comparisons) * error
    low, high = middle - reach, middle + reach
    edge = math.log1p(margin)
    verdict: Verdict = "inconclusive"
    if -edge < low and high < edge:
        verdict = "unchanged"
    elif low > 0 and middle > edge:
        verdict = "improved" if higher_is_better else "regressed"
    elif high < 0 and middle < -edge:
        verdict = "regressed" if higher_is_better else "improved"
    return Difference(change=math.expm1(middle), low=math.expm1(low), high=math.expm1(high), verdict=verdict)
