"""Requests on their way to an engine: at their own instants, or each when the one before it has ended."""

from collections import deque
from collections.abc import Iterator

from knee.core.requests import Requests
from knee.core.units import NS_PER_MS
from knee.engine.request import Request
from knee.engine.seen import Seen

REFUSED_PAUSE_NS = 10 * NS_PER_MS
"""A closed-loop client whose request was refused sends its next one after this long, about a round trip."""


def one_by_one(stretches: Iterator[Requests], start_ns: int) -> Iterator[Request]:
    """Requests numbered from 0, each arriving at `start_ns` plus what the schedule says."""
    number = 0
    for stretch in stretches:
        shared = stretch.shared or ((),) * len(stretch)
        due, prompt, output = (
            column.tolist() for column in (stretch.due_ns, stretch.prompt_tokens, stretch.output_tokens)
        )
        for i, segments in enumerate(shared):
            yield Request(number, prompt[i], output[i], arrival_ns=start_ns + due[i], shared=segments)
            number += 1


class OpenLoop:
    """Arrivals that do not care what becomes of the requests before them."""

    def __init__(self, requests: Iterator[Request], seen: Seen) -> None:
        self._requests = requests
        self._seen = seen
        self.upcoming: deque[Request] = deque()
        self._draw()

    def take(self) -> Request:
        """Take the next request; the one after it is drawn."""
        request = self.upcoming.popleft()
        self._seen.offered(request)
        self._draw()
        return request

    def refused(self, request: Request, reason: str, now_ns: int) -> None:
        """Note a refusal."""
        self._seen.refused(request, reason, now_ns)

    def ended(self, requests: list[Request]) -> None:
        """Note requests that got all their tokens."""
        for request in requests:
            self._seen.ended(request)

    def _draw(self) -> None:
        request = next(self._requests, None)
        if request is not None:
            self.upcoming.append(request)


class ClosedLoop:
    """`clients` of them, each of which sends its next request when its last one has ended.

    Instants of the schedule are without meaning; only its lengths are used.
    """

    def __init__(self, requests: Iterator[Request], seen: Seen, clients: int, start_ns: int) -> None:
        self._requests = requests
        self._seen = seen
        self.upcoming: deque[Request] = deque()
        for _ in range(clients):
            self._send(start_ns)

    def take(self) -> Request:
        """Take the next request; pauses may have changed the order, so it gets its number now."""
        request = self.upcoming.popleft()
        request.id = len(self._seen)
        self._seen.offered(request)
        return request

    def refused(self, request: Request, reason: str, now_ns: int) -> None:
        """Note a refusal; the client tries again with its next request."""
        self._seen.refused(request, reason, now_ns)
        self._send(now_ns + REFUSED_PAUSE_NS)

    def ended(self, requests: list[Request]) -> None:
        """Note requests that got all their tokens; their clients send the next ones."""
        for request in requests:
            self._seen.ended(request)
            self._send(request.finished_ns)

    def _send(self, at_ns: int) -> None:
        request = next(self._requests, None)
        if request is None:
            return
        request.arrival_ns = at_ns
        later = deque[Request]()
        while self.upcoming and self.upcoming[-1].arrival_ns > at_ns:  # clients that pause after a refusal
            later.appendleft(self.upcoming.pop())
        self.upcoming.append(request)
        self.upcoming.extend(later)
