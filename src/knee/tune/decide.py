"""Better, worse, or not to be told apart: two knees with their intervals."""

import math
from typing import Literal

import msgspec

from knee.core.point import Knee

Verdict = Literal["better", "worse", "within noise"]


class Comparison(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`after` over `before`: the factor on the knee with its interval; None where one of them has no knee."""

    verdict: Verdict
    factor: float | None = None
    low: float | None = None
    high: float | None = None


def compare_knees(before: Knee, after: Knee) -> Comparison:
    """Whether `after` is a higher knee than `before`, beyond noise.

    The logarithms of both knees are taken to err independently, each by half the width of its interval, so
    their difference errs by the root of the sum of squares. Where an end of an interval is missing, only
    intervals that do not overlap tell the two apart.
    """
    if before.holds is None and before.estimate is None:
        return Comparison(verdict="better" if after.holds is not None else "within noise")
    if after.holds is None and after.estimate is None:
        return Comparison(verdict="worse")
    spreads = [_half_width(knee) for knee in (before, after)]
    if None in spreads or before.estimate is None or after.estimate is None:
        return Comparison(verdict=_apart(before, after))
    ratio = math.log(after.estimate / before.estimate)
    reach = math.hypot(*(spread or 0.0 for spread in spreads))
    verdict: Verdict = "within noise"
    if abs(ratio) > reach:
        verdict = "better" if ratio > 0 else "worse"
    return Comparison(
        verdict=verdict, factor=math.exp(ratio), low=math.exp(ratio - reach), high=math.exp(ratio + reach)
    )


def _half_width(knee: Knee) -> float | None:
    if knee.holds is None or knee.breaks is None:
        return None
    return math.log(knee.breaks / knee.holds) / 2


def _apart(before: Knee, after: Knee) -> Verdict:
    if before.breaks is not None and after.holds is not None and after.holds > before.breaks:
        return "better"
    if after.breaks is not None and before.holds is not None and after.breaks < before.holds:
        return "worse"
    return "within noise"
