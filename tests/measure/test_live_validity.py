"""Whether a point can be trusted, and what its reasons say to change."""

from typing import Any

import msgspec
import numpy as np
import pytest

from knee.core.requests import CENSORED, FAILED, NEVER, OK, Gaps, Observed, column
from knee.core.snapshot import EngineWindow, GaugeStats, Window
from knee.core.units import NS_PER_MS, NS_PER_S
from knee.measure.target import ClientHealth, Measured, Offer
from knee.measure.validity import Verdict, check_validity, mean_open
from knee.workload.spec import Lengths, Prefixes, Workload

OFFER = Offer(
    workload=Workload(prompt_tokens=Lengths(mean=100), output_tokens=Lengths(mean=20)),
    rate=10,
    seed=1,
    warmup_ns=NS_PER_S,
    window_ns=10 * NS_PER_S,
    drain_ns=NS_PER_S,
)


def observed(n: int = 110, **columns: Any) -> Observed:
    due = column(np.arange(n) * 100 * NS_PER_MS)
    values: dict[str, Any] = {
        "due_ns": due,
        "sent_ns": due + NS_PER_MS // 10,
        "first_ns": due + 50 * NS_PER_MS,
        "last_ns": due + 200 * NS_PER_MS,
        "end_ns": due + 200 * NS_PER_MS,
        "outcome": np.full(n, OK, dtype=np.int8),
        "prompt_tokens": column([100] * n),
        "asked_tokens": column([20] * n),
        "output_tokens": column([20] * n),
        "first_tokens": column([1] * n),
        "gaps": Gaps(ns=column([]), count=column([]), at_ns=column([])),
        "end_of_load_ns": 12 * NS_PER_S,
    }
    return Observed(**(values | columns))


def verdict(seen: Observed | None = None, offer: Offer = OFFER, **options: Any) -> Verdict:
    return check_validity(Measured(observed=seen or observed(), spent_ns=1, **options), offer)


def window(**counters: float) -> Window:
    gauge = GaugeStats(first=2, last=2, low=2, high=2, mean=2.0, samples=20)
    engine = EngineWindow(counters=counters, gauges={"num_requests_running": gauge})
    return Window(start_ns=NS_PER_S, end_ns=11 * NS_PER_S, engines={"0": engine})


def test_a_good_point_has_nothing_against_it() -> None:
    health = ClientHealth(
        loop_lag_p99_ms=0.4, dispatch_lag_p99_ms=0.3, cpu_share=0.4, cached_share=0.0, clock_jump_ms=0.1
    )
    assert verdict(health=health, window=window(request_success=100)) == Verdict()


@pytest.mark.parametrize(
    ("health", "says"),
    [
        (ClientHealth(dispatch_lag_p99_ms=54.0), "started 54.0 ms late"),
        (ClientHealth(loop_lag_p99_ms=19.0), "noticed events 19.0 ms late"),
        (ClientHealth(cpu_share=0.99), "99% of its core"),
        (ClientHealth(prompt_error_share=0.12), "prompt tokens 12% off"),
        (ClientHealth(cached_share=0.5), "50% of the prompt tokens from its prefix cache"),
        (ClientHealth(clock_jump_ms=3_600_000.0), "the machine slept"),
        (ClientHealth(clock_jump_ms=-5_000.0), "-5.0 s"),
    ],
)
def test_the_client_is_told_from_the_server(health: ClientHealth, says: str) -> None:
    found = verdict(health=health)
    assert len(found.invalid) == 1
    assert says in found.invalid[0]


def test_a_lag_is_measured_against_the_wait_it_adds_to() -> None:
    """40 ms late is too much of a TTFT of 50 ms, and little of one of 2 s."""
    late = ClientHealth(dispatch_lag_p99_ms=40.0)
    assert verdict(health=late).invalid
    due = observed().due_ns
    assert (
        verdict(observed(first_ns=due + 2 * NS_PER_S, last_ns=due + 3 * NS_PER_S), health=late).invalid == ()
    )


def test_client_bound_says_what_to_change() -> None:
    assert "--workers" in verdict(health=ClientHealth(dispatch_lag_p99_ms=54.0)).invalid[0]


def test_a_rate_that_was_not_attained() -> None:
    sent = observed().sent_ns.copy()
    sent[60:] = NEVER
    outcome = observed().outcome.copy()
    outcome[60:] = CENSORED
    found = verdict(observed(sent_ns=sent, outcome=outcome))
    assert "50% of the requests due in the window could not be sent" in found.invalid[0]


def test_requests_that_the_server_refused_to_connect_are_not_the_clients_fault() -> None:
    sent = observed().sent_ns.copy()
    sent[60:] = NEVER
    outcome = observed().outcome.copy()
    outcome[60:] = FAILED
    assert verdict(observed(sent_ns=sent, outcome=outcome, causes={"refused": 50})).invalid == ()


@pytest.mark.parametrize("cause", ["client_files", "client_ports", "client_connections"])
def test_own_resources_running_out(cause: str) -> None:
    found = verdict(observed(causes={cause: 3, "http_500": 9}))
    assert found.invalid[0].startswith(f"3 requests failed on this machine ({cause})")
    assert len(found.invalid) == 1


def test_cache_hits_are_a_fault_unless_asked_for() -> None:
    hits = window(prefix_cache_queries=1_000.0, prefix_cache_hits=300.0)
    assert "30%" in verdict(window=hits).invalid[0]
    sharing = msgspec.structs.replace(OFFER.workload, prefixes=Prefixes(tokens=50))
    assert verdict(window=hits, offer=msgspec.structs.replace(OFFER, workload=sharing)).invalid == ()
    few = window(prefix_cache_queries=1_000.0, prefix_cache_hits=10.0)
    assert verdict(window=few).invalid == ()


def test_answers_of_another_length_than_asked() -> None:
    found = verdict(observed(output_tokens=column([15] * 110)))
    assert "75% of the tokens asked for" in found.invalid[0]


def test_littles_law_across_the_wire() -> None:
    """20 open here and 2 in the engine: 18 wait in front of it."""
    slow = observed(end_ns=observed().due_ns + 2 * NS_PER_S)
    assert mean_open(slow, 3 * NS_PER_S, 9 * NS_PER_S) == pytest.approx(20, rel=0.01)
    assert any(
        "the engine held 2: the others waited before it" in note
        for note in verdict(slow, window=window()).notes
    )


def test_other_traffic_is_noted() -> None:
    found = verdict(window=window(request_success=900.0))
    assert found.invalid == ()
    assert "there is other traffic on it" in found.notes[0]


def test_a_closed_loop_says_what_it_hides() -> None:
    found = verdict(offer=msgspec.structs.replace(OFFER, max_concurrency=4))
    assert "queueing is hidden" in found.notes[0]
