"""Admission limits from a measured knee.

Little's law gives the requests in flight at the knee: rate x time in system. Under overload the bound is held
all the time instead of touched now and then, so the margin is the swing that the point itself went through
(two standard deviations of a Poisson count), not a round percentage.
"""

import math
from collections.abc import Sequence

from knee.core.errors import InputError
from knee.core.point import Knee, Point
from knee.core.slo import Slo
from knee.core.units import NS_PER_MS, NS_PER_S
from knee.policy.admission import Limits

SWING = 2.0
LONGEST_QUEUE_NS = 2 * NS_PER_S
DEFAULT_QUEUE_NS = NS_PER_S // 2


def limits_from_knee(knee: Knee, points: Sequence[Point]) -> Limits:
    """The limits of one replica whose sweep gave `knee` and `points`.

    In flight: the rate that holds x the mean time in system there, plus twice its square root. Queue
    deadline: half of what the TTFT and E2E objectives leave above the values measured at that point, so that
    a request which had to wait still meets them; half a second without such an objective, two seconds at
    most. Queue: what the knee drains in half the deadline, so that hardly a request waits in vain and those
    that cannot be served are told so at once. Burst: what the knee serves in half the TTFT
    objective (half a second without one), so that a crowd at an idle replica has its first tokens in time.

    Raises:
        InputError: no rate was shown to hold, or its point says nothing about the time in system.
    """
    point = _knee_point(knee, points)
    mean_ms = point.e2e_ms.mean_finite
    if mean_ms is None or mean_ms <= 0:
        raise InputError(f"the point at {point.rate:g} req/s has no finished request", "sweep again")
    in_flight = point.rate * mean_ms / 1000
    deadline_ns = _queue_deadline_ns(point)
    return Limits(
        max_in_flight=max(1, math.ceil(in_flight + SWING * math.sqrt(in_flight))),
        max_queue=math.floor(point.rate * deadline_ns / 2 / NS_PER_S),
        queue_deadline_ns=deadline_ns,
        drain_rate=point.rate,
        burst=max(1, math.ceil(point.rate * _burst_ns(knee.slo) / NS_PER_S)),
    )


def _knee_point(knee: Knee, points: Sequence[Point]) -> Point:
    if knee.holds is None:
        raise InputError(f"no rate was shown to hold the SLO ({knee.reason})", "sweep lower rates first")
    usable = [point for point in points if not point.invalid and point.max_concurrency is None]
    near = [point for point in usable if point.rate <= knee.holds * 1.000001]
    if not near:
        raise InputError(f"the run has no valid point at or below {knee.holds:g} req/s", "sweep again")
    return max(near, key=lambda point: point.rate)


def _burst_ns(slo: Slo) -> int:
    bounds_ms = [objective.bound for objective in slo.objectives if objective.metric == "ttft"]
    return round(min(bounds_ms) / 2 * NS_PER_MS) if bounds_ms else DEFAULT_QUEUE_NS


def _queue_deadline_ns(point: Point) -> int:
    slack_ms = [
        judged.objective.bound - judged.value
        for judged in point.judged
        if judged.objective.metric in ("ttft", "e2e") and judged.value is not None
    ]
    if not slack_ms:
        return DEFAULT_QUEUE_NS
    return min(LONGEST_QUEUE_NS, max(0, round(min(slack_ms) / 2 * NS_PER_MS)))
