"""The API servers before the engine, each of which does one thing at a time: they can bind before it does.

A request waits for the server that is free first and is then that server's: each of its tokens queues there
behind whatever that server has taken on before. The engine's own metrics see none of it, as vLLM's do not.
"""

import heapq
from collections import Counter
from collections.abc import Iterator

from knee.core.requests import Ints, column
from knee.engine.config import FrontEnd
from knee.engine.drive import Load
from knee.engine.engine import Engine
from knee.engine.request import Request

FAR_NS = 1 << 62


class FrontEndQueue:
    """Servers, and until when each is busy."""

    def __init__(self, config: FrontEnd) -> None:
        self._config = config
        self._free_at_ns = [0] * config.servers

    def enter(self, at_ns: int) -> tuple[int, int]:
        """Take in a request that comes at `at_ns`: its server, and when the engine gets it."""
        server = min(range(self._config.servers), key=self._free_at_ns.__getitem__)
        return server, self._work(server, at_ns, self._config.per_request_ns)

    def emit(self, server: int, at_ns: int) -> int:
        """Send on a token that the engine made at `at_ns`: when the client has it."""
        if not self._config.per_token_ns:
            return at_ns
        return self._work(server, at_ns, self._config.per_token_ns)

    def _work(self, server: int, at_ns: int, cost_ns: int) -> int:
        done_ns = max(self._free_at_ns[server], at_ns) + cost_ns
        self._free_at_ns[server] = done_ns
        return done_ns


class Fronted:
    """An engine behind its front end, step by step. Instants of requests become those that clients see."""

    def __init__(self, engine: Engine, load: Load) -> None:
        self.engine = engine
        self.load = load
        self.front = FrontEndQueue(engine.config.front_end)
        self._order = 0
        self._entered: list[tuple[int, int, Request]] = []  # by when the engine gets them
        self._server: dict[Request, int] = {}
        self._told: dict[
            Request, list[int]
        ] = {}  # when its client had the first and the last token, and how many
        self._leaving: list[tuple[int, int, Request]] = []  # by when their clients have the last token
        self._gaps: list[tuple[int, int, int]] = []

    def run(self, now_ns: int, until_ns: int) -> int:
        """Run from `now_ns`; the end of the first step, or the first idle instant, not before `until_ns`."""
        while now_ns < until_ns:
            self._take_in(now_ns)
            step = self.engine.next_step(now_ns)
            if step is None:
                now_ns = max(now_ns, min(until_ns, self._next_ns()))
                self._let_go(now_ns)
                continue
            now_ns = step.end_ns
            self._let_go(now_ns - 1)  # their clients may send again before the step ends
            self._take_in(now_ns - 1)
            self.engine.settle(now_ns)
            self._send_on(step.emitted, now_ns)
            for request in step.finished:
                heapq.heappush(self._leaving, (self._told[request][1], self._number(), request))
            self._let_go(now_ns)
        return now_ns

    def unfinished(self, now_ns: int) -> Iterator[tuple[Request, int, int, int]]:
        """Requests of which clients have some tokens: when the first came, how many are sent on, the last."""
        for request, (first_ns, last_ns, tokens) in self._told.items():
            if first_ns <= now_ns:
                yield request, first_ns, tokens, min(last_ns, now_ns)

    def take_gaps(self, now_ns: int) -> Ints:
        """The gaps that clients saw by `now_ns`, since the last call: (ns, between how many pairs, when)."""
        seen = sorted((gap for gap in self._gaps if gap[2] <= now_ns), key=lambda gap: gap[2])
        self._gaps = [gap for gap in self._gaps if gap[2] > now_ns]
        return column(seen).reshape(-1, 3)

    def _take_in(self, until_ns: int) -> None:
        """Requests that arrive by `until_ns` enter the front end; those that come out of it, the engine."""
        upcoming = self.load.upcoming
        while upcoming and upcoming[0].arrival_ns <= until_ns:
            request = self.load.take()
            self._server[request], ready_ns = self.front.enter(request.arrival_ns)
            # vLLM's clock for TTFT starts when a server gets to the request.
            request.arrival_ns = ready_ns - self.engine.config.front_end.per_request_ns
            heapq.heappush(self._entered, (ready_ns, self._number(), request))
        while self._entered and self._entered[0][0] <= until_ns:
            ready_ns, _, request = heapq.heappop(self._entered)
            reason = self.engine.add(request, ready_ns)
            if reason:
                del self._server[request]
                self.load.refused(request, reason, ready_ns)

    def _send_on(self, emitted: tuple[Request, ...], at_ns: int) -> None:
        gaps = Counter[tuple[int, int]]()
        for request in emitted:
            out_ns = self.front.emit(self._server[request], at_ns)
            told = self._told.get(request)
            if told is None:
                self._told[request] = [out_ns, out_ns, 1]
                continue
            gaps[out_ns - told[1], out_ns] += 1
            told[1] = out_ns
            told[2] += 1
        self._gaps += [(ns, count, out_ns) for (ns, out_ns), count in gaps.items()]

    def _let_go(self, now_ns: int) -> None:
        """Requests end when their clients have the last token."""
        while self._leaving and self._leaving[0][0] <= now_ns:
            _, _, request = heapq.heappop(self._leaving)
            request.first_ns, request.last_ns, _ = self._told.pop(request)
            request.finished_ns = request.last_ns
            del self._server[request]
            self.load.ended([request])

    def _next_ns(self) -> int:
        """When something happens next while the engine is idle."""
        arrives = self.load.upcoming[0].arrival_ns if self.load.upcoming else FAR_NS
        enters = self._entered[0][0] if self._entered else FAR_NS
        leaves = self._leaving[0][0] if self._leaving else FAR_NS
        return min(arrives, enters, leaves)

    def _number(self) -> int:
        self._order += 1
        return self._order
