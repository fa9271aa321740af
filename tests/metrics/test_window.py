"""Differences, restarts, several sources, and quantiles that claim no more than the buckets know."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knee.core.errors import InputError
from knee.core.snapshot import EngineSnapshot, Histogram, Snapshot
from knee.metrics.fleet import together
from knee.metrics.window import mean, quantile, share_above, window

SHARED = Path(__file__).parents[2].parent / "shared"


def snap(at_s: float, source: str = "", label: str = "0", **values: float) -> Snapshot:
    gauges = {name: value for name, value in values.items() if name.startswith(("num_requests", "kv"))}
    counters = {name: value for name, value in values.items() if name not in gauges}
    return Snapshot(
        at_ns=round(at_s * 1e9),
        source=source,
        engines={label: EngineSnapshot(gauges=gauges, counters=counters)},
    )


def histogram(bounds: tuple[float, ...], observed: list[float]) -> Histogram:
    return Histogram(
        bounds=bounds,
        counts=tuple(float(sum(1 for value in observed if value <= bound)) for bound in bounds),
        count=float(len(observed)),
        sum=math.fsum(observed),
    )


def test_gauges_over_all_instants_and_counters_as_differences() -> None:
    seen = window(
        [
            snap(2, num_requests_running=4, kv=0.2, tokens=150),
            snap(0, num_requests_running=2, kv=0.1, tokens=100),
            snap(1, num_requests_running=9, kv=0.9, tokens=120),
        ]
    )
    assert seen.seconds == 2
    engine = seen.engines["0"]
    running = engine.gauges["num_requests_running"]
    assert (running.first, running.last, running.low, running.high, running.mean) == (2, 4, 2, 9, 5)
    assert engine.counters == {"tokens": 50}
    assert not engine.reset


def test_queued_covers_only_the_instants_at_which_requests_waited() -> None:
    seen = window(
        [
            snap(0, num_requests_running=1, num_requests_waiting=0),
            snap(1, num_requests_running=4, num_requests_waiting=3),
            snap(2, num_requests_running=2, num_requests_waiting=5),
            snap(3, num_requests_running=2, num_requests_waiting=0),
        ]
    )
    queued = seen.engines["0"].queued
    assert queued["num_requests_running"].mean == (3 * 4 + 5 * 2) / 8  # weighted by how many waited
    assert queued["num_requests_waiting"].samples == 2
    assert queued["num_requests_running"].at_high == 3 / 8
    assert window([snap(0, num_requests_waiting=0)]).engines["0"].queued == {}


def test_one_snapshot_has_no_differences() -> None:
    engine = window([snap(0, num_requests_running=1, tokens=5)]).engines["0"]
    assert engine.counters == {}
    assert engine.gauges["num_requests_running"].samples == 1


def test_a_restart_inside_the_window() -> None:
    engine = window(
        [snap(0, tokens=1000), snap(1, tokens=1200), snap(2, tokens=30), snap(3, tokens=90)]
    ).engines["0"]
    assert engine.reset
    assert engine.counters == {"tokens": 90}


def test_a_restart_is_seen_even_where_a_counter_has_already_passed_its_old_value() -> None:
    def at(at_s: float, started: float, tokens: float) -> Snapshot:
        return Snapshot(
            at_ns=round(at_s * 1e9),
            engines={
                "0": EngineSnapshot(
                    gauges={"process_start_time_seconds": started}, counters={"tokens": tokens}
                )
            },
        )

    engine = window([at(0, 100, 10), at(9, 105, 50)]).engines["0"]
    assert engine.reset
    assert engine.counters == {"tokens": 50}


def test_a_counter_missing_at_one_end_is_missing() -> None:
    engine = window([snap(0, tokens=1), snap(1, tokens=2, fresh=7)]).engines["0"]
    assert engine.counters == {"tokens": 1}


def test_replicas_add_up_where_adding_makes_sense() -> None:
    seen = window(
        [
            snap(at, source, num_requests_waiting=waiting, kv_cache_usage_perc=0.4, tokens=at * rate)
            for at in (0, 1)
            for source, waiting, rate in (("a", 3, 10), ("b", 5, 20))
        ]
    )
    assert list(seen.engines) == ["a#0", "b#0"]
    whole = together(seen)
    assert whole.gauges["num_requests_waiting"].mean == 8
    assert whole.gauges["kv_cache_usage_perc"].mean == 0.4  # two caches at 40% are not one at 80%
    assert whole.counters["tokens"] == 30


def test_nothing_seen_is_an_error() -> None:
    with pytest.raises(InputError):
        window([])


bounds = st.lists(st.floats(0.001, 1000), min_size=1, max_size=12, unique=True).map(
    lambda b: tuple(sorted(b))
)
observations = st.lists(st.floats(0.0001, 5000), min_size=1, max_size=60)


@given(bounds, observations, st.floats(0, 1))
def test_a_bracket_holds_the_true_quantile(
    bounds: tuple[float, ...], observed: list[float], q: float
) -> None:
    bracket = quantile(histogram(bounds, observed), q)
    assert bracket is not None
    rank = max(1, math.ceil(q * len(observed)))
    true = sorted(observed)[rank - 1]
    assert bracket.low < true or bracket.low == 0
    assert bracket.high is None or true <= bracket.high


@given(bounds, observations, st.floats(0.0005, 2000))
def test_a_share_is_bracketed(bounds: tuple[float, ...], observed: list[float], value: float) -> None:
    bracket = share_above(histogram(bounds, observed), value)
    assert bracket is not None
    true = sum(1 for one in observed if one > value) / len(observed)
    assert bracket[0] - 1e-9 <= true <= bracket[1] + 1e-9


def test_nothing_observed_has_no_quantile() -> None:
    empty = histogram((1.0,), [])
    assert (quantile(empty, 0.5), mean(empty), share_above(empty, 1)) == (None, None, None)


@given(bounds, observations, observations)
def test_a_window_counts_what_came_between(
    bounds: tuple[float, ...], before: list[float], between: list[float]
) -> None:
    def at(at_ns: int, observed: list[float]) -> Snapshot:
        return Snapshot(
            at_ns=at_ns, engines={"0": EngineSnapshot(histograms={"h": histogram(bounds, observed)})}
        )

    delta = window([at(0, before), at(1, before + between)]).engines["0"].histograms["h"]
    assert delta.count == len(between)
    assert delta.counts == histogram(bounds, between).counts
    assert delta.sum == pytest.approx(math.fsum(between), rel=1e-6, abs=1e-6)
