import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.deploy.measured import lock_of, point_at

from knee.core.errors import NoAnswer, UsageError
from knee.deploy.sizing import Asked, size, startup_budget


def test_by_hand() -> None:
    """19 req/s x 3.0 s = 57 in flight; 57 + 2√57 = 72.1; 80 % of 57 = 45; p99 4.1 s twice, at least 10 s."""
    sizes = size(lock_of(startup_s=96.4), Asked(peak_rate=100))
    assert sizes.in_flight_limit.value == 73
    assert sizes.engine_queue_limit.value == 146
    assert sizes.scale_in_flight.value == 45
    assert sizes.scale_waiting.value == 3
    assert sizes.drain.value == 10
    assert sizes.grace.value == 15 + 10 + 15
    assert (sizes.startup_failures.value, sizes.probe_period.value) == (25, 10)
    assert sizes.max_replicas.value == math.ceil(100 / 15.2) + 1 == 8


@settings(deadline=None)
@given(st.floats(0.1, 3000))
def test_the_startup_probe_allows_two_to_three_times_the_measured_start(seconds: float) -> None:
    allowed, period, failures, _ = startup_budget(seconds)
    assert allowed == period.value * failures.value
    assert allowed >= 2 * seconds
    assert allowed <= max(60, 3 * seconds)


@settings(deadline=None)
@given(
    longest=st.one_of(st.none(), st.floats(0.1, 3600)),
    start=st.one_of(st.none(), st.floats(1, 3000)),
    peak=st.one_of(st.none(), st.floats(0.1, 10_000)),
    low=st.integers(1, 20),
    drains=st.booleans(),
)
def test_times_fit_into_each_other(
    longest: float | None, start: float | None, peak: float | None, low: int, drains: bool
) -> None:
    asked = Asked(longest_response_s=longest, startup_s=start, peak_rate=peak, min_replicas=low)
    sizes = size(lock_of(), asked, drains=drains)
    assert sizes.drain.value >= (longest or 0)
    stop = sizes.drain.value if drains else 0
    assert sizes.grace.value > sizes.pre_stop.value + stop
    assert drains or sizes.pre_stop.value >= sizes.drain.value
    assert sizes.progress_deadline.value > sizes.startup_allowed_s
    assert 1 <= sizes.min_replicas.value <= sizes.max_replicas.value
    if peak is not None:
        assert sizes.max_replicas.value * 0.8 * 19 >= peak


def test_without_a_knee_there_is_nothing_to_deploy() -> None:
    with pytest.raises(NoAnswer, match="no rate was shown to hold"):
        size(lock_of(holds=None), Asked())


def test_an_unmeasured_start_says_so() -> None:
    sizes = size(lock_of(), Asked())
    assert "not measured" in sizes.startup_failures.why
    assert sizes.startup_allowed_s == 1800


def test_an_unbounded_p99_falls_back_to_the_highest_finite_percentile() -> None:
    whole = point_at(19.0)
    point = msgspec.structs.replace(whole, e2e_ms=msgspec.structs.replace(whole.e2e_ms, p99=None))
    assert "p95" in size(lock_of(point=point), Asked()).drain.why


@pytest.mark.parametrize(
    "asked",
    [
        Asked(min_replicas=0),
        Asked(min_replicas=3, max_replicas=2),
        Asked(peak_rate=-1),
        Asked(longest_response_s=0),
        Asked(startup_s=0),
        Asked(startup_s=math.inf),
    ],
)
def test_contradicting_wishes(asked: Asked) -> None:
    with pytest.raises(UsageError):
        size(lock_of(), asked)
