"""One answer on its way from a replica to a client: each piece is written as it comes, unchanged.

The replica's connection calls the relay, the relay writes to the client's response; the coroutine that
started it only waits. Where the client reads too slowly, the replica's connection stops reading.
"""

import asyncio
from typing import TYPE_CHECKING

from knee.http1.exchange import Response
from knee.http1.failure import Cause
from knee.http1.outbound import Headers
from knee.protect.answers import UPSTREAM, error_event, upstream_failed
from knee.protect.headers import headers_down

if TYPE_CHECKING:
    from knee.protect.upstream import Upstream

KEEP_ALIVE = b": keep-alive\n\n"
_TAIL_BYTES = 4


class Relay:
    """An exchange with `upstream` whose answer goes to `response`.

    Instants in ns, 0 where something did not happen: `sent_ns` when the request was handed to the socket,
    `first_ns` when the answer's head came, `last_ns` its latest byte. `cause` is why there was no whole
    answer. `events`: the answer is an event stream.
    """

    __slots__ = (
        "_over", "_paused", "_request_id", "_response", "_tail", "_wake", "cause", "events", "first_ns",
        "last_ns", "sent_ns", "status", "upstream",
    )  # fmt: skip

    def __init__(self, upstream: "Upstream", response: Response, request_id: str) -> None:
        self.upstream = upstream
        self._response = response
        self._request_id = request_id
        self._wake: asyncio.Future[None] | None = None
        self._over = self._paused = False
        self._tail = b""
        self.events = False
        self.status = 0
        self.sent_ns = self.first_ns = self.last_ns = 0
        self.cause: Cause | None = None

    async def run(self, request: bytes) -> None:
        """Send `request` and see its answer through; cancelling drops the replica's connection at once."""
        self.upstream.pool.start(self, request)
        try:
            while not self._over:
                self._wake = asyncio.get_running_loop().create_future()
                await self._wake
                if self._paused and not self._over:
                    await self._response.drain()
                    self._paused = False
                    self.upstream.pool.resume(self)
        finally:
            if not self._over:
                self._over = True
                self.upstream.pool.stop(self)

    def stop(self, message: str, kind: str) -> None:
        """End the answer before its time, with an error that the client can read."""
        if not self._over:
            self.upstream.pool.stop(self)
            self.cause = "client_stopped"
            self._break(message, kind, 503)
            self._end()

    def keep_alive(self, now_ns: int, after_ns: int) -> None:
        """Write a comment if the stream has been silent for `after_ns`; only between two events."""
        whole = not self._tail or self._tail.endswith(b"\n\n")
        if self.events and not self._over and whole and now_ns - self.last_ns >= after_ns:
            self.last_ns = now_ns
            self._response.write(KEEP_ALIVE)

    # What the replica's connection calls.

    def sent(self, now_ns: int) -> None:
        """The request was handed to the socket."""
        self.sent_ns = now_ns

    def head(self, now_ns: int, status: int, headers: Headers) -> None:
        """Status and headers have come."""
        self.first_ns = self.last_ns = now_ns
        self.status = status
        self.upstream.answered(status, now_ns)
        kept, length = headers_down(headers, self._request_id)
        self.events = any(
            name == b"content-type" and value.startswith(b"text/event-stream") for name, value in kept
        )
        if not self._response.disconnected:
            self._response.start(status, kept, length)

    def body(self, now_ns: int, data: bytes) -> None:
        """A piece of the body has come."""
        self.last_ns = self.upstream.last_byte_ns = now_ns
        response = self._response
        if response.disconnected:
            return
        response.write(data)
        if self.events:
            self._tail = (
                (self._tail + data)[-_TAIL_BYTES:] if len(data) < _TAIL_BYTES else data[-_TAIL_BYTES:]
            )
        if not response.writable and not self._paused:
            self._paused = True
            self.upstream.pool.pause(self)
            self._rouse()

    def end(self, now_ns: int) -> None:
        """The answer is whole."""
        self.last_ns = now_ns
        self._response.end()
        self._end()

    def fail(self, now_ns: int, cause: Cause, detail: str) -> None:
        """There will be no whole answer."""
        del detail
        self.cause = cause
        self.upstream.failed(cause, now_ns)
        refusal = upstream_failed(cause)
        self._break(f"The server failed in the middle of its answer ({cause}).", UPSTREAM, refusal.status)
        self._end()

    def _break(self, message: str, kind: str, code: int) -> None:
        """A stream that has begun ends with an error event, anything else by breaking the connection."""
        response = self._response
        if not response.started or response.ended or response.disconnected:
            return
        if self.events:
            response.write(error_event(message, kind, code, self._tail))
            response.end()
        else:
            response.cut()

    def _end(self) -> None:
        self._over = True
        self._rouse()

    def _rouse(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
