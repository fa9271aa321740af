"""Limits follow from the knee by arithmetic that a reader can redo."""

import pytest

from knee.core.errors import InputError
from knee.core.point import Judged, Knee, Point, Summary
from knee.core.slo import parse_slo
from knee.policy.limits import limits_from_knee

MS = 1_000_000
SLO = parse_slo("ttft p95 < 1s, itl p99 < 60ms")


def point(rate: float, e2e_ms: float | None, ttft_p95: float | None, invalid: tuple[str, ...] = ()) -> Point:
    some = Summary(n=100)
    judged = (
        Judged(objective=SLO.objectives[0], value=ttft_p95, low=None, high=None, holds=True, n=100),
        Judged(objective=SLO.objectives[1], value=30.0, low=None, high=None, holds=True, n=100),
    )
    return Point(
        rate=rate,
        attained_rate=rate,
        served_rate=rate,
        seed=1,
        window_start_ns=0,
        window_end_ns=1,
        spent_ns=1,
        offered=100,
        ok=100,
        failed=0,
        rejected=0,
        censored=0,
        ttft_ms=some,
        itl_ms=some,
        tpot_ms=some,
        e2e_ms=Summary(n=100, mean_finite=e2e_ms),
        send_lag_ms=some,
        output_tokens_per_s=1.0,
        prompt_tokens_mean=1.0,
        output_tokens_mean=1.0,
        judged=judged,
        invalid=invalid,
    )


def knee(holds: float | None) -> Knee:
    return Knee(slo=SLO, holds=holds, breaks=20.0, estimate=holds, confidence=0.95, reason="because")


def test_little_plus_twice_the_swing() -> None:
    limits = limits_from_knee(knee(16.0), [point(8, 2000, 100), point(16, 4000, 400), point(20, 9000, 5000)])
    assert limits.max_in_flight == 64 + 16  # 16/s x 4 s, and twice its square root
    assert limits.queue_deadline_ns == 300 * MS  # half of 1 s - 400 ms
    assert limits.max_queue == 2  # 16/s x 0.15 s, rounded down
    assert limits.drain_rate == 16.0
    assert limits.burst == 8  # 16/s x half of 1 s


def test_no_slack_means_no_queue() -> None:
    limits = limits_from_knee(knee(16.0), [point(16, 4000, 1200)])
    assert (limits.max_queue, limits.queue_deadline_ns) == (0, 0)


def test_an_invalid_point_is_not_built_upon() -> None:
    limits = limits_from_knee(knee(16.0), [point(8, 2000, 400), point(16, 4000, 400, ("client lagged",))])
    assert limits.drain_rate == 8.0


@pytest.mark.parametrize(
    ("found", "points"), [(None, [point(8, 2000, 1)]), (4.0, [point(8, 2000, 1)]), (8.0, [point(8, None, 1)])]
)
def test_a_run_without_a_knee_gives_no_limits(found: float | None, points: list[Point]) -> None:
    with pytest.raises(InputError):
        limits_from_knee(knee(found), points)
