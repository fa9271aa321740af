"""The server over real sockets: order, limits, slow and vanishing clients, and how it stops."""

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest

from knee.core.clock import RealClock
from knee.core.errors import UsageError
from knee.http1.exchange import Request, Response
from knee.http1.limits import Limits
from knee.http1.loop import new_event_loop
from knee.http1.server import Handler, Server

TEXT = [(b"content-type", b"text/plain")]
GET = b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n"


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(main(), 20)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(bounded())


@asynccontextmanager
async def serving(handler: Handler, limits: Limits | None = None) -> AsyncIterator[Server]:
    server = Server(handler, clock=RealClock(), limits=limits, name=b"test")
    await server.listen("127.0.0.1", 0)
    try:
        yield server
    finally:
        await server.stop(0.0)
        assert server.open_connections == 0


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """One answer with a length or chunks, or until the connection ends."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    status = int(head.split()[1])
    headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
    if status < 200:
        return status, headers, b""
    if "content-length" in headers:
        return status, headers, await reader.readexactly(int(headers["content-length"]))
    if headers.get("transfer-encoding") != "chunked":
        return status, headers, await reader.read()
    body = b""
    while size := int((await reader.readuntil(b"\r\n")), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    assert await reader.readexactly(2) == b"\r\n"
    return status, headers, body


async def echo(request: Request, response: Response) -> None:
    """Slower for /slow, so that an answer out of order would show."""
    if request.path == "/slow":
        await asyncio.sleep(0.05)
    response.send(200, TEXT, request.target.encode() + b" " + request.body)


async def count(request: Request, response: Response) -> None:
    response.start(200, TEXT)
    for number in range(int(request.query or 5)):
        response.write(b"%d," % number)
        await response.drain()
    response.end()


def test_answers_keep_the_order_of_a_pipeline_on_one_connection() -> None:
    async def main() -> None:
        async with serving(echo) as server, connected(server) as (reader, writer):
            paths = [b"/slow", b"/1", b"/slow?2", b"/3", b"/4"]
            writer.write(b"".join(GET % path for path in paths))
            for path in paths:
                status, headers, body = await answer(reader)
                assert (status, body) == (200, path + b" ")
                assert headers["server"] == "test"
                assert headers["date"].endswith(" GMT")
            writer.write(GET % b"/again")
            assert (await answer(reader))[2] == b"/again "

    run(main)


def test_a_refusal_waits_for_its_turn_and_ends_the_connection() -> None:
    async def main() -> None:
        async with serving(echo) as server, connected(server) as (reader, writer):
            writer.write(GET % b"/slow" + b"nonsense\r\n\r\n" + GET % b"/never")
            assert (await answer(reader))[2] == b"/slow "
            status, headers, body = await answer(reader)
            assert (status, headers["connection"]) == (400, "close")
            assert msgspec.json.decode(body)["error"]["code"] == 400
            assert await reader.read() == b""

    run(main)


def test_a_body_over_the_limit_gets_a_json_413_before_it_is_sent() -> None:
    async def main() -> None:
        limits = Limits(body_bytes=1000)
        async with serving(echo, limits) as server, connected(server) as (reader, writer):
            writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 50_000)
            status, headers, body = await answer(reader)
            assert (status, headers["content-type"]) == (413, "application/json")
            assert msgspec.json.decode(body)["error"]["message"] == "the body is larger than 1000 bytes"

    run(main)


def test_the_default_limit_takes_a_body_of_32_mib() -> None:
    async def size(request: Request, response: Response) -> None:
        response.send(200, TEXT, b"%d" % len(request.body))

    async def main() -> None:
        async with serving(size) as server, aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{server.port}/"
            async with session.post(url, data=io.BytesIO(b"x" * (32 << 20))) as reply:
                assert await reply.text() == str(32 << 20)

    run(main)


@pytest.mark.parametrize("behind", [b"", GET % b"/slow"])
def test_expect_100_continue(behind: bytes) -> None:
    async def main() -> None:
        async with serving(echo) as server, connected(server) as (reader, writer):
            head = b"POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
            writer.write(behind + head)
            if behind:
                assert (await answer(reader))[2] == b"/slow ", "100 may not overtake an earlier answer"
            assert (await answer(reader))[0] == 100
            writer.write(b"abc")
            assert (await answer(reader))[2] == b"/p abc"

    run(main)


def test_streams_in_chunks_and_until_close_for_http_1_0() -> None:
    async def main() -> None:
        async with serving(count) as server:
            async with connected(server) as (reader, writer):
                writer.write(GET % b"/?3")
                status, headers, body = await answer(reader)
                assert (status, body) == (200, b"0,1,2,")
                assert headers["transfer-encoding"] == "chunked"
                writer.write(b"HEAD /?3 HTTP/1.1\r\nHost: a\r\n\r\n" + GET % b"/?1")
                assert b"0," not in await reader.readuntil(b"\r\n\r\n")
                assert (await answer(reader))[2] == b"0,", "a HEAD is answered without a body"
            async with connected(server) as (reader, writer):
                writer.write(b"GET /?3 HTTP/1.0\r\n\r\n")
                status, headers, body = await answer(reader)
                assert (status, body) == (200, b"0,1,2,")
                assert "transfer-encoding" not in headers

    run(main)


def test_http_1_0_keep_alive() -> None:
    async def main() -> None:
        async with serving(echo) as server, connected(server) as (reader, writer):
            for _ in range(2):
                writer.write(b"GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
                assert (await answer(reader))[1]["connection"] == "keep-alive"

    run(main)


def test_a_vanished_client_cancels_its_handler_at_once() -> None:
    async def main() -> None:
        ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        async def stream(request: Request, response: Response) -> None:
            del request
            response.start(200, TEXT)
            try:
                response.write(b"first")
                await asyncio.sleep(10)
            finally:
                ended.set_result(response.disconnected)

        async with serving(stream) as server, connected(server) as (reader, writer):
            writer.write(GET % b"/")
            await reader.readuntil(b"first")
            writer.close()
            assert await asyncio.wait_for(ended, 0.5) is True

    run(main)


def test_a_slow_reader_holds_up_the_handler_and_not_the_memory() -> None:
    async def main() -> None:
        written = 0

        async def flood(request: Request, response: Response) -> None:
            nonlocal written
            del request
            response.start(200, TEXT)
            for _ in range(250):
                response.write(b"x" * 65536)
                written += 65536
                await response.drain()
            response.end()

        async with serving(flood) as server, connected(server) as (reader, writer):
            writer.write(GET % b"/")
            await asyncio.sleep(0.3)
            assert written < 12 << 20, "the kernel's buffers and ours, not the whole answer"
            _, _, body = await answer(reader)
            assert len(body) == 250 * 65536

    run(main)


def test_slow_clients_are_cut() -> None:
    limits = Limits(open_seconds=0.2, head_seconds=0.2, body_seconds=0.2, write_seconds=0.2)

    async def flood(request: Request, response: Response) -> None:
        del request
        response.start(200, TEXT)
        while not response.disconnected:
            response.write(b"x" * 65536)
            await response.drain()

    async def main() -> None:
        async with serving(flood, limits) as server:
            for start in (b"GET / HT", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab"):
                async with connected(server) as (reader, writer):
                    writer.write(start)
                    status, _, _ = await asyncio.wait_for(answer(reader), 2)
                    assert status == 408
            async with connected(server) as (reader, writer):
                assert await asyncio.wait_for(reader.read(), 2) == b"", "an idle connection closes silently"
            async with connected(server) as (_, writer):
                writer.write(GET % b"/")
                await asyncio.sleep(1.2)
                assert server.open_connections == 0, "a client that reads nothing is cut"

    run(main)


def test_an_idle_connection_closes_after_its_last_answer() -> None:
    async def main() -> None:
        async with serving(echo, Limits(idle_seconds=0.2)) as server, connected(server) as (reader, writer):
            await asyncio.sleep(0.6)
            writer.write(GET % b"/late")
            assert (await answer(reader))[2] == b"/late ", "the first request may take longer"
            assert await asyncio.wait_for(reader.read(), 2) == b""

    run(main)


def test_bytes_that_trickle_do_not_extend_a_deadline() -> None:
    async def main() -> None:
        async with serving(echo, Limits(head_seconds=0.5)) as server, connected(server) as (reader, writer):
            reading = asyncio.ensure_future(answer(reader))
            for byte in GET % b"/abcdefghijklmnopqrstuvwxyz":
                writer.write(bytes([byte]))
                await asyncio.sleep(0.05)
                if reading.done():
                    break
            assert (await reading)[0] == 408

    run(main)


def test_a_failing_handler_is_a_500_or_a_broken_stream(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(request: Request, response: Response) -> None:
        if request.path == "/late":
            response.start(200, TEXT)
            response.write(b"part")
            await asyncio.sleep(0)
        if request.path == "/short":
            response.start(200, TEXT, length=10)
            response.write(b"part")
            response.end()
        elif request.path != "/silent":
            raise RuntimeError("as it happens")

    async def main() -> None:
        async with serving(fail) as server:
            for path in (b"/early", b"/silent"):
                async with connected(server) as (reader, writer):
                    writer.write(GET % path)
                    status, _, body = await answer(reader)
                    assert status == 500
                    assert msgspec.json.decode(body)["error"]["message"] == "Internal Server Error"
                    writer.write(GET % path)
                    assert (await answer(reader))[0] == 500, "the connection is still good"
            for path in (b"/late", b"/short"):
                async with connected(server) as (reader, writer):
                    writer.write(GET % path)
                    with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                        await answer(reader)

    run(main)
    assert "as it happens" in caplog.text


def test_stop_lets_requests_finish_and_refuses_new_ones() -> None:
    async def main() -> None:
        async def slow(request: Request, response: Response) -> None:
            await asyncio.sleep(float(request.query))
            response.send(200, TEXT, b"done")

        server = Server(slow, clock=RealClock())
        await server.listen("127.0.0.1", 0)
        port = server.port
        async with connected(server) as (reader, writer), connected(server) as (idle, _):
            writer.write(GET % b"/?0.3" + GET % b"/?0")
            await asyncio.sleep(0.05)
            stopping = asyncio.ensure_future(server.stop(5.0))
            _, headers, body = await answer(reader)
            assert (body, headers["connection"]) == (b"done", "close")
            assert await reader.read() == b"", "the second of the pipeline is not begun any more"
            assert await idle.read() == b""
            assert await stopping is True
            with pytest.raises(OSError, match="refused"):
                await asyncio.open_connection("127.0.0.1", port)

    run(main)


def test_stop_breaks_what_outlasts_the_grace() -> None:
    async def main() -> None:
        cancelled = asyncio.Event()

        async def stuck(request: Request, response: Response) -> None:
            del request, response
            try:
                await asyncio.sleep(60)
            finally:
                cancelled.set()

        server = Server(stuck, clock=RealClock())
        await server.listen("127.0.0.1", 0)
        async with connected(server) as (_, writer):
            writer.write(GET % b"/")
            await asyncio.sleep(0.05)
            assert await server.stop(0.1) is False
            assert cancelled.is_set()

    run(main)


def test_too_many_connections_get_a_503() -> None:
    async def main() -> None:
        async with serving(echo, Limits(connections=1)) as server, connected(server) as (first, writer):
            writer.write(GET % b"/")
            await answer(first)
            async with connected(server) as (second, _):
                assert (await answer(second))[0] == 503
            assert server.refused_connections == 1

    run(main)


def test_a_port_in_use_is_one_clear_error() -> None:
    async def main() -> None:
        async with serving(echo) as server:
            other = Server(echo, clock=RealClock())
            with pytest.raises(UsageError, match=rf"cannot listen on 127.0.0.1:{server.port}: "):
                await other.listen("127.0.0.1", server.port)

    run(main)


def test_misuse_of_a_response_is_an_error() -> None:
    async def main() -> None:
        seen: list[str] = []

        async def misuse(request: Request, response: Response) -> None:
            del request
            with pytest.raises(ValueError, match="outside"):
                response.write(b"x")
            with pytest.raises(ValueError, match="not a header"):
                response.start(200, [(b"a", b"b\r\nc: d")])
            seen.append("misused")
            response.cut()

        async with serving(misuse) as server, connected(server) as (reader, writer):
            writer.write(GET % b"/")
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await answer(reader)
        assert seen == ["misused"]

    run(main)


def test_aiohttp_as_the_client() -> None:
    async def main() -> None:
        async with serving(count) as server, aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{server.port}/"

            async def one(number: int) -> None:
                async with session.post(f"{url}?{number}", data=b"z" * number) as reply:
                    assert await reply.text() == "".join(f"{n}," for n in range(number))

            await asyncio.gather(*(one(number % 40 + 1) for number in range(200)))

    run(main)
