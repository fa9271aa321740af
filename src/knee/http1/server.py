"""An HTTP/1.1 server: listen, hand each request to a handler, stop gracefully.

    async def handler(request: Request, response: Response) -> None:
        response.send(200, [(b"content-type", b"text/plain")], b"hello")

    server = Server(handler, clock=RealClock())
    await server.listen("127.0.0.1", 0)
    ...
    await server.stop(grace_seconds=5.0)

The handler runs in a task of its own, which is cancelled when the client goes away. Requests on one
connection are answered in order. Every size and every wait has a bound, see `limits.py`.
"""

import asyncio
import errno
import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from email.utils import formatdate
from typing import Any

from knee.core.clock import Clock
from knee.core.errors import UsageError
from knee.core.units import NS_PER_S
from knee.http1.exchange import Request, Response
from knee.http1.inbound import Connection
from knee.http1.limits import Limits
from knee.http1.reader import Screen

Handler = Callable[[Request, Response], Coroutine[Any, Any, None]]

TICK_SECONDS = 0.25
"""How often deadlines are looked at, so how late a limit in seconds may act."""


class Server:
    """Accepts connections and keeps account of them.

    `screen` sees each request's head before its body is read. `refused` counts, by status, the requests that
    never reached the handler.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        clock: Clock,
        limits: Limits | None = None,
        name: bytes = b"knee",
        screen: Screen | None = None,
    ) -> None:
        self.handler = handler
        self.screen = screen
        self.refused: Counter[int] = Counter()
        self.clock = clock
        self.limits = limits or Limits()
        self.stopping = False
        self.refused_connections = 0
        self._name = name
        self._socket: socket.socket | None = None
        self._port = 0
        self._listener: asyncio.Server | None = None
        self._tick_handle: asyncio.TimerHandle | None = None
        self._connections: set[Connection] = set()
        self._empty = asyncio.Event()
        self._common = (0, b"")

    def reserve(self, host: str, port: int) -> None:
        """Take the port without opening it: clients are refused until `listen`. Port 0 takes a free one.

        Raises:
            UsageError: the address is in use or not ours.
        """
        if not 0 <= port <= 65_535:
            raise UsageError(f"cannot listen on port {port}", "ports go from 0 (any free one) to 65535")
        sock = None
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, kind, protocol, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
            sock = socket.socket(family, kind, protocol)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
        except OSError as error:
            if sock is not None:
                sock.close()
            in_use = error.errno == errno.EADDRINUSE
            hint = "another program has that port; port 0 takes a free one" if in_use else ""
            text = error.strerror or str(error)
            raise UsageError(f"cannot listen on {host}:{port}: {text}", hint) from error
        sock.setblocking(False)
        self._socket = sock
        self._port = int(sock.getsockname()[1])

    async def listen(self, host: str = "", port: int = 0) -> None:
        """Open the port that was reserved, or reserve one first.

        Raises:
            UsageError: the address is in use or not ours.
        """
        loop = asyncio.get_running_loop()
        if self._socket is None:
            self.reserve(host, port)
        assert self._socket is not None
        self._listener = await loop.create_server(
            lambda: Connection(self), sock=self._socket, backlog=self.limits.backlog
        )
        self._tick_handle = loop.call_later(TICK_SECONDS, self._tick)

    def close_port(self) -> None:
        """Refuse new connections; those that are open live on."""
        if self._listener is not None:
            self._listener.close()
        elif self._socket is not None:
            self._socket.close()

    @property
    def port(self) -> int:
        """The port that is reserved or listened on."""
        if self._socket is None:
            raise ValueError("the server has no port yet")
        return self._port

    @property
    def open_connections(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    @property
    def held_bytes(self) -> int:
        """Bytes of request bodies that have arrived and are not yet in service."""
        return sum(connection.held_bytes for connection in self._connections)

    async def stop(self, grace_seconds: float) -> bool:
        """Close the port, let requests in service finish, then break what is left; whether all finished."""
        self.stopping = True
        self.close_port()
        for connection in list(self._connections):
            connection.finish()
        finished = await self._until_empty(grace_seconds)
        for connection in list(self._connections):
            connection.abort()
        await self._until_empty(1.0)
        if self._tick_handle is not None:
            self._tick_handle.cancel()
        if self._listener is not None:
            await self._listener.wait_closed()
        return finished

    def admit(self, connection: Connection) -> bool:
        """Take a connection into account; False where there are too many."""
        self._connections.add(connection)
        self._empty.clear()
        if len(self._connections) <= self.limits.connections:
            return True
        self.refused_connections += 1
        return False

    def forget(self, connection: Connection) -> None:
        """A connection is gone."""
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()

    def common_headers(self) -> bytes:
        """The `date` and `server` lines, made once a second."""
        second = self.clock.wall_ns() // NS_PER_S
        if second != self._common[0]:
            date = formatdate(second, usegmt=True).encode()
            self._common = (second, b"date: " + date + b"\r\nserver: " + self._name + b"\r\n")
        return self._common[1]

    async def _until_empty(self, seconds: float) -> bool:
        if not self._connections:
            return True
        try:
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    def _tick(self) -> None:
        now_ns = self.clock.monotonic_ns()
        for connection in list(self._connections):
            if connection.deadline_ns and now_ns >= connection.deadline_ns:
                connection.overdue()
        self._tick_handle = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)
