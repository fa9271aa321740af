"""A plain connection: bytes are stamped when they came, nothing is lost, and every end is told once."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable

import pytest

from knee.http1.wire import KERNEL_STAMPS, Reader, Wire, connect_tcp

pytestmark = pytest.mark.skipif(not KERNEL_STAMPS, reason="the kernel's instants are Linux's")
WAIT_S = 5.0


class Heard:
    """Notes what a wire tells."""

    def __init__(self) -> None:
        self.last_ns = 0
        self.pieces: list[tuple[int, bytes]] = []
        self.lost: list[Exception | None] = []
        self.over = asyncio.Event()
        self.came = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...

    def received(self, data: bytes, at_ns: int) -> None:
        self.last_ns = at_ns
        self.pieces.append((at_ns, data))
        self.came.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)
        self.over.set()

    @property
    def text(self) -> bytes:
        return b"".join(data for _, data in self.pieces)

    async def hears(self, text: bytes) -> None:
        while text not in self.text:
            self.came.clear()
            await asyncio.wait_for(self.came.wait(), WAIT_S)


Talk = Callable[[socket.socket, Wire, Heard], Awaitable[None]]


def talk(what: Talk, wall: Callable[[], int] = time.time_ns) -> Heard:
    """Run `what` with a fresh connection: the far end, a wire, and what it tells."""

    async def main() -> Heard:
        with socket.create_server(("127.0.0.1", 0)) as server:
            near = await connect_tcp("127.0.0.1", server.getsockname()[1])
            far, _ = server.accept()
            heard = Heard()
            reader = Reader(time.monotonic_ns, wall)
            wire = Wire(near, heard, reader)
            try:
                await what(far, wire, heard)
            finally:
                wire.abort()
                far.close()
                await asyncio.wait_for(heard.over.wait(), WAIT_S)
                reader.close()
            return heard

    return asyncio.run(main())


def test_what_came_while_the_loop_was_away_is_stamped_when_it_came() -> None:
    wrote_ns = 0

    async def away(far: socket.socket, wire: Wire, heard: Heard) -> None:  # noqa: ARG001
        nonlocal wrote_ns
        far.sendall(b"x")  # Linux turns its stamps on a moment after the first connection asks for them
        await asyncio.sleep(0.05)
        wrote_ns = time.monotonic_ns()
        far.sendall(b"token")
        time.sleep(0.2)  # noqa: ASYNC251 - the loop is away
        await heard.hears(b"token")

    at_ns, data = talk(away).pieces[-1]
    assert data == b"token"
    assert 0 <= at_ns - wrote_ns < 50_000_000


@pytest.mark.parametrize("off_s", [-3600, 3600])
def test_a_wall_clock_that_was_set_moves_no_instant_before_what_was_known(off_s: int) -> None:
    sent_ns = 0

    async def one(far: socket.socket, wire: Wire, heard: Heard) -> None:  # noqa: ARG001
        nonlocal sent_ns
        heard.last_ns = sent_ns = time.monotonic_ns()
        far.sendall(b"token")
        await heard.hears(b"token")

    heard = talk(one, lambda: time.time_ns() + off_s * 1_000_000_000)
    assert sent_ns <= heard.pieces[0][0] <= time.monotonic_ns()


def test_what_the_socket_does_not_take_at_once_is_sent_on() -> None:
    whole = bytes(range(256)) * 40_000
    got = bytearray()

    async def much(far: socket.socket, wire: Wire, heard: Heard) -> None:  # noqa: ARG001
        def read() -> None:
            far.settimeout(WAIT_S)
            while len(got) < len(whole) + 3:
                got.extend(far.recv(1 << 20))

        wire.write(whole)
        wire.write(b"end")
        await asyncio.to_thread(read)

    talk(much)
    assert bytes(got) == whole + b"end"


def test_a_wire_that_is_held_back_reads_on_where_it_was() -> None:
    async def held(far: socket.socket, wire: Wire, heard: Heard) -> None:
        wire.pause_reading()
        far.sendall(b"later")
        await asyncio.sleep(0.05)
        assert heard.pieces == []
        wire.resume_reading()
        await heard.hears(b"later")

    assert talk(held).text == b"later"


def test_pieces_that_come_faster_than_it_looks_are_read_one_by_one() -> None:
    """Each is sent when the one before was heard: read every millisecond they would take half a second."""
    took_s = 0.0

    async def in_turns(far: socket.socket, wire: Wire, heard: Heard) -> None:  # noqa: ARG001
        nonlocal took_s
        begun_s = time.monotonic()
        for number in range(500):
            piece = b"<%d>" % number
            far.sendall(piece)
            await heard.hears(piece)
        took_s = time.monotonic() - begun_s

    heard = talk(in_turns)
    assert len(heard.pieces) == 500
    assert took_s < 0.45


def test_the_other_side_ends_it() -> None:
    async def closes(far: socket.socket, wire: Wire, heard: Heard) -> None:
        far.sendall(b"bye")
        far.close()
        await asyncio.wait_for(heard.over.wait(), WAIT_S)
        assert wire.is_closing()
        wire.write(b"too late")

    heard = talk(closes)
    assert heard.text == b"bye"
    assert heard.lost == [None]


def test_the_other_side_resets_it() -> None:
    async def resets(far: socket.socket, wire: Wire, heard: Heard) -> None:
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        far.close()
        await asyncio.wait_for(heard.over.wait(), WAIT_S)
        assert wire.is_closing()

    (lost,) = talk(resets).lost
    assert isinstance(lost, ConnectionResetError)


def test_aborted_twice_it_is_over_once() -> None:
    async def drops(far: socket.socket, wire: Wire, heard: Heard) -> None:  # noqa: ARG001
        wire.abort()
        wire.abort()
        await asyncio.sleep(0)

    assert talk(drops).lost == [None]


def test_nobody_listens_or_the_name_is_not_known() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        asyncio.run(connect_tcp("127.0.0.1", port))
    with pytest.raises(ConnectionRefusedError):
        asyncio.run(connect_tcp("localhost", port))
    with pytest.raises(socket.gaierror):
        asyncio.run(connect_tcp("no-such-host.invalid", port))
