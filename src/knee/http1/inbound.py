"""One accepted connection: its requests to the handler one after the other, its answers in order.

The end of the client's stream counts as the client gone away, as in uvicorn and nginx: it is the only
sign of a client that closed its connection, and must be acted on at once.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, cast

from knee.core.units import NS_PER_S
from knee.http1.exchange import JSON, Request, Response, error_body
from knee.http1.reader import Refusal, RequestReader

if TYPE_CHECKING:
    from knee.http1.server import Server

LOG = logging.getLogger("knee.http1")


class Connection(asyncio.Protocol):
    """An accepted connection. `deadline_ns` is when the server's tick calls `overdue`; 0 is never."""

    __slots__ = (
        "_closing", "_lingers", "_peer", "_phase", "_reader", "_response", "_served", "_server", "_task",
        "_transport", "_writable", "deadline_ns",
    )  # fmt: skip

    def __init__(self, server: "Server") -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._reader = RequestReader(server.limits, server.screen)
        self._response: Response | None = None
        self._task: asyncio.Task[None] | None = None
        self._writable = True
        self._closing = self._lingers = self._served = False
        self._peer = ""
        self._phase = ""
        self.deadline_ns = 0

    # --- what the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name
        peer = transport.get_extra_info("peername")
        self._peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else ""
        self._transport.set_write_buffer_limits(high=self._server.limits.write_buffer_bytes)
        if not self._server.admit(self):
            self._reader.refuse(503, "too many connections")
        self._next()

    def data_received(self, data: bytes) -> None:
        """Bytes of one or several requests, or of a part of one."""
        reader = self._reader
        had = len(reader.ready)
        reader.feed(data)
        if len(reader.ready) > had:
            now_ns = self._server.clock.monotonic_ns()
            for index in range(had, len(reader.ready)):
                item = reader.ready[index]
                if isinstance(item, Request):
                    item.received_ns, item.peer = now_ns, self._peer
        if self._task is None:
            self._next()

    def eof_received(self) -> None:
        """The client will send no more: it has gone away. The transport now closes."""
        self._lost()
        self._closing = True
        self._pace()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        del exc
        self._transport = None
        self._lost()
        self._server.forget(self)

    def pause_writing(self) -> None:
        """The client reads more slowly than we write."""
        self._writable = False
        if self._response is not None:
            self._response.set_writable(False)
        self._pace()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._writable = True
        if self._response is not None:
            self._response.set_writable(True)
        self._pace()

    # --- answering, one request after the other

    def _next(self) -> None:
        if self._lingers or self._transport is None or self._transport.is_closing():
            return
        reader = self._reader
        if not reader.ready:
            self._rest()
            return
        item = reader.take()
        request = item if isinstance(item, Request) else Request("GET", "/", "1.1", [])
        response = self._response = Response(self, request)
        response.writable = self._writable
        response.keep_alive = isinstance(item, Request) and item.keep_alive and not self._server.stopping
        if isinstance(item, Refusal):
            self._server.refused[item.status] += 1
            response.send(
                item.status, (JSON, *item.headers), error_body(item.status, item.message, item.kind)
            )
            return
        self._task = asyncio.get_running_loop().create_task(self._server.handler(item, response))
        self._task.add_done_callback(self._handled)
        self._pace()

    def _rest(self) -> None:
        """Nothing to answer: wait for the next request, or for the rest of it."""
        if self._server.stopping and not self._reader.begun:
            self.close()
            return
        if self._reader.wants_continue:
            self._reader.wants_continue = False
            self.write_out(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._pace()

    def _handled(self, task: "asyncio.Task[None]") -> None:
        """The handler has returned, failed, or was cancelled."""
        response, self._task = self._response, None
        self._served = True
        error = None if task.cancelled() else task.exception()
        if error is not None:
            LOG.error("a request handler failed", exc_info=error)
        if response is None or self._transport is None:
            return
        if not response.ended:
            if response.started or task.cancelled():
                response.cut()
            else:
                response.send(500, (JSON,), error_body(500, "Internal Server Error"))
        self._response = None
        self._next()

    # --- what a response needs

    def write_out(self, data: bytes) -> None:
        """Hand bytes to the socket; nothing where there is none any more."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def common_headers(self) -> bytes:
        """The `date` and `server` lines."""
        return self._server.common_headers()

    def response_ended(self) -> None:
        """The current response is complete."""
        response, transport = self._response, self._transport
        if response is None or response.keep_alive or transport is None or transport.is_closing():
            return
        self._reader.stop()
        if self._reader.unread and transport.can_write_eof():
            # Closing with unread bytes resets the connection, and the client could lose the answer.
            transport.write_eof()
            self._lingers = True
            self._pace()
        else:
            self.close()

    def response_cut(self) -> None:
        """The current response cannot be completed."""
        if self._transport is not None:
            self._transport.abort()

    # --- waiting and ending

    @property
    def held_bytes(self) -> int:
        """Bytes of request bodies that are held and not yet in service."""
        return self._reader.held_bytes

    @property
    def idle(self) -> bool:
        """Whether no request is in service or waiting."""
        return self._task is None and not self._reader.ready

    def finish(self) -> None:
        """The server is stopping: close when the request in service has been answered."""
        if self.idle:
            self.close()
        elif self._response is not None and not self._response.started:
            self._response.keep_alive = False

    def close(self) -> None:
        """Close after what has been written."""
        if self._transport is not None:
            self._transport.close()
            self._closing = True
            self._pace()

    def abort(self) -> None:
        """Break the connection and cancel the handler."""
        if self._transport is not None:
            self._transport.abort()
        if self._task is not None:
            self._task.cancel()

    def overdue(self) -> None:
        """The deadline has passed: the client is too slow, or gone, or idle for too long."""
        if self._phase in ("head_seconds", "body_seconds"):
            self._reader.refuse(408, "the request did not arrive in time")
            self._next()
        elif self._phase in ("open_seconds", "idle_seconds"):
            self.close()
        else:
            self.abort()

    def _lost(self) -> None:
        self._reader.stop()
        response = self._response
        if response is not None:
            response.set_disconnected()
            if self._task is not None and not response.ended:
                self._task.cancel()

    def _pace(self) -> None:
        """Set the deadline that goes with what is now waited for; it is named after its limit."""
        if self._lingers:
            phase = "linger_seconds"
        elif self._closing or not self._writable:
            phase = "write_seconds"
        elif self._task is not None:
            phase = ""
        elif self._reader.begun:
            phase = "body_seconds" if self._reader.in_body else "head_seconds"
        else:
            phase = "idle_seconds" if self._served else "open_seconds"
        if phase != self._phase:  # bytes that trickle in do not move a deadline
            self._phase = phase
            seconds: float = getattr(self._server.limits, phase) if phase else 0.0
            self.deadline_ns = self._server.clock.monotonic_ns() + round(seconds * NS_PER_S) if phase else 0
