"""Readiness is what was answered, and only failures that are the replica's own count against it."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knee.policy.health import Failure, Health, HealthRules, HealthState

S = 1_000_000_000
RULES = HealthRules()


def state(health: Health) -> HealthState:
    """The state now; a type checker believes that an attribute keeps what was last asserted of it."""
    return health.state


def ready() -> Health:
    health = Health(RULES)
    health.on_probe(answered=True, now_ns=0)
    assert state(health) == "ready"
    return health


def test_nothing_is_routed_before_a_real_answer() -> None:
    health = Health(RULES)
    assert not health.may_take(0)
    health.on_probe(answered=False, now_ns=0)
    assert state(health) == "loading"
    assert health.probe_wanted(0)
    health.on_probe(answered=True, now_ns=1)
    assert health.may_take(1000)


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 429, 503])
def test_what_the_client_did_wrong_and_a_busy_server_are_neutral(status: int) -> None:
    health = ready()
    for _ in range(100):
        health.on_answer(status, 0)
    assert state(health) == "ready"


def test_neutral_answers_do_not_forgive_failures_either() -> None:
    health = ready()
    for status in (500, 400, 500, 503, 500):
        health.on_answer(status, 0)
    assert state(health) == "ejected"


def test_one_good_answer_forgives() -> None:
    health = ready()
    for status in (500, 500, 200, 500, 500):
        health.on_answer(status, 0)
    assert state(health) == "ready"


@pytest.mark.parametrize("cause", ["status", "first_byte", "cut"])
def test_failures_in_a_row_eject(cause: Failure) -> None:
    health = ready()
    for count in range(RULES.failures):
        assert state(health) == "ready", count
        health.on_failure(cause, 0)
    assert state(health) == "ejected"
    assert not health.may_take(0)


def test_a_refused_connection_ejects_at_once_and_a_probe_brings_it_back_whole() -> None:
    health = ready()
    health.on_failure("connect", 0)
    assert state(health) == "ejected"
    assert not health.probe_wanted(RULES.first_ns - 1)
    health.on_probe(answered=True, now_ns=RULES.first_ns)
    assert state(health) == "ready"


def _hang(health: Health, now_ns: int) -> None:
    for _ in range(RULES.failures):
        health.on_failure("first_byte", now_ns)


def test_half_open_takes_one_real_request_and_judges_by_it() -> None:
    health = ready()
    _hang(health, 0)
    health.on_probe(answered=True, now_ns=RULES.first_ns)
    assert state(health) == "half_open"
    assert health.may_take(0)
    assert not health.may_take(1)
    health.on_answer(400, RULES.first_ns)
    assert state(health) == "half_open"
    health.on_answer(200, RULES.first_ns)
    assert state(health) == "ready"


def test_each_failed_trial_doubles_the_wait_up_to_a_cap() -> None:
    health = ready()
    _hang(health, 0)
    now, waits = 0, []
    for _ in range(9):
        waits.append(health.until_ns - now)
        now = health.until_ns
        health.on_probe(answered=True, now_ns=now)
        assert state(health) == "half_open"
        health.on_failure("first_byte", now)
        assert state(health) == "ejected"
    assert waits[:3] == [RULES.first_ns, 2 * RULES.first_ns, 4 * RULES.first_ns]
    assert waits[-1] == RULES.most_ns


def test_probes_that_fail_while_answers_flow_are_load_not_death() -> None:
    health = ready()
    for _ in range(50):
        health.on_probe(answered=False, now_ns=0, progress=True)
    assert state(health) == "ready"
    health.on_probe(answered=False, now_ns=0)
    assert state(health) == "ready"  # one slow probe ejects nobody
    health.on_probe(answered=False, now_ns=0)
    assert state(health) == "ejected"


def test_a_replica_that_stays_away_is_one_ejection() -> None:
    health = ready()
    health.on_failure("connect", 0)
    for _ in range(5):
        health.on_probe(answered=False, now_ns=health.until_ns)
    assert (state(health), health.ejections) == ("ejected", 1)


steps: dict[str, Callable[[Health, int], None]] = {
    "probe": lambda health, now: health.on_probe(answered=True, now_ns=now),
    "no probe": lambda health, now: health.on_probe(answered=False, now_ns=now),
    "200": lambda health, now: health.on_answer(200, now),
    "400": lambda health, now: health.on_answer(400, now),
    "500": lambda health, now: health.on_answer(500, now),
    "connect": lambda health, now: health.on_failure("connect", now),
    "first byte": lambda health, now: health.on_failure("first_byte", now),
}


@given(st.lists(st.tuples(st.sampled_from(sorted(steps)), st.integers(0, 2 * S)), max_size=100))
def test_whatever_happened_a_well_again_replica_comes_back_within_the_cap(
    sequence: list[tuple[str, int]],
) -> None:
    health, now = Health(RULES), 0
    for name, wait in sequence:
        now += wait
        before = health.state
        steps[name](health, now)
        if before == "ejected" and health.state != "ejected":
            assert name == "probe"
            assert now >= health.until_ns or health.state in ("ready", "half_open")
        assert health.until_ns <= now + RULES.most_ns
    now = max(now, health.until_ns)
    health.on_probe(answered=True, now_ns=now)
    health.on_answer(200, now)
    assert state(health) == "ready"
