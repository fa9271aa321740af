"""At three times the knee of a simulated engine, what is let in keeps the SLO, from the first second on."""

from collections import deque
from random import Random

import numpy as np
import pytest

from knee.core.units import NS_PER_MS, NS_PER_S
from knee.engine.config import REFERENCE
from knee.engine.engine import Engine
from knee.engine.request import Request
from knee.policy.admission import Admission, Limits, Ticket

RATE = 37.1
"""The knee of the reference engine for prompts of 1,000 tokens and 50 out, at a TTFT p95 below 1 s."""

PACED = Limits(max_in_flight=123, max_queue=4, queue_deadline_ns=232 * NS_PER_MS, drain_rate=RATE, burst=19)
"""What `limits_from_knee` makes of it: 102.4 requests in flight there, TTFT p95 535 ms."""


class Crowd:
    """Poisson arrivals at an admission-controlled engine in virtual time."""

    def __init__(self, limits: Limits, rate: float, seconds: float, seed: int) -> None:
        rng = Random(seed)
        self.admission = Admission(limits, replicas=1)
        self.engine = Engine(REFERENCE)
        self.arrivals: deque[int] = deque()
        self.tickets: dict[str | int, Ticket] = {}
        self.ttft_ms: list[tuple[float, float]] = []
        at = rng.expovariate(rate)
        while at < seconds:
            self.arrivals.append(round(at * NS_PER_S))
            at += rng.expovariate(rate)

    def run(self) -> None:
        now, step_end = 0, -1
        waiting: deque[Ticket] = deque()
        while True:
            if step_end < 0:
                step = self.engine.next_step(now)
                step_end = step.end_ns if step is not None else -1
            while waiting and waiting[0].state != "queued":
                waiting.popleft()
            wake_ns = self.admission.wake_ns(now)
            instants = [step_end] if step_end >= 0 else []
            instants += [self.arrivals[0]] if self.arrivals else []
            instants += [waiting[0].deadline_ns] if waiting else []
            instants += [wake_ns] if wake_ns is not None else []
            if not instants:
                return
            now = min(instants)
            if now == step_end:
                step_end = -1
                for request in self.engine.settle(now):
                    self.finish(request, now)
            if waiting and waiting[0].deadline_ns <= now:
                self.admission.close(waiting.popleft(), now)
            self.enter(self.admission.advance(now), now)
            if self.arrivals and self.arrivals[0] == now:
                self.arrivals.popleft()
                ticket = self.admission.arrive(now)
                if ticket.state == "queued":
                    waiting.append(ticket)
                self.enter([ticket], now)

    def enter(self, tickets: list[Ticket], now: int) -> None:
        for ticket in tickets:
            if ticket.state == "admitted":
                request = Request(len(self.tickets), 1000, 50, arrival_ns=now)
                assert not self.engine.add(request, now)
                self.tickets[request.id] = ticket

    def finish(self, request: Request, now: int) -> None:
        ticket = self.tickets[request.id]
        self.ttft_ms.append(
            (ticket.arrived_ns / NS_PER_S, (request.first_ns - ticket.arrived_ns) / NS_PER_MS)
        )
        self.enter(self.admission.close(ticket, now), now)


def p95(samples: list[tuple[float, float]], since_s: float = 0.0, until_s: float = 1e9) -> float:
    return float(np.percentile([ttft for at, ttft in samples if since_s <= at < until_s], 95))


@pytest.mark.parametrize("seed", [1, 2])
def test_three_times_the_knee(seed: int) -> None:
    crowd = Crowd(PACED, 3 * RATE, 30, seed)
    crowd.run()
    print(f"seed {seed}")
    ended = crowd.admission.ended
    assert p95(crowd.ttft_ms, 0, 5) < 1000
    assert p95(crowd.ttft_ms, 5) < 500
    assert ended["done"] > 30 * RATE * 0.95  # protection costs no throughput
    assert ended["shed"] > ended["done"]
    assert ended["expired"] < 0.01 * ended["shed"]  # the refused are refused at once
    assert crowd.admission.arrived == sum(ended.values())


def test_without_the_pace_the_crowd_that_fills_the_bound_waits_too_long() -> None:
    crowd = Crowd(Limits(max_in_flight=123, max_queue=8, queue_deadline_ns=232 * NS_PER_MS), 3 * RATE, 30, 1)
    crowd.run()
    assert p95(crowd.ttft_ms, 0, 5) > 1000


def test_without_a_bound_the_same_load_breaks_the_slo() -> None:
    crowd = Crowd(Limits(max_in_flight=10**6, max_queue=0, queue_deadline_ns=0), 3 * RATE, 30, 1)
    crowd.run()
    assert p95(crowd.ttft_ms) > 10_000


def test_below_the_knee_nobody_is_refused() -> None:
    crowd = Crowd(PACED, 0.85 * RATE, 60, 1)
    crowd.run()
    assert crowd.admission.ended == {"done": crowd.admission.arrived}
