"""What is found beside the limit, and what a server that does not work looks like."""

import msgspec
import pytest
from tests.diagnose.worlds import TTFT, histogram, world

from knee.core.errors import NoAnswer
from knee.core.snapshot import EngineSnapshot, Snapshot, Window
from knee.diagnose.diagnose import diagnose
from knee.diagnose.facts import Facts
from knee.diagnose.text import explain_lines, verdict_lines
from knee.diagnose.verdict import Diagnosis, Finding
from knee.metrics.window import window

QUIET = ([2] * 3, [0] * 3, [0.1] * 3)


def finding(d: Diagnosis, name: str) -> Finding:
    return next(found for found in d.findings if found.name == name)


def together(*windows: Window) -> Window:
    return msgspec.structs.replace(
        windows[0], engines={label: engine for one in windows for label, engine in one.engines.items()}
    )


def test_a_dead_engine_is_stalled_and_says_so() -> None:
    d = diagnose(world(*QUIET), Facts(dead=True))
    assert (d.limit, d.confidence) == ("stalled", "high")
    assert finding(d, "dead").weight == "warning"
    assert "503" in d.why


@pytest.mark.parametrize(("waiting", "limit"), [(3.0, "stalled"), (0.0, "none")])
def test_a_sleeping_engine_binds_only_where_requests_wait(waiting: float, limit: str) -> None:
    d = diagnose(world([0] * 3, [waiting] * 3, [0.0] * 3, more={"engine_sleep_state{awake}": [0.0] * 3}))
    assert d.limit == limit
    assert "wake_up" in finding(d, "sleeping").text


def test_requests_that_wait_for_an_adapter_are_not_load() -> None:
    d = diagnose(
        world(
            [0] * 3,
            [4] * 3,
            [0.0] * 3,
            counters={"generation_tokens": 0.0},
            more={"num_requests_waiting_by_reason{deferred}": [4.0] * 3},
        )
    )
    assert d.limit == "stalled"
    assert any("adapter" in e.reason for e in d.evidence)


def test_a_restart_inside_the_window() -> None:
    gauges = {"num_requests_running": 1.0, "num_requests_waiting": 0.0}
    before, after = (
        Snapshot(
            at_ns=at, engines={"0": EngineSnapshot(gauges=gauges, counters={"generation_tokens": value})}
        )
        for at, value in ((0, 900.0), (10**10, 20.0))
    )
    assert "restarted" in {f.name for f in diagnose(window([before, after])).findings}


def test_clients_that_give_up_and_errors() -> None:
    counters = {"request_success{stop}": 80.0, "request_success{abort}": 15.0, "request_success{error}": 5.0}
    d = diagnose(world(*QUIET, counters=counters))
    assert finding(d, "given_up").value == pytest.approx(0.15)
    assert finding(d, "errors").value == 5


def test_what_the_prefix_cache_saves() -> None:
    d = diagnose(world(*QUIET, counters={"prefix_cache_queries": 10_000.0, "prefix_cache_hits": 2500.0}))
    assert finding(d, "prefix_cache").value == 0.25
    assert "2,500 of 10,000" in finding(d, "prefix_cache").text


@pytest.mark.parametrize(
    ("running", "kv", "warns"),
    [
        ([8, 8, 8], [0.90, 0.92, 0.94], True),
        ([8, 8, 8], [0.30, 0.32, 0.34], False),  # far from full
        ([8, 4, 12], [0.90, 0.92, 0.94], False),  # requests come and go: a balance, not a slope
        ([8, 8, 8], [0.94, 0.92, 0.90], False),  # it falls
    ],
)
def test_time_until_the_cache_is_full(running: list[float], kv: list[float], warns: bool) -> None:
    d = diagnose(world(running, [0, 0, 0], kv))
    assert ("kv_full_in" in {f.name for f in d.findings}) == warns


def test_the_worst_engine_speaks_and_imbalance_is_a_finding() -> None:
    busy = world([16] * 4, [30] * 4, [0.3] * 4, label="a:8000#0")
    calm = world([1] * 4, [0] * 4, [0.1] * 4, label="b:8000#0")
    d = diagnose(together(calm, busy), Facts(flags={"max_num_seqs": "16"}))
    assert (d.limit, d.engine, d.engines) == ("sequence_cap", "a:8000#0", 2)
    assert finding(d, "imbalance").engine == "a:8000#0"
    assert "on engine a:8000#0" in verdict_lines(d)[0]


def test_two_limits_that_hold_each_other_move_together() -> None:
    d = diagnose(
        world(
            [32] * 4, [20] * 4, [0.97] * 4, counters={"num_preemptions": 5.0, "request_success{stop}": 900.0}
        ),
        Facts(flags={"max_num_seqs": "32"}),
    )
    assert d.limit == "kv_memory"
    assert {binding.limit for binding in d.further} == {"sequence_cap"}
    assert d.move is not None
    assert [other.flag for other in d.move.together] == ["max_num_seqs"]
    assert "together with --max-num-seqs 32" in "\n".join(verdict_lines(d))


@pytest.mark.parametrize("asks", ["verdict", "explanation"])
@pytest.mark.parametrize(
    "seen", [world(*QUIET), world([1], [9], [0.5]), world(), world([0] * 3, [3] * 3, [0.0] * 3)]
)
def test_every_verdict_can_be_told(seen: Window, asks: str) -> None:
    d = diagnose(seen)
    lines = verdict_lines(d) if asks == "verdict" else explain_lines(d)
    assert all(line == line.rstrip() and "None" not in line for line in lines)
    if asks == "verdict":
        assert len(lines) == 5


def test_a_growing_queue_is_not_a_front_end() -> None:
    """Queue time is recorded when a request ends, TTFT when it begins: as a queue grows the first lags."""
    d = diagnose(
        world(
            [16] * 4,
            [10, 20, 30, 40],
            [0.2] * 4,
            histograms={
                "time_to_first_token_seconds": histogram([8.0] * 60, TTFT),
                "request_queue_time_seconds": histogram([0.1] * 60),
                "request_prefill_time_seconds": histogram([0.1] * 60),
            },
        ),
        Facts(flags={"max_num_seqs": "16"}),
    )
    assert d.limit == "sequence_cap"
    assert "front_end" not in {binding.limit for binding in d.further}


def test_a_window_without_engines_has_no_answer() -> None:
    with pytest.raises(NoAnswer):
        diagnose(Window(start_ns=0, end_ns=1, engines={}))
