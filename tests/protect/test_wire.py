"""What may not enter does not; what h11 reads differently from the gateway is nothing that gets through."""

import asyncio

import h11
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.protect.replica import Call, Client, Replica, ask, gateway, request, run, until, whole

BODY = b'{"prompt":"x"}'
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"

SMUGGLING = {
    "length and chunked": b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
    "lengths in a list": b"content-length: 5, 5\r\n\r\nhello",
    "negative length": b"content-length: -1\r\n\r\n",
    "length with a sign": b"content-length: +5\r\n\r\nhello",
    "chunked is not last": b"transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "chunked twice": b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "obscured coding": b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "space before the colon": b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n",
    "folded header": b"x: a\r\n transfer-encoding: chunked\r\n\r\n",
    "bare line feed": b"x: a\ncontent-length: 5\r\n\r\nhello",
    "bare carriage return": b"x: a\rcontent-length: 5\r\n\r\nhello",
    "zero byte": b"x: a\x00b\r\n\r\n",
    "two hosts": b"host: y\r\ncontent-length: 0\r\n\r\n",
    "odd chunk size": b"transfer-encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
    "chunk longer than it says": b"transfer-encoding: chunked\r\n\r\n2\r\nhello\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("name", sorted(SMUGGLING))
def test_a_request_that_could_be_read_in_two_ways_is_refused_and_nothing_behind_it_is_read(name: str) -> None:
    async def main() -> None:
        async with Replica() as replica, gateway(replica) as running:
            hidden = request(BODY, "/v1/hidden")
            got = await ask(running.server.port, HEAD + SMUGGLING[name] + hidden)
            assert got.status in (400, 501)
            assert got.json()["error"]["code"] == got.status
            assert not replica.calls
            assert (await ask(running.server.port, request())).status == 200  # nothing else is harmed

    run(main())


pieces = st.sampled_from(
    [
        b"content-length: 5\r\n", b"content-length: 6\r\n", b"Content-Length:5\r\n",
        b"content-length: 05\r\n",
        b"transfer-encoding: chunked\r\n", b"Transfer-Encoding: Chunked\r\n", b"transfer-encoding: gzip\r\n",
        b"transfer-encoding:chunked \r\n", b"x: y\r\n", b"x:\r\n", b"x : y\r\n", b" x: y\r\n", b"x: \ty\r\n",
        b"connection: close\r\n", b"connection: content-length\r\n", b"host: z\r\n", b"x: a\nb: c\r\n",
        b"\r\n",
    ]
)  # fmt: skip
bodies = st.sampled_from(
    [b"", b"hello", b"5\r\nhello\r\n0\r\n\r\n", b"5;ext=1\r\nhello\r\n0\r\nt: v\r\n\r\n", b"hello!"]
)


def read_by_h11(data: bytes) -> list[tuple[bytes, bytes]] | None:
    """The requests that h11 sees in `data`, as (target, body); None where it refuses one."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    connection.receive_data(b"")
    found: list[tuple[bytes, bytes]] = []
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                found.append((bytes(event.target), b""))
            elif isinstance(event, h11.Data):
                found[-1] = (found[-1][0], found[-1][1] + bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                if connection.their_state is not h11.DONE:
                    return found
                connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
                connection.send(h11.EndOfMessage())
                connection.start_next_cycle()
            else:
                return found
    except h11.RemoteProtocolError:
        return None


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.lists(pieces, max_size=4), bodies), min_size=1, max_size=25))
def test_the_replica_never_sees_a_request_that_h11_does_not_see(
    cases: list[tuple[list[bytes], bytes]],
) -> None:
    async def echo(call: Call) -> None:
        await call.write(whole(200, b"{}"))

    async def one(port: int, data: bytes) -> None:
        client = await Client.connect(port)
        client.writer.write(data)
        client.writer.write_eof()
        try:
            async with asyncio.timeout(2):
                await client.reader.read()
        except OSError:
            pass
        client.close()

    async def main() -> None:
        async with Replica(echo) as replica, gateway(replica) as running:
            for headers, body in cases:
                data = HEAD + b"".join(headers) + b"\r\n" + body + request(BODY, "/v1/second")
                replica.calls.clear()
                await one(running.server.port, data)
                await until(lambda: not running.gateway.journeys)
                seen = [(call.head.split(b" ")[1], call.body) for call in replica.calls]
                theirs = read_by_h11(data)
                if theirs is not None:
                    assert seen == theirs[: len(seen)], data
                else:
                    assert (b"/v1/second", BODY) not in seen, data

    run(main(), seconds=60)


@pytest.mark.parametrize("size", [70_000, 5_000_000])
def test_large_headers_are_refused(size: int) -> None:
    async def main() -> None:
        async with Replica() as replica, gateway(replica) as running:
            got = await ask(running.server.port, HEAD + b"x-large: " + b"a" * size + b"\r\n\r\n")
            assert got.status == 431
            assert not replica.calls

    run(main())


def test_many_small_headers_are_refused_too() -> None:
    async def main() -> None:
        async with Replica() as replica, gateway(replica) as running:
            got = await ask(
                running.server.port, HEAD + b"".join(b"x%d: y\r\n" % n for n in range(500)) + b"\r\n"
            )
            assert got.status == 431

    run(main())


def test_slow_clients_cost_the_others_nothing() -> None:
    async def main() -> None:
        async with Replica() as replica, gateway(replica) as running:
            slow = [await Client.connect(running.server.port) for _ in range(300)]
            for client in slow:
                await client.send(HEAD[:20])
            loop = asyncio.get_running_loop()
            start = loop.time()
            for _ in range(10):
                assert (await ask(running.server.port, request())).status == 200
            health = await ask(running.admin.port, request(b"", "/healthz", method="GET"))
            assert (health.status, health.body) == (200, b"ok\n")
            assert loop.time() - start < 2
            for client in slow:
                client.close()

    run(main())


@pytest.mark.parametrize("method", ["HEAD", "PUT", "TRACE", "CONNECT"])
def test_other_methods_are_refused(method: str) -> None:
    async def main() -> None:
        async with Replica() as replica, gateway(replica) as running:
            client = await Client.connect(running.server.port)
            client.writer.write(request(b"", "/v1/models", "connection: close", method=method))
            said = await client.reader.read()
            assert said.split(b" ")[1] in (b"405", b"400", b"501")
            assert not replica.calls
            client.close()

    run(main())


def test_pipelined_requests_are_answered_in_order() -> None:
    async def number(call: Call) -> None:
        await call.write(whole(200, call.body))

    async def main() -> None:
        async with Replica(number) as replica, gateway(replica) as running:
            client = await Client.connect(running.server.port)
            client.writer.write(b"".join(request(b'{"n":%d}' % n) for n in range(5)))
            for n in range(5):
                await client.send(b"")
                assert (await client.answer()).body == b'{"n":%d}' % n
            client.close()

    run(main())
