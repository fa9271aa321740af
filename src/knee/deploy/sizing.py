"""The numbers of a deployment, each with the sentence that says where it comes from.

Pure arithmetic on a `Lock`: nothing here knows what a manifest looks like.
"""

import math

import msgspec

from knee.core.errors import NoAnswer, UsageError
from knee.core.lock import Lock
from knee.core.point import Point, Summary
from knee.deploy.commented import Because
from knee.policy.limits import limits_from_knee

HEADROOM = 0.8
"""Share of the knee at which a replica is kept: scaling up takes a start-up time, and load does not wait."""

PROPAGATION_S = 15
"""Seconds from a pod's removal until the last proxy knows: not measured. It covers the 5 s for which cluster
DNS answers are kept by default (CoreDNS, `kubernetes` plugin, ttl) and three readings of them."""

TEARDOWN_S = 15
"""Seconds a vLLM needs to exit once its last stream ended. 6.6 s were measured on vLLM 0.32 (CPU build)."""

STARTUP_FACTOR = 2.5
"""Between two and three times the measured start: a cold node reads weights from further away."""

TAIL_FACTORS = {"p99": 2.0, "p95": 2.5, "p90": 3.0, "p50": 4.0}
"""How much longer than a percentile the longest response may be: assumed, the more the less is known."""

STARTUP_UNMEASURED_S = 1800
STARTUP_FLOOR_S = 60


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What only the operator knows. Durations in seconds, rates in requests/s; None: derive it."""

    startup_s: float | None = None
    startup_source: str = ""
    longest_response_s: float | None = None
    peak_rate: float | None = None
    min_replicas: int = 2
    max_replicas: int | None = None


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Every number that the manifests need; times in whole seconds."""

    probe_period: Because
    startup_failures: Because
    startup_allowed_s: int
    startup_s: float
    drain: Because
    pre_stop: Because
    grace: Because
    progress_deadline: Because
    min_replicas: Because
    max_replicas: Because
    in_flight_limit: Because
    engine_queue_limit: Because
    scale_waiting: Because
    scale_in_flight: Because


def size(lock: Lock, asked: Asked, drains: bool = True) -> Sizes:
    """The sizes that follow from `lock`.

    `drains` is whether this vLLM has `--shutdown-timeout`: without it SIGTERM ends running requests at once,
    and the wait before SIGTERM has to be long enough for them instead.

    Raises:
        NoAnswer: the lock shows no rate at which the SLO holds, or no point there.
        UsageError: what was asked contradicts itself.
    """
    point = _point(lock)
    rate = float(lock.knee.holds or 0.0)
    allowed, period, failures, startup_s = startup_budget(
        asked.startup_s if asked.startup_s is not None else lock.startup_s, asked.startup_source
    )
    drain = _drain(point, asked)
    pre_stop = (
        Because(PROPAGATION_S, "not measured: cluster DNS keeps an answer for 5 s, read three times")
        if drains
        else Because(
            PROPAGATION_S + drain.value,
            f"{PROPAGATION_S} s until no proxy sends here + {drain.value} s: this vLLM aborts on SIGTERM",
        )
    )
    stop_s = drain.value if drains else 0
    grace = pre_stop.value + stop_s + TEARDOWN_S
    low, high = _replicas(rate, asked)
    in_flight, limit = _in_flight(lock, point)
    waiting = _waiting(point)
    near = f"{point.rate:.3g} req/s, near the knee"
    return Sizes(
        probe_period=period,
        startup_failures=failures,
        startup_allowed_s=allowed,
        startup_s=startup_s,
        drain=drain,
        pre_stop=pre_stop,
        grace=Because(
            grace,
            f"preStop {pre_stop.value} s + shutdown-timeout {stop_s} s + teardown {TEARDOWN_S} s"
            " (6.6 s measured on vLLM 0.32)",
        ),
        progress_deadline=Because(
            allowed + 300, f"startup probe {allowed} s + 300 s to schedule and pull the image (assumed)"
        ),
        min_replicas=low,
        max_replicas=high,
        in_flight_limit=limit,
        engine_queue_limit=Because(
            2 * limit.value, f"backstop: twice the router's bound of {limit.value} in flight per replica"
        ),
        scale_waiting=Because(waiting, f"waiting per replica at {near}; at least 1"),
        scale_in_flight=Because(
            max(1, math.floor(HEADROOM * in_flight)),
            f"{HEADROOM:.0%} of the {in_flight:.1f} requests in flight at {near}",
        ),
    )  # fmt: skip


def startup_budget(measured_s: float | None, source: str = "") -> tuple[int, Because, Because, float]:
    """Seconds allowed, probe period, failure threshold, and the start-up time they stand on.

    Raises:
        UsageError: the measured time is not positive.
    """
    if measured_s is None:
        allowed = STARTUP_UNMEASURED_S
        why = "not measured: half an hour is assumed; give --startup-log"
        startup_s = allowed / STARTUP_FACTOR
    elif measured_s <= 0 or not math.isfinite(measured_s):
        raise UsageError(f"a start-up time is positive: {measured_s:g} s")
    else:
        allowed, startup_s = max(STARTUP_FLOOR_S, math.ceil(STARTUP_FACTOR * measured_s)), measured_s
        seen = f"{measured_s:.1f} s measured" + (f" in {source}" if source else "")
        why = f"{STARTUP_FACTOR:g} x {seen}" if allowed > STARTUP_FLOOR_S else f"a minute; {seen}"
    period = 10 if allowed >= 100 else 5
    failures = math.ceil(allowed / period)
    return (
        failures * period,
        Because(period, "how late a ready replica is noticed, at most"),
        Because(failures, f"x {period} s = {failures * period} s: {why}"),
        startup_s,
    )


def _point(lock: Lock) -> Point:
    if lock.knee.holds is None:
        raise NoAnswer(f"no rate was shown to hold the SLO: {lock.knee.reason}", "a deployment needs a knee")
    if lock.at_knee is None:
        raise NoAnswer("the point at the knee is missing, so time in system there is not known")
    return lock.at_knee


def _drain(point: Point, asked: Asked) -> Because:
    if asked.longest_response_s is not None:
        if asked.longest_response_s <= 0:
            raise UsageError(f"a response takes time: {asked.longest_response_s:g} s")
        return Because(_round_up(asked.longest_response_s, 5), "the longest response, as given")
    tail_ms, name, factor = _tail(point.e2e_ms)
    return Because(
        max(10, _round_up(factor * tail_ms / 1000, 5)),
        f"{factor:g} x the {name} of a whole response near the knee ({tail_ms / 1000:.1f} s), at least 10 s",
    )


def _tail(summary: Summary) -> tuple[float, str, float]:
    """The highest percentile that is known, in ms, its name, and by how much the longest may exceed it.

    Raises:
        NoAnswer: not even the median is finite.
    """
    for name, factor in TAIL_FACTORS.items():
        value = getattr(summary, name)
        if value is not None:
            return float(value), name, factor
    raise NoAnswer("no response ended at the knee, so how long one takes is not known")


def _replicas(rate: float, asked: Asked) -> tuple[Because, Because]:
    if asked.min_replicas < 1:
        raise UsageError("at least one replica")
    low = Because(
        asked.min_replicas,
        "two: one may fail or be drained" if asked.min_replicas == 2 else "as given with --min-replicas",
    )
    if asked.max_replicas is not None:
        if asked.max_replicas < low.value:
            raise UsageError(f"--max-replicas {asked.max_replicas} is below --min-replicas {low.value}")
        return low, Because(asked.max_replicas, "as given with --max-replicas")
    if asked.peak_rate is not None:
        if asked.peak_rate <= 0:
            raise UsageError(f"a peak rate is positive: {asked.peak_rate:g}")
        need = math.ceil(asked.peak_rate / (HEADROOM * rate))
        return low, Because(
            max(low.value, need + 1),
            f"peak {asked.peak_rate:g} req/s ÷ ({HEADROOM:.0%} of {rate:.3g} req/s) = {need}, and one spare",
        )
    return low, Because(2 * low.value, "assumed: twice the minimum; give --peak-rate")


def _in_flight(lock: Lock, point: Point) -> tuple[float, Because]:
    """Mean requests in flight at the knee (Little: rate x time in system), and the bound just above."""
    seconds = (point.e2e_ms.mean_finite or 0.0) / 1000
    mean = point.rate * seconds
    limit = limits_from_knee(lock.knee, [point]).max_in_flight
    return mean, Because(
        limit,
        f"{point.rate:.3g} req/s x {seconds:.2f} s in system = {mean:.1f} in flight near the knee,"
        " plus two standard deviations",
    )


def _waiting(point: Point) -> int:
    """Mean of `num_requests_waiting` at the knee over all engines of the replica, at least 1."""
    if point.window is None:
        return 1
    gauges = [engine.gauges.get("num_requests_waiting") for engine in point.window.engines.values()]
    return max(1, math.ceil(sum(gauge.mean for gauge in gauges if gauge is not None)))


def _round_up(value: float, step: int) -> int:
    return math.ceil(value / step - 1e-9) * step
