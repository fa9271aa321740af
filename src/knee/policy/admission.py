"""Who may enter: a bound on requests in flight, and a short queue with a deadline in front of it.

Every request is one ticket, from its arrival to its last byte. The books balance at every instant:

    arrived = in flight + queued + done + left + expired + shed

No clock inside: every call takes `now_ns`. The caller acts on the ticket's state and closes it once.
"""

from collections import Counter
from typing import Literal

import msgspec

from knee.core.units import format_duration
from knee.policy.drain import DrainRate, retry_after_s
from knee.policy.pace import Pace

State = Literal["admitted", "queued", "done", "left", "expired", "shed"]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one replica may be given; a fleet of n ready replicas may be given n times as much.

    `max_in_flight` and `max_queue` count requests, `queue_deadline_ns` bounds the wait for a place while a
    replica is ready, `ready_wait_ns` the wait for any replica to become ready. `drain_rate` (requests/s, one
    replica) is what a knee promises before anything has been seen. With a `burst`, requests in flight become
    more by so many at once and then by `drain_rate` a second, not faster (see `policy.pace`).
    """

    max_in_flight: int
    max_queue: int
    queue_deadline_ns: int
    ready_wait_ns: int = 30_000_000_000
    drain_rate: float | None = None
    burst: int | None = None

    def __post_init__(self) -> None:
        if self.max_in_flight < 1 or self.max_queue < 0 or self.queue_deadline_ns < 0:
            raise ValueError(f"limits must be positive: {self!r}")
        if self.burst is not None and (self.burst < 1 or not self.drain_rate):
            raise ValueError(f"a burst is at least 1 and goes with a drain rate: {self!r}")

    def __str__(self) -> str:
        """As an operator reads it: `60 in flight, 12 queued for at most 800 ms`."""
        wait = format_duration(self.queue_deadline_ns)
        queue = f"{self.max_queue} queued for at most {wait}" if self.max_queue else "no queue"
        return f"{self.max_in_flight} in flight, {queue}"


class Ticket:
    """One request's place. Compared by identity."""

    __slots__ = ("arrived_ns", "deadline_ns", "no_replica", "state")

    def __init__(self, state: State, arrived_ns: int, deadline_ns: int, no_replica: bool) -> None:
        self.state: State = state
        self.arrived_ns = arrived_ns
        self.deadline_ns = deadline_ns
        self.no_replica = no_replica


class Admission:
    """The bound, the queue and the books."""

    def __init__(self, limits: Limits, replicas: int = 0) -> None:
        self.limits = limits
        self.replicas = replicas
        self.in_flight = 0
        self.arrived = 0
        self.ended: Counter[State] = Counter()
        self._queue: dict[Ticket, None] = {}
        self._drain = DrainRate(limits.drain_rate)
        self._pace = (
            Pace(limits.burst, limits.drain_rate, replicas) if limits.burst and limits.drain_rate else None
        )

    @property
    def capacity(self) -> int:
        """Requests that may be in flight with the replicas that are ready now."""
        return self.limits.max_in_flight * self.replicas

    @property
    def queued(self) -> int:
        """Requests that wait for a place."""
        return len(self._queue)

    def arrive(self, now_ns: int) -> Ticket:
        """A ticket that is admitted, queued until its `deadline_ns`, or shed."""
        self.arrived += 1
        alone = self.replicas == 0
        ticket = Ticket("queued", now_ns, now_ns + self._patience_ns(), no_replica=alone)
        if not self._queue and self._may_begin(now_ns):
            self._admit(ticket, now_ns)
        elif len(self._queue) < self._queue_bound() and ticket.deadline_ns > now_ns:
            self._queue[ticket] = None
        else:
            self._end(ticket, "shed")
        return ticket

    def turn_away(self, now_ns: int, full: bool = False) -> bool:
        """Whether a request that arrives now is refused (always, where `full`); if so it has been counted."""
        patient = self._patience_ns() > 0 and len(self._queue) < self._queue_bound()
        room = self.in_flight < self.capacity and not self._queue and self._pace_ns(now_ns) == now_ns
        if not full and (patient or room):
            return False
        self.arrived += 1
        self._end(Ticket("queued", now_ns, now_ns, no_replica=self.replicas == 0), "shed")
        return True

    def close(self, ticket: Ticket, now_ns: int) -> list[Ticket]:
        """End `ticket`; the tickets whose state changed because of it. Closing twice changes nothing."""
        if ticket.state == "queued":
            del self._queue[ticket]
            ticket.no_replica = self.replicas == 0
            self._end(ticket, "expired" if now_ns >= ticket.deadline_ns else "left")
            return []
        if ticket.state != "admitted":
            return []
        self.in_flight -= 1
        self._end(ticket, "done")
        self._drain.note(now_ns, self.in_flight >= self.capacity, finished=1)
        if self._pace is not None:
            self._pace.give_back(now_ns)
        return self._fill(now_ns)

    def resize(self, replicas: int, now_ns: int) -> list[Ticket]:
        """`replicas` are ready from now on; the queued tickets whose state changed because of it."""
        self.replicas = replicas
        if self._pace is not None:
            self._pace.scale(replicas, now_ns)
        self._drain.note(now_ns, self.in_flight >= self.capacity)
        return self._fill(now_ns)

    def wake_ns(self, now_ns: int) -> int | None:
        """When to call `advance`: the pace then no longer holds a queued request back; None for never."""
        return self._pace_ns(now_ns) if self._queue and self.in_flight < self.capacity else None

    def advance(self, now_ns: int) -> list[Ticket]:
        """Time has passed; the queued tickets whose state changed because of it."""
        return self._fill(now_ns)

    def retry_after_s(self, now_ns: int) -> int | None:
        """What to tell a refused client, in seconds; None below one second."""
        return retry_after_s(len(self._queue), self._drain.per_s(now_ns))

    def _patience_ns(self) -> int:
        return self.limits.queue_deadline_ns if self.replicas else self.limits.ready_wait_ns

    def _queue_bound(self) -> int:
        # With no replica ready there is nothing in flight; what one could take may wait for it.
        if self.replicas:
            return self.limits.max_queue * self.replicas
        return self.limits.max_queue + self.limits.max_in_flight

    def _pace_ns(self, now_ns: int) -> int | None:
        return now_ns if self._pace is None else self._pace.ready_ns(now_ns)

    def _may_begin(self, now_ns: int) -> bool:
        """Whether one more may be in flight; if so the pace has been charged for it."""
        return self.in_flight < self.capacity and (self._pace is None or self._pace.take(now_ns))

    def _admit(self, ticket: Ticket, now_ns: int) -> None:
        ticket.state = "admitted"
        self.in_flight += 1
        self._drain.note(now_ns, self.in_flight >= self.capacity)

    def _fill(self, now_ns: int) -> list[Ticket]:
        changed = []
        while self._queue:
            ticket = next(iter(self._queue))
            if now_ns >= ticket.deadline_ns:
                self._end(ticket, "expired")
            elif self._may_begin(now_ns):
                self._admit(ticket, now_ns)
            else:
                break
            del self._queue[ticket]
            changed.append(ticket)
        return changed

    def _end(self, ticket: Ticket, state: State) -> None:
        ticket.state = state
        self.ended[state] += 1
