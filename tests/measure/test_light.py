"""Which points a calibration takes of a live server, on simulated servers that may have a slow moment."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from knee.core.errors import NoAnswer
from knee.core.point import Point
from knee.core.slo import Slo
from knee.engine.config import EngineConfig, StepCost
from knee.measure.model.light import CLUMPS, SHARES, clumped_offers, light_offers
from knee.measure.point import make_point
from knee.measure.simulated import SimulatedTarget
from knee.workload.spec import Lengths, Workload

WORKLOAD = Workload(prompt_tokens=Lengths(mean=128), output_tokens=Lengths(mean=32))
CAPPED = EngineConfig(
    step_cost=StepCost(fixed_ns=4_000_000, per_seq_ns=200_000, per_prefill_token_ns=40_000),
    max_num_seqs=4,
    max_num_batched_tokens=2048,
)
"""About 20 requests/s; one alone takes some 140 ms."""
SERVER = msgspec.structs.replace(CAPPED, max_num_seqs=128)
"""About 100 requests/s."""
SECONDS = 90.0


def _slower(config: EngineConfig, times: float) -> EngineConfig:
    cost = config.step_cost
    slow = {name: round(getattr(cost, name) * times) for name in cost.__struct_fields__}
    return msgspec.structs.replace(config, step_cost=StepCost(**slow))


def _light(
    config: EngineConfig, most: float = math.inf, slow: range = range(0), seconds: float = SECONDS
) -> list[Point]:
    """The points of the server; those numbered in `slow` came while its machine was half as fast."""
    seen: list[Point] = []
    for number, offer in enumerate(light_offers(WORKLOAD, 1, seconds, seen, most)):
        target = SimulatedTarget(_slower(config, 2) if number in slow else config, sampled=False)
        seen.append(make_point(target.measure(offer), offer, Slo(()), simulated=True))
    return seen


def _rates(points: list[Point]) -> list[float]:
    assert points[0].max_concurrency == 1
    return [point.rate for point in points[1:]]


@pytest.mark.parametrize("slow", [range(0), range(2, 3), range(1, 4), range(3, 4)])
def test_rates_called_light_are_all_offered_even_while_the_machine_is_slow(slow: range) -> None:
    rates = _rates(_light(SERVER, most=52.49, slow=slow))
    assert rates == pytest.approx([share * 52.49 for share in SHARES], rel=0.005)
    assert rates[-1] <= 52.49


def test_a_slow_moment_is_not_taken_for_a_crowd() -> None:
    usual, once = (_rates(_light(SERVER, slow=slow)) for slow in (range(0), range(2, 3)))
    assert once[:2] == usual[:2]
    assert once[2] == once[1]  # looked at again, and found as light as it is
    assert once[-1] > once[2]


def test_a_crowd_that_is_seen_twice_is_load_enough() -> None:
    costly = msgspec.structs.replace(SERVER.step_cost, per_seq_ns=2_000_000)
    points = _light(msgspec.structs.replace(SERVER, step_cost=costly))
    rates = _rates(points)
    assert rates[-1] == rates[-2] > rates[-3]
    crowded = [(point.e2e_ms.mean_finite or 0) > 2 * (points[0].e2e_ms.mean_finite or 0) for point in points]
    assert crowded.index(True) == len(points) - 2
    assert len(rates) < len(SHARES)


@pytest.mark.parametrize("most", [math.inf, 1000.0, 100.0])
def test_a_rate_that_is_called_light_and_is_far_from_it_is_not_offered(most: float) -> None:
    assert max(_rates(_light(CAPPED, most))) < 40


def test_overload_ends_it() -> None:
    points = _light(CAPPED, most=70.0)
    lost = [point.ttft_ms.n_infinite > 0.1 * point.ttft_ms.n for point in points]
    assert lost.index(True) == len(points) - 1


@given(
    speed=st.floats(0.2, 20),
    most=st.floats(0.5, 500) | st.just(math.inf),
    seconds=st.floats(10, 60),
    slow=st.integers(0, 6),
)
def test_time_and_rate_are_kept(speed: float, most: float, seconds: float, slow: int) -> None:
    config = _slower(msgspec.structs.replace(CAPPED, max_num_seqs=16), speed)
    try:
        points = _light(config, most, range(slow, slow + 1), seconds)
    except NoAnswer:
        return
    rates = _rates(points)
    assert len(rates) <= len(SHARES)
    assert rates == sorted(rates)
    assert all(rate <= most for rate in rates)
    assert sum(point.spent_ns for point in points) / 1e9 <= seconds + 0.5  # the last step
    clumped = clumped_offers(WORKLOAD, 1, seconds, points)
    assert [offer.rate for offer in clumped] == sorted(set(rates))[-3:]
    assert all(offer.workload.arrivals == CLUMPS for offer in clumped)
    assert sum(o.warmup_ns + o.window_ns + o.drain_ns for o in clumped) / 1e9 <= seconds + 0.01
