"""A plain TCP connection that knows when bytes came, not only when they were read.

A process stamps what it reads when it gets to it. Where the machine takes the core away for 10 ms, or 500
streams speak at once, that is later than the bytes came, and the client's own lateness passes for the
server's. Linux notes when a segment came (SO_TIMESTAMPNS, socket(7)).

So nothing is gained by reading at once, and much lost: waking up costs as much as reading. Wires are read
together, every millisecond while something comes.
"""

import asyncio
import select
import socket
import struct
import sys
from collections.abc import Callable
from typing import Protocol

READ_BYTES = 64 * 1024
TOGETHER_S = 0.001
MOST_AT_ONCE = 1024
_SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("qq").unpack
_ROOM = socket.CMSG_SPACE(16)
KERNEL_STAMPS = sys.platform.startswith("linux")
"""Whether this system notes when bytes came."""

Now = Callable[[], int]


class Listener(Protocol):
    """What a wire speaks to. `last_ns` is the latest instant it knows of: nothing can have come before."""

    last_ns: int

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""

    def received(self, data: bytes, at_ns: int) -> None:
        """Bytes came at that instant of the monotonic clock."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone, for whatever reason."""


async def connect_tcp(host: str, port: int) -> socket.socket:
    """A connected socket: of the addresses that a name has, the first that takes the connection.

    Raises:
        OSError: none does, or the name is not known.
    """
    loop = asyncio.get_running_loop()
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failure: OSError | None = None
    for family, kind, _, _, address in found:
        connected = socket.socket(family, kind)
        connected.setblocking(False)
        try:
            await loop.sock_connect(connected, address)
        except BaseException as error:
            connected.close()
            if not isinstance(error, OSError):
                raise
            failure = error
        else:
            return connected
    raise failure or OSError(f"no address of {host}")


class Reader:
    """Reads the wires of one event loop. `now` and `wall` are clocks in nanoseconds.

    Where most of the wires that have something had something at the look before as well, pieces come faster
    than it looks: two that lie in a socket together have one instant. Then it reads at once.
    """

    def __init__(self, now: Now, wall: Now) -> None:
        self.now = now
        self.wall = wall
        self._loop = asyncio.get_running_loop()
        self._poll = select.epoll()
        self._read: dict[int, Callable[[], None]] = {}
        self._last: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._loop.add_reader(self._poll.fileno(), self._look)

    def add(self, fd: int, read: Callable[[], None]) -> None:
        """Call `read` when there is something to read from `fd`."""
        if not self._poll.closed and fd not in self._read:
            self._poll.register(fd, select.EPOLLIN)
            self._read[fd] = read

    def remove(self, fd: int) -> None:
        """No longer, where it was asked for."""
        if self._read.pop(fd, None) is not None and not self._poll.closed:
            self._poll.unregister(fd)

    def close(self) -> None:
        """Read no more."""
        if self._poll.closed:
            return
        if self._timer is None:
            self._loop.remove_reader(self._poll.fileno())
        else:
            self._timer.cancel()
        self._poll.close()

    def _look(self) -> None:
        ready = {fd for fd, _ in self._poll.poll(0, MOST_AT_ONCE)}
        waits = 2 * len(ready & self._last) < len(ready)
        self._last = ready
        if waits:
            if self._timer is None:
                self._loop.remove_reader(self._poll.fileno())
            self._timer = self._loop.call_later(TOGETHER_S, self._look)
        elif self._timer is not None:
            self._timer = None
            self._loop.add_reader(self._poll.fileno(), self._look)
        for fd in ready:
            read = self._read.get(fd)
            if read is not None:  # what came before on another wire may have ended this one
                read()


class Wire(asyncio.Transport):
    """The connection `connected`, which `reader` reads.

    The kernel stamps by the wall clock, so how long bytes lay is what counts, and where that clock was set
    meanwhile, the bytes came no earlier than whatever the listener knew before.
    """

    def __init__(self, connected: socket.socket, listener: Listener, reader: Reader) -> None:
        super().__init__()
        self._socket = connected
        self._listener = listener
        self._reader = reader
        self._now = reader.now
        self._wall = reader.wall
        self._loop = asyncio.get_running_loop()
        self._fd = connected.fileno()
        self._receive = connected.recvmsg
        self._unsent = bytearray()
        self._closing = False
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        listener.connection_made(self)
        reader.add(self._fd, self._read)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send `data`, the rest of it when the socket takes more."""
        if self._closing:
            return
        if not self._unsent:
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self._lose(error)
                return
            if sent == len(data):
                return
            data = data[sent:]
            self._loop.add_writer(self._fd, self._write_on)
        self._unsent += data

    def abort(self) -> None:
        """Drop the connection; the listener hears of it in the loop's next turn."""
        self._lose(None)

    def is_closing(self) -> bool:
        """Whether the connection is gone, or about to be."""
        return self._closing

    def pause_reading(self) -> None:
        """Read no more until `resume_reading`."""
        self._reader.remove(self._fd)

    def resume_reading(self) -> None:
        """Read on."""
        if not self._closing:
            self._reader.add(self._fd, self._read)

    def get_extra_info(self, name: str, default: object = None) -> object:
        """The socket, under that name."""
        return self._socket if name == "socket" else default

    def _read(self) -> None:
        try:
            data, notes, _, _ = self._receive(READ_BYTES, _ROOM)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(error)
            return
        if not data:
            self._lose(None)
            return
        now_ns = self._now()
        if notes:
            seconds, nanoseconds = _TIMESPEC(notes[0][2])
            lay_ns = self._wall() - seconds * 1_000_000_000 - nanoseconds
            if lay_ns > 0:
                at_ns, known_ns = now_ns - lay_ns, self._listener.last_ns
                now_ns = at_ns if at_ns > known_ns else known_ns  # noqa: FURB136 - for every chunk: max is slower
        self._listener.received(data, now_ns)

    def _write_on(self) -> None:
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(error)
            return
        del self._unsent[:sent]
        if not self._unsent:
            self._loop.remove_writer(self._fd)

    def _lose(self, error: Exception | None) -> None:
        if self._closing:
            return
        self._closing = True
        self._reader.remove(self._fd)
        self._loop.remove_writer(self._fd)
        self._socket.close()
        self._loop.call_soon(self._listener.connection_lost, error)
