import numpy as np
import pytest

from knee.stats.growth import backlog_growth
from knee.stats.percentile import Floats
from knee.stats.steady import mser5, trend

SEED = 20_260_102


def _starts(arrived: Floats, service: Floats) -> Floats:
    """When each request of a single-server queue in order of arrival begins."""
    started = np.empty(len(arrived))
    free = 0.0
    for i, (at, work) in enumerate(zip(arrived, service, strict=True)):
        started[i] = max(at, free)
        free = started[i] + work
    return started


def _queue(rng: np.random.Generator, load: float, seconds: float, cv: float) -> tuple[Floats, Floats]:
    arrived = np.cumsum(rng.exponential(0.05, int(seconds * 30)))
    arrived = arrived[arrived < seconds]
    sigma = np.sqrt(np.log1p(cv**2))
    service = 0.05 * load * np.exp(sigma * rng.normal(size=len(arrived)) - sigma**2 / 2)
    return arrived, _starts(arrived, service)


def test_the_cut_falls_after_a_warm_up() -> None:
    rng = np.random.default_rng(SEED)
    series = np.concatenate([np.linspace(5, 0, 100), np.zeros(900)]) + rng.normal(0, 0.5, 1000)
    assert 60 <= mser5(series) <= 150


def test_a_steady_series_loses_little() -> None:
    rng = np.random.default_rng(SEED)
    assert np.median([mser5(rng.normal(size=1000)) for _ in range(50)]) <= 100
    assert mser5(np.ones(8)) == 0


def test_trend_level_and_power() -> None:
    rng = np.random.default_rng(SEED)
    false_alarms = sum(not trend(rng.pareto(1.5, 640)).stationary for _ in range(300))
    assert false_alarms <= 9, f"seed {SEED}: {false_alarms}/300 at 1 %"
    rising = rng.normal(size=640) + np.linspace(0, 2, 640)
    found = trend(rising)
    assert not found.stationary
    assert found.tau > 0
    assert trend(np.ones(640)).stationary
    assert trend(np.ones(3)).stationary


@pytest.mark.parametrize("cv", [0.0, 2.0])
def test_a_server_at_exactly_its_capacity_does_not_grow(cv: float) -> None:
    rng = np.random.default_rng(SEED)
    grows = 0
    for _ in range(100):
        arrived, started = _queue(rng, 1.0, 240, cv)
        grows += any(backlog_growth(arrived, started, end, cv).grows for end in range(30, 241, 10))
    assert grows <= 2, f"seed {SEED}: {grows}/100 runs with 22 looks each"


@pytest.mark.parametrize(("cv", "load"), [(0.0, 1.2), (2.0, 1.5)])
def test_overload_is_seen(cv: float, load: float) -> None:
    rng = np.random.default_rng(SEED)
    seen = sum(backlog_growth(*_queue(rng, load, 240, cv), 240, cv).grows for _ in range(40))
    assert seen >= 36, f"seed {SEED}: {seen}/40"


def test_a_backlog_that_came_at_once_and_is_worked_off_is_not_growth() -> None:
    steady = np.arange(0, 240, 0.1)
    arrived = np.sort(np.concatenate([steady, np.full(200, 120.0)]))
    started = _starts(arrived, np.full(len(arrived), 0.08))
    assert not backlog_growth(arrived, started, 125.0).grows
    assert not backlog_growth(arrived, started, 239.0).grows


def test_requests_that_merely_run_long_are_no_backlog() -> None:
    arrived = np.arange(0, 240, 0.05)
    assert backlog_growth(arrived, arrived + 0.03, 240.0).score < 1
