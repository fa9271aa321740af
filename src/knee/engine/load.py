"""Requests on their way to an engine: at their own instants, or each when the one before it has ended."""

from collections import deque
from collections.abc import Iterator

from knee.core.requests import NEVER, Requests
from knee.core.units import NS_PER_MS
from knee.engine.request import Request
from knee.engine.seen import Seen

REFUSED_PAUSE_NS = 10 * NS_PER_MS
"""A closed-loop client whose request was refused sends its next one after this long, about a round trip."""


def one_by_one(stretches: Iterator[Requests], start_ns: int) -> Iterator[Request]:
    """Requests numbered from 0, each arriving at `start_ns` plus what the schedule says.

    The arrival of one that `follows` another is the pause after that one's end.
    """
    number = 0
    for stretch in stretches:
        shared = stretch.shared or ((),) * len(stretch)
        due, prompt, output = (
            column.tolist() for column in (stretch.due_ns, stretch.prompt_tokens, stretch.output_tokens)
        )
        follows = stretch.follows.tolist() if stretch.follows is not None else None
        for i, segments in enumerate(shared):
            request = Request(number, prompt[i], output[i], arrival_ns=start_ns + due[i], shared=segments)
            if follows is not None and follows[i] != NEVER:
                request.follows = follows[i]
                request.arrival_ns = due[i]
            yield request
            number += 1


class OpenLoop:
    """Arrivals that do not care what becomes of the requests before them, but for turns of a conversation.

    A conversation ends with a turn that is refused.
    """

    def __init__(self, requests: Iterator[Request], seen: Seen) -> None:
        self._requests = requests
        self._seen = seen
        self.upcoming: deque[Request] = deque()
        self._followers: dict[int, Request] = {}  # by the number of the request that each one follows
        self._numbers: dict[Request, int] = {}  # of requests under way, by which others may follow
        self._draw()

    def take(self) -> Request:
        """Take the next request; the one after it in the schedule is drawn."""
        request = self.upcoming.popleft()
        if request.follows == NEVER:
            self._draw()
        if self._followers:
            self._numbers[request] = int(request.id)
        request.id = len(self._seen)
        self._seen.offered(request)
        return request

    def refused(self, request: Request, reason: str, now_ns: int) -> None:
        """Note a refusal."""
        self._seen.refused(request, reason, now_ns)
        number = self._numbers.pop(request, NEVER)
        while number in self._followers:
            number = int(self._followers.pop(number).id)

    def ended(self, requests: list[Request]) -> None:
        """Note requests that got all their tokens; the next turns of conversations come after a pause."""
        for request in requests:
            self._seen.ended(request)
            number = self._numbers.pop(request, NEVER)
            follower = self._followers.pop(number, None)
            if follower is not None:
                follower.arrival_ns += request.finished_ns
                insert(self.upcoming, follower)

    def _draw(self) -> None:
        """Draw up to the next request that follows no other."""
        for request in self._requests:
            if request.follows == NEVER:
                insert(self.upcoming, request)
                return
            self._followers[request.follows] = request


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
        insert(self.upcoming, request)


def insert(upcoming: deque[Request], request: Request) -> None:
    """Put a request where it belongs by its arrival, and by its number among those of the same instant."""
    later, key = deque[Request](), (request.arrival_ns, request.id)
    while upcoming and (upcoming[-1].arrival_ns, upcoming[-1].id) > key:
        later.appendleft(upcoming.pop())
    upcoming.append(request)
    upcoming.extend(later)
