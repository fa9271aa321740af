"""Does the backlog grow without bound, or only wander? A test that a point at capacity passes."""

import math

import msgspec
import numpy as np

from knee.stats.percentile import Floats

CRITICAL = 4.0
"""Standard deviations of a wandering backlog that call it growth. The backlog of a server at exactly its
capacity is a reflected random walk, so backlog / sd is the absolute value of a normal variable: above 4 with
probability 6e-5 at one look, and below 0.5 % over the looks of a whole run (law of the iterated logarithm).
"""


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """A backlog at the end of a stretch against what chance would leave there.

    `slope` is its drift in requests per second, `score` the backlog in standard deviations of a driftless
    one, `steady` the share of the final backlog per half: about 0.5 for linear growth, 0.71 for one like
    sqrt(t).
    """

    slope: float
    score: float
    steady: float

    @property
    def grows(self) -> bool:
        """Whether growth without bound is the only reasonable reading."""
        return self.score > CRITICAL and 0.2 <= self.steady <= 0.8


def backlog_growth(arrived: Floats, started: Floats, end: float, work_cv: float = 0.0) -> Growth:
    """Test whether the number of requests that wait for their first token grows up to the instant `end`.

    `arrived` are due instants and `started` the instants of first tokens (inf where there was none yet), in
    seconds; `work_cv` the coefficient of variation of the work of one request, where it is known.

    At exactly capacity the backlog grows like sqrt(t) (a random walk), which a fitted slope takes for growth.
    So the backlog is compared with the standard deviation of the walk, sqrt(c t): c is the variance
    per second of arrivals minus starts, of which arrivals contribute their own (from their counts in 32
    stretches) and starts their rate times `work_cv` squared. Heavy-tailed lengths widen it through `work_cv`,
    and requests that merely run for long are no backlog at all: only those without a first token are.
    """
    arrived = arrived[arrived < end]
    if len(arrived) < 32:
        return Growth(slope=0.0, score=0.0, steady=0.0)
    begin = float(arrived[0])
    length = end - begin
    started = started[started < end]
    backlog = len(arrived) - len(started)
    half = begin + length / 2
    at_half = int((arrived < half).sum()) - int((started < half).sum())
    counts = np.histogram(arrived, bins=32, range=(begin, end))[0]
    per_second = max(float(counts.var(ddof=1)) * 32 / length, len(arrived) / length)
    per_second += len(started) / length * work_cv**2
    score = backlog / math.sqrt(per_second * length)
    return Growth(slope=backlog / length, score=score, steady=at_half / backlog if backlog else 0.0)
