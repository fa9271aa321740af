"""The API servers before the engine: each does one thing at a time, so they can bind before the engine does.

A request waits for the server that is free first, and is then that server's: its tokens queue there, behind
whatever the server has taken on before (`knee.engine.config.FrontEnd`).
"""

import asyncio
import heapq
import itertools
from collections.abc import Callable

from knee.core.clock import Clock
from knee.engine.config import FrontEnd
from knee.measure.client.pacing import Waker


class FrontEndQueue:
    """Keeps the servers' work apart in time. Instants are the clock's own."""

    def __init__(self, config: FrontEnd, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._free_at_ns = [0] * config.servers
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._waker = Waker(clock, self._ring)

    async def enter(self) -> int:
        """Get a request through the server that is free first; the number of that server."""
        server = min(range(self._config.servers), key=self._free_at_ns.__getitem__)
        if self._config.per_request_ns:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def let_in() -> None:
                if not done.done():  # its client may have gone away
                    done.set_result(None)

            self._work(server, self._config.per_request_ns, let_in)
            await done
        return server

    def emit(self, server: int, tokens: int, then: Callable[[], None]) -> None:
        """Get `tokens` tokens out through `server`, and call `then`."""
        if self._config.per_token_ns:
            self._work(server, self._config.per_token_ns * tokens, then)
        else:
            then()

    def close(self) -> None:
        """Do nothing more."""
        self._due.clear()
        self._waker.close()

    def _work(self, server: int, cost_ns: int, then: Callable[[], None]) -> None:
        end_ns = max(self._free_at_ns[server], self._clock.monotonic_ns()) + cost_ns
        self._free_at_ns[server] = end_ns
        heapq.heappush(self._due, (end_ns, next(self._order), then))
        if self._due[0][0] == end_ns:
            self._waker.arm(end_ns)

    def _ring(self) -> None:
        while self._due and self._due[0][0] <= self._clock.monotonic_ns():
            heapq.heappop(self._due)[2]()
        if self._due:
            self._waker.arm(self._due[0][0])


def has_cost(config: FrontEnd) -> bool:
    """Whether the front end takes any time at all."""
    return config.per_request_ns > 0 or config.per_token_ns > 0
