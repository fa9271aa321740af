"""Better, worse, or not to be told apart: two knees with their intervals, by the comparison of runs."""

import math
from typing import Literal

import msgspec

from knee.core.point import Knee
from knee.stats.compare import Measurement, compare, from_interval, pooled

Verdict = Literal["better", "worse", "within noise"]

MARGIN = 0.01
"""A knee that is known to be higher by less than this is not worth a different flag."""


LOOKS_BETTER, WIDE = 1.04, 1.2
"""A factor above the first, known no better than to the second, is worth a second sweep."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`after` over `before`: the factor on the knee with its interval; None where one of them has no knee."""

    verdict: Verdict
    factor: float | None = None
    low: float | None = None
    high: float | None = None


def compare_knees(before: Knee, after: Knee, *, repeatable: bool = False) -> Comparison:
    """Whether `after` is a higher knee than `before`, beyond noise (see `stats.compare`).

    Two starts of one real server differ by more than an interval from inside one sweep shows; `repeatable`
    says that there is no such noise, as in virtual time. Where an end of an interval is missing, only
    intervals that do not overlap tell the two apart.
    """
    if before.holds is None and before.estimate is None:
        return Comparison(verdict="better" if after.holds is not None else "within noise")
    if after.holds is None and after.estimate is None:
        return Comparison(verdict="worse")
    first, second = _measured(before, repeatable), _measured(after, repeatable)
    if first is None or second is None:
        return Comparison(verdict=_apart(before, after))
    found = compare(first, second, margin=MARGIN, higher_is_better=True)
    verdict: Verdict = "within noise"
    if found.verdict in ("improved", "regressed"):
        verdict = "better" if found.verdict == "improved" else "worse"
    return Comparison(verdict=verdict, factor=1 + found.change, low=1 + found.low, high=1 + found.high)


def pooled_knee(one: Knee, other: Knee) -> Knee:
    """Two measurements of one knee as one, weighed by their intervals; `other` where one has none."""
    known = [knee for knee in (one, other) if knee.estimate and knee.holds and knee.breaks]
    if len(known) < 2:
        return other
    logs = [math.log(knee.estimate or 1.0) for knee in known]
    reaches = [max(1e-6, math.log((knee.breaks or 1.0) / (knee.holds or 1.0)) / 2) for knee in known]
    weights = [1 / reach**2 for reach in reaches]
    middle = sum(w * at for w, at in zip(weights, logs, strict=True)) / sum(weights)
    reach = 1 / math.sqrt(sum(weights))
    return msgspec.structs.replace(
        other,
        estimate=math.exp(middle),
        holds=math.exp(middle - reach),
        breaks=math.exp(middle + reach),
        reason=f"two sweeps together; the second: {other.reason}",
    )


def undecided(found: Comparison) -> bool:
    """Whether it looks better, and only an interval that is wide keeps it from being told."""
    if found.verdict != "within noise" or found.factor is None or not found.low or not found.high:
        return False
    return found.factor > LOOKS_BETTER and found.high / found.low > WIDE


def _measured(knee: Knee, repeatable: bool) -> Measurement | None:
    if not knee.estimate or not knee.holds or knee.breaks is None:
        return None
    one = from_interval(knee.estimate, knee.holds, knee.breaks, knee.confidence)
    if math.isinf(one.error):
        return None
    return one if repeatable else pooled([one])


def _apart(before: Knee, after: Knee) -> Verdict:
    if before.breaks is not None and after.holds is not None and after.holds > before.breaks:
        return "better"
    if after.breaks is not None and before.holds is not None and after.breaks < before.holds:
        return "worse"
    return "within noise"
