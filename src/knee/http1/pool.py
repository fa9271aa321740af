"""Connections to one server, kept alive, with every wait bounded."""

import asyncio
import ssl
from contextlib import suppress

import msgspec

from knee.core.clock import Clock
from knee.core.units import NS_PER_S
from knee.http1.failure import Cause, name_failure
from knee.http1.origin import Origin
from knee.http1.outbound import BODY_LIMIT, Exchange, Outbound
from knee.http1.wire import KERNEL_STAMPS, Reader, Wire, connect_tcp

TICK_S = 0.025
"""How often deadlines are looked at; a timeout is at most this late."""
IDLE_NS = 4 * NS_PER_S
"""A connection idle for longer is not used again: uvicorn, under vLLM, closes them after 5 s."""


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds in seconds: to connect, from the send to the first byte, between bytes, from start to end."""

    connect_s: float = 10.0
    first_byte_s: float = 600.0
    between_bytes_s: float = 120.0
    total_s: float = 3_600.0


class Pool:
    """Connections to `origin`. `start` sends a request at once on a free connection, or on a new one.

    With `stamps`, what comes is stamped when this machine had it, not when it was read, where the system
    tells (`wire`) and there is no TLS. Made and used inside a running event loop; `close` ends everything
    under way with `client_stopped`.
    """

    def __init__(
        self,
        origin: Origin,
        clock: Clock,
        timeouts: Timeouts,
        *,
        tls: ssl.SSLContext | None = None,
        limit: int = 20_000,
        body_limit: int = BODY_LIMIT,
        stamps: bool = False,
    ) -> None:
        self._origin = origin
        self._now = clock.monotonic_ns
        self._connect_ns = int(timeouts.connect_s * NS_PER_S)
        self._first_ns = int(timeouts.first_byte_s * NS_PER_S)
        self._between_ns = int(timeouts.between_bytes_s * NS_PER_S)
        self._total_ns = int(timeouts.total_s * NS_PER_S)
        self._tls = (tls or ssl.create_default_context()) if origin.secure else None
        stamped = stamps and KERNEL_STAMPS and self._tls is None
        self._reader = Reader(clock.monotonic_ns, clock.wall_ns) if stamped else None
        self._limit = limit
        self._body_limit = body_limit
        self._loop = asyncio.get_running_loop()
        self._free: list[Outbound] = []
        self._busy: set[Outbound] = set()
        self._connecting: dict[asyncio.Task[None], tuple[Exchange, int]] = {}
        self._closed = False
        self._soonest_ns = min(self._first_ns, self._between_ns, self._total_ns)
        self._look_ns = 0
        """Before this instant no exchange under way can pass a bound."""
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        self.opened = 0
        """Connections opened so far."""

    @property
    def in_flight(self) -> int:
        """Exchanges under way."""
        return len(self._busy) + len(self._connecting)

    def start(self, exchange: Exchange, request: bytes) -> None:
        """Send `request`; whatever comes of it, `exchange` hears it, and hears it end."""
        while self._free:
            connection = self._free.pop()
            if self._usable(connection):
                self._busy.add(connection)
                connection.send(exchange, request)
                return
            connection.close()
        self._start_fresh(exchange, request)

    def close(self) -> None:
        """End all exchanges under way as failed and drop all connections."""
        self._closed = True
        self._ticker.cancel()
        for task in list(self._connecting):
            self._give_up(task, "client_stopped")
        for connection in list(self._busy):
            connection.fail("client_stopped")
        for connection in self._free:
            connection.close()
        self._free.clear()
        if self._reader is not None:
            self._reader.close()

    def stop(self, exchange: Exchange) -> None:
        """Give up one exchange, if it is under way; it hears no more."""
        for connection in self._busy:
            if connection.carries(exchange):
                self._busy.discard(connection)
                connection.close()
                return
        for task, (waiting, _) in self._connecting.items():
            if waiting is exchange:
                del self._connecting[task]
                task.cancel()
                return

    def _usable(self, connection: Outbound) -> bool:
        """Whether a free connection may carry another request."""
        return connection.last_ns >= self._now() - IDLE_NS

    def _stale(self, exchange: Exchange, request: bytes) -> None:
        """A connection that was kept turned out to be closed."""
        self._start_fresh(exchange, request)

    def _start_fresh(self, exchange: Exchange, request: bytes) -> None:
        now_ns = self._now()
        if self._closed:
            exchange.fail(now_ns, "client_stopped", "")
        elif self.in_flight >= self._limit:
            exchange.fail(now_ns, "client_connections", str(self._limit))
        else:
            task = self._loop.create_task(self._connect(exchange, request))
            self._connecting[task] = (exchange, now_ns)

    async def _connect(self, exchange: Exchange, request: bytes) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.opened += 1
        connection = Outbound(self._now, self._released, self._stale, self._body_limit)
        try:
            await self._open(connection)
        except OSError as error:
            if self._connecting.pop(task, None) is not None:
                exchange.fail(self._now(), *name_failure(error))
            return
        if self._connecting.pop(task, None) is None:  # given up while it was being opened
            connection.close()
            return
        self._busy.add(connection)
        connection.send(exchange, request)

    async def _open(self, connection: Outbound) -> None:
        host, port = self._origin.host, self._origin.port
        if self._reader is not None:
            Wire(await connect_tcp(host, port), connection, self._reader)
        else:
            await self._loop.create_connection(lambda: connection, host, port, ssl=self._tls)

    def _released(self, connection: Outbound, reusable: bool) -> None:
        self._busy.discard(connection)
        if reusable and not self._closed:
            self._free.append(connection)
        elif not reusable:
            with suppress(ValueError):
                self._free.remove(connection)

    def _give_up(self, task: asyncio.Task[None], cause: Cause) -> None:
        exchange, _ = self._connecting.pop(task)
        task.cancel()
        exchange.fail(self._now(), cause, "")

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        now_ns = self._now()
        for task, (_, started_ns) in list(self._connecting.items()):
            if now_ns - started_ns > self._connect_ns:
                self._give_up(task, "timeout_connect")
        if now_ns >= self._look_ns:
            self._end_late(now_ns)

    def _end_late(self, now_ns: int) -> None:
        """End what has passed a bound, and note when the next could."""
        self._look_ns = now_ns + self._soonest_ns
        late = []
        for connection in self._busy:
            wait_ns = self._between_ns if connection.heard else self._first_ns
            until_ns = min(connection.last_ns + wait_ns, connection.started_ns + self._total_ns)
            if until_ns >= now_ns or connection.paused:
                self._look_ns = min(self._look_ns, max(until_ns, now_ns))
            else:
                late.append(connection)
        for connection in late:
            if not connection.heard:
                connection.fail("timeout_first_byte")
            else:
                over = connection.started_ns + self._total_ns < now_ns
                connection.fail("timeout_total" if over else "timeout_stalled")
