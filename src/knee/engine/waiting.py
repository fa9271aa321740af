"""Requests that do not run: in order of arrival, the preempted before them, or by priority.

As in vLLM's v1/core/sched/request_queue.py.
"""

import heapq
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from knee.engine.config import Policy
from knee.engine.request import Rank, Request


class Waiting(Protocol):
    """The queue before the scheduler."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Request]: ...

    def add(self, request: Request) -> None:
        """Queue a new request."""

    def put_back(self, request: Request) -> None:
        """Queue a preempted request: at the head, or where its priority puts it."""

    def head(self) -> Request:
        """The next to run; the queue must not be empty."""

    def pop(self) -> Request:
        """Take the head."""

    def remove(self, request: Request) -> None:
        """Take out a request wherever it is."""


class Fcfs(deque[Request]):
    """First come, first served."""

    add = deque.append
    put_back = deque.appendleft
    pop = deque.popleft

    def head(self) -> Request:
        """The next to run."""
        return self[0]


class ByPriority:
    """The lower number first; among equals the earlier arrival."""

    def __init__(self) -> None:
        self._heap: list[tuple[Rank, Request]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return (request for _, request in sorted(self._heap))

    def add(self, request: Request) -> None:
        """Queue a request where its priority puts it."""
        heapq.heappush(self._heap, (request.rank, request))

    put_back = add

    def head(self) -> Request:
        """The next to run."""
        return self._heap[0][1]

    def pop(self) -> Request:
        """Take the head."""
        return heapq.heappop(self._heap)[1]

    def remove(self, request: Request) -> None:
        """Take out a request wherever it is."""
        self._heap = [entry for entry in self._heap if entry[1] is not request]
        heapq.heapify(self._heap)


def waiting(policy: Policy) -> Waiting:
    """An empty queue for `policy`."""
    return Fcfs() if policy == "fcfs" else ByPriority()
