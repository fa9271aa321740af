"""The books balance whatever happens, and nobody waits or runs beyond a bound."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knee.policy.admission import Admission, Limits, Ticket

S = 1_000_000_000
MS = 1_000_000


def built(burst: int | None, drain_rate: float | None, **more: int) -> Limits:
    return Limits(burst=burst if drain_rate else None, drain_rate=drain_rate, **more)


limits = st.builds(
    built,
    burst=st.none() | st.integers(1, 4),
    max_in_flight=st.integers(1, 5),
    max_queue=st.integers(0, 4),
    queue_deadline_ns=st.integers(0, 50),
    ready_wait_ns=st.integers(0, 80),
    drain_rate=st.none() | st.floats(0.1, 100),
)
events = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "arrive", "close", "resize", "advance"]),
        st.integers(0, 40),
        st.integers(0, 9),
    ),
    max_size=120,
)


def small(max_in_flight: int = 2, max_queue: int = 2, **more: int) -> Limits:
    return Limits(max_in_flight=max_in_flight, max_queue=max_queue, queue_deadline_ns=S, **more)


@given(limits, events)
def test_the_books_balance_and_the_bounds_hold(
    given_limits: Limits, sequence: list[tuple[str, int, int]]
) -> None:
    admission = Admission(given_limits, replicas=1)
    now, replicas = 0, 1
    tickets: list[Ticket] = []
    for kind, wait, pick in sequence:
        now += wait
        before = admission.in_flight
        if kind == "arrive":
            tickets.append(admission.arrive(now))
        elif kind == "close" and tickets:
            ticket = tickets[pick % len(tickets)]
            admission.close(ticket, now)
            assert ticket.state in ("done", "left", "expired", "shed")
        elif kind == "resize":
            replicas = pick % 4
            for changed in admission.resize(replicas, now):
                assert changed.state in ("admitted", "expired")
        elif kind == "advance":
            admission.advance(now)
        states = [ticket.state for ticket in tickets]
        assert admission.arrived == len(tickets)
        assert admission.in_flight == states.count("admitted") >= 0
        assert admission.queued == states.count("queued")
        for state in ("done", "left", "expired", "shed"):
            assert admission.ended[state] == states.count(state)
        # A smaller fleet drains what it has; it is never given more.
        assert admission.in_flight <= max(before, given_limits.max_in_flight * replicas)
        # Nobody waits while there is room, unless the pace holds them back, and then not for ever.
        if admission.queued and admission.in_flight < admission.capacity:
            wake_ns = admission.wake_ns(now)
            assert given_limits.burst is not None
            assert wake_ns is not None
            assert wake_ns >= now
        wait_s = admission.retry_after_s(now)
        assert wait_s is None or 1 <= wait_s <= 30
    for ticket in tickets:
        admission.close(ticket, now)
    assert (admission.in_flight, admission.queued) == (0, 0)
    assert admission.arrived == sum(admission.ended.values())


def test_a_place_that_comes_free_goes_to_the_one_who_waited_longest() -> None:
    admission = Admission(small(1, 2), replicas=1)
    first, second, third = (admission.arrive(now) for now in (0, 1, 2))
    assert [t.state for t in (first, second, third)] == ["admitted", "queued", "queued"]
    assert admission.close(first, 3) == [second]
    assert second.state == "admitted"
    assert third.state == "queued"


def test_a_full_queue_sheds_at_once_and_an_overdue_ticket_expires() -> None:
    admission = Admission(small(1, 1), replicas=1)
    admission.arrive(0)
    queued = admission.arrive(0)
    assert admission.arrive(0).state == "shed"
    admission.close(queued, S)
    assert queued.state == "expired"
    left = admission.arrive(S)
    admission.close(left, S + 1)
    assert left.state == "left"


def test_a_place_that_comes_free_too_late_is_not_given_to_the_overdue() -> None:
    admission = Admission(small(1, 2), replicas=1)
    running = admission.arrive(0)
    overdue, waiting = admission.arrive(0), admission.arrive(S // 2)
    assert admission.close(running, S + 1) == [overdue, waiting]
    assert (overdue.state, waiting.state) == ("expired", "admitted")


def test_closing_twice_gives_back_one_place() -> None:
    admission = Admission(small(2), replicas=1)
    ticket, other = admission.arrive(0), admission.arrive(0)
    admission.close(ticket, 1)
    admission.close(ticket, 2)
    assert (admission.in_flight, admission.ended["done"]) == (1, 1)
    assert other.state == "admitted"


def test_with_no_replica_ready_requests_wait_for_one_and_are_told_so() -> None:
    admission = Admission(small(2, 1, ready_wait_ns=10 * S))
    waiting = [admission.arrive(0) for _ in range(4)]
    assert [t.state for t in waiting] == ["queued", "queued", "queued", "shed"]
    assert all(ticket.no_replica for ticket in waiting)
    assert waiting[0].deadline_ns == 10 * S
    assert admission.resize(1, 5 * S) == waiting[:2]
    assert [t.state for t in waiting] == ["admitted", "admitted", "queued", "shed"]


def test_bounds_grow_and_shrink_with_the_replicas_that_are_ready() -> None:
    admission = Admission(small(2, 1), replicas=2)
    held = [admission.arrive(0) for _ in range(6)]
    assert [t.state for t in held] == ["admitted"] * 4 + ["queued"] * 2
    admission.resize(1, 1)
    assert admission.close(held[0], 2) == []
    assert admission.close(held[1], 2) == []
    assert admission.close(held[2], 2) == [held[4]]


def test_retry_after_is_the_queue_over_the_drain_rate() -> None:
    admission = Admission(Limits(max_in_flight=1, max_queue=9, queue_deadline_ns=60 * S), replicas=1)
    ticket = admission.arrive(0)
    for _ in range(9):
        admission.arrive(0)
    now = 0
    for _ in range(4):  # one leaves every half second; the place goes to the next, and a new one queues
        now += S // 2
        (ticket,) = admission.close(ticket, now)
        admission.arrive(now)
    assert admission.queued == 9
    assert admission.retry_after_s(now) == 5  # (9 + 1) / 2 per second
    assert admission.retry_after_s(now + 600 * S) == 30  # nothing has drained for long: the cap


def test_retry_after_is_omitted_below_a_second_and_before_anything_is_known() -> None:
    known = Admission(Limits(max_in_flight=1, max_queue=0, queue_deadline_ns=0, drain_rate=20.0), replicas=1)
    known.arrive(0)
    assert known.retry_after_s(0) is None
    assert Admission(small(), replicas=1).retry_after_s(0) is None


def test_light_load_does_not_pass_for_a_slow_drain() -> None:
    admission = Admission(small(2, 0), replicas=1)
    for second in range(20):  # one request a second, served at once: the bound is never reached
        admission.close(admission.arrive(second * S), second * S + MS)
    held = [admission.arrive(20 * S) for _ in range(2)]
    for step in range(1, 51):  # then a burst: at the bound, 100 leave per second
        now = 20 * S + step * 10 * MS
        admission.close(held.pop(0), now)
        held.append(admission.arrive(now))
    assert admission.retry_after_s(now) is None


def test_a_hung_fleet_is_not_expected_to_drain_at_the_rate_of_its_knee() -> None:
    admission = Admission(
        Limits(max_in_flight=1, max_queue=0, queue_deadline_ns=0, drain_rate=20.0), replicas=1
    )
    admission.arrive(0)
    assert admission.retry_after_s(11 * S) == 30


def test_a_crowd_at_an_idle_fleet_enters_at_the_pace_and_steady_traffic_does_not_notice() -> None:
    paced = Limits(max_in_flight=100, max_queue=100, queue_deadline_ns=10 * S, drain_rate=10.0, burst=5)
    admission = Admission(paced, replicas=1)
    crowd = [admission.arrive(0) for _ in range(50)]
    assert admission.in_flight == 5
    woken = 0
    for _ in range(20):
        at = admission.wake_ns(woken)
        assert at is not None
        assert at - woken == pytest.approx(S / 10, abs=2)  # ten a second, one after the other
        woken = at
        assert [ticket.state for ticket in admission.advance(woken)] == ["admitted"]
    assert admission.in_flight == 25
    for ticket in crowd[:20]:  # what ends makes room at once, however many end together
        admission.close(ticket, woken)
    assert admission.in_flight == 25
    assert admission.queued == 5


def test_a_replica_that_joins_brings_its_share_of_the_burst() -> None:
    paced = Limits(max_in_flight=100, max_queue=50, queue_deadline_ns=10 * S, drain_rate=1.0, burst=5)
    admission = Admission(paced, replicas=1)
    for _ in range(20):
        admission.arrive(0)
    assert admission.in_flight == 5
    admission.resize(3, 0)
    assert admission.in_flight == 15


def test_turning_away_agrees_with_arriving() -> None:
    for burst in (None, 1):
        admission = Admission(
            Limits(max_in_flight=2, max_queue=0, queue_deadline_ns=0, drain_rate=1.0, burst=burst), replicas=1
        )
        for _ in range(4):
            turned_away = admission.turn_away(0)
            assert turned_away == (admission.in_flight >= (burst or 2))
            if not turned_away:
                assert admission.arrive(0).state == "admitted"
        assert admission.arrived == sum(admission.ended.values()) + admission.in_flight
