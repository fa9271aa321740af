"""Drive an engine through virtual time, one step after the other."""

from collections import deque
from typing import Protocol

from knee.engine.engine import Engine
from knee.engine.request import Request


class Load(Protocol):
    """Where requests come from, and who hears what becomes of them."""

    @property
    def upcoming(self) -> deque[Request]:
        """The next requests in order of arrival; empty only when none will come before one ends."""

    def take(self) -> Request:
        """Take the first of `upcoming`."""

    def refused(self, request: Request, reason: str, now_ns: int) -> None:
        """The engine did not take `request`, for `reason`."""

    def ended(self, requests: list[Request]) -> None:
        """These got all their tokens."""


def step_until(engine: Engine, load: Load, now_ns: int, until_ns: int) -> int:
    """Run `engine` under `load` from `now_ns` step by step; the end of the first step not before `until_ns`.

    A request that comes at the instant at which a step ends finds it ended.
    """
    upcoming = load.upcoming
    while now_ns < until_ns:
        offer(engine, load, now_ns)
        step = engine.next_step(now_ns)
        if step is None:
            now_ns = min(until_ns, upcoming[0].arrival_ns) if upcoming else until_ns
            continue
        now_ns = step.end_ns
        offer(engine, load, now_ns - 1)
        done = engine.settle(now_ns)
        if done:
            load.ended(done)
    return now_ns


def offer(engine: Engine, load: Load, until_ns: int) -> None:
    """Hand over every request that arrives by `until_ns`, each at its own instant."""
    upcoming = load.upcoming
    while upcoming and upcoming[0].arrival_ns <= until_ns:
        request = load.take()
        reason = engine.add(request, request.arrival_ns)
        if reason:
            load.refused(request, reason, request.arrival_ns)
