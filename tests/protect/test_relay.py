"""What comes out of the gateway is what the replica said, at once, and ends when either side does."""

import asyncio
import json

import pytest
from tests.protect.replica import (
    END,
    PROMPT,
    SSE,
    Call,
    Client,
    Replica,
    ask,
    chunk,
    event,
    gateway,
    request,
    run,
    until,
    whole,
)


def test_a_stream_comes_through_byte_for_byte() -> None:
    async def main() -> None:
        async with Replica() as replica, gateway(replica) as running:
            got = await ask(running.server.port, request())
            assert got.status == 200
            assert got.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert got.body == event(0) + event(1) + event(2) + b"data: [DONE]\n\n"
            assert not got.broken
            assert replica.calls[0].body == PROMPT

    run(main())


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_odd_chunks_and_binary_bodies_come_through_unchanged(size: int) -> None:
    body = bytes(range(256)) * 40

    async def odd(call: Call) -> None:
        await call.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for at in range(0, len(body), size):
            await call.write(chunk(body[at : at + size]))
        await call.write(END)

    async def main() -> None:
        async with Replica(odd) as replica, gateway(replica) as running:
            got = await ask(running.server.port, request(body))
            assert got.body == body
            assert replica.calls[0].body == body

    run(main())


def test_each_event_is_forwarded_before_the_next_one_exists() -> None:
    go_on = asyncio.Event()

    async def stepwise(call: Call) -> None:
        await call.write(SSE)
        for number in range(5):
            await call.write(chunk(event(number)))
            await go_on.wait()
            go_on.clear()
        await call.write(END)

    async def main() -> None:
        async with Replica(stepwise) as replica, gateway(replica) as running:
            client = await Client.connect(running.server.port)
            await client.send(request())
            await client.event()
            for number in range(5):
                data = await client.event()
                assert bytes(data.data) == event(number)
                go_on.set()
            client.close()

    run(main())


def test_the_answer_to_a_whole_request_keeps_its_length_and_status() -> None:
    async def plain(call: Call) -> None:
        await call.write(
            whole(200, b'{"choices":[]}', b"x-custom: kept\r\nconnection: x-hop\r\nx-hop: no\r\n")
        )

    async def main() -> None:
        async with Replica(plain) as replica, gateway(replica) as running:
            got = await ask(running.server.port, request(b'{"stream":false}'))
            assert got.headers["content-length"] == "14"
            assert got.headers["x-custom"] == "kept"
            assert "x-hop" not in got.headers
            assert got.headers["x-request-id"].startswith("knee-")

    run(main())


@pytest.mark.parametrize("status", [400, 401, 404, 422, 429, 500, 503])
def test_the_servers_own_refusals_pass_through(status: int) -> None:
    body = json.dumps({"error": {"message": "no", "type": "Bad Request", "code": status}}).encode()

    async def refuse(call: Call) -> None:
        await call.write(whole(status, body))

    async def main() -> None:
        async with Replica(refuse) as replica, gateway(replica) as running:
            got = await ask(running.server.port, request(b'{"prompt": "x'))
            assert (got.status, got.body) == (status, body)
            assert replica.calls[0].body == b'{"prompt": "x'  # malformed JSON is the server's to refuse

    run(main())


def test_headers_that_belong_to_a_connection_do_not_cross() -> None:
    async def main() -> None:
        async with Replica() as replica, gateway(replica) as running:
            sent = request(
                PROMPT, "/v1/chat/completions?a=%20b", "authorization: Bearer k",
                "connection: x-mine, keep-alive", "x-mine: hop", "te: trailers",
                "x-request-id: mine-1", "accept-encoding: gzip",
            )  # fmt: skip
            got = await ask(running.server.port, sent)
            call = replica.calls[0]
            assert call.head.startswith(b"POST /v1/chat/completions?a=%20b HTTP/1.1\r\n")
            assert call.header(b"authorization") == b"Bearer k"
            assert call.header(b"accept-encoding") == b"gzip"
            assert call.header(b"host") == f"127.0.0.1:{replica.port}".encode()
            assert call.header(b"x-request-id") == b"mine-1"
            assert call.header(b"x-mine") is call.header(b"te") is call.header(b"connection") is None
            assert got.headers["x-request-id"] == "mine-1"

    run(main())


@pytest.mark.parametrize("streaming", [True, False])
def test_a_client_that_leaves_ends_the_replicas_work_at_once(streaming: bool) -> None:
    async def long(call: Call) -> None:
        if streaming:
            await call.write(SSE, chunk(event(0)))
        await call.gone.wait()

    async def main() -> float:
        async with Replica(long) as replica, gateway(replica) as running:
            client = await Client.connect(running.server.port)
            await client.send(request())
            await until(lambda: replica.in_flight == 1)
            if streaming:
                await client.event()
                await client.event()
            loop = asyncio.get_running_loop()
            start = loop.time()
            client.close()
            await replica.calls[0].gone.wait()
            await until(lambda: running.gateway.admission.in_flight == 0)
            assert running.gateway.books.ends == {(200 if streaming else 0, "client_gone"): 1}
            return loop.time() - start

    assert run(main()) < 0.5


def test_a_slow_reader_holds_the_replica_back_instead_of_filling_memory() -> None:
    size, sent = 64 * 1024, 0

    async def flood(call: Call) -> None:
        nonlocal sent
        await call.write(SSE)
        for _ in range(800):
            await call.write(chunk(b"x" * size))
            sent += size
        await call.write(END)

    async def main() -> None:
        async with Replica(flood) as replica, gateway(replica, between_bytes_s=0.3) as running:
            client = await Client.connect(running.server.port)
            await client.send(request())
            before = -1
            while before != sent:  # until everything between the two ends is full
                before = sent
                await asyncio.sleep(0.5)  # longer than the replica may be silent: it is not its fault
            assert sent < 400 * size
            got = await client.answer()
            assert len(got.body) == 800 * size
            assert not got.broken
            client.close()

    run(main())


def test_200_streams_at_once_all_come_through() -> None:
    together = asyncio.Event()

    async def wait_for_all(call: Call) -> None:
        await call.write(SSE, chunk(event(0)))
        await together.wait()
        await call.write(chunk(event(1)), END)

    async def main() -> None:
        async with Replica(wait_for_all) as replica, gateway(replica) as running:
            asking = [asyncio.create_task(ask(running.server.port, request())) for _ in range(200)]
            await until(lambda: replica.in_flight == 200)
            together.set()
            answers = await asyncio.gather(*asking)
            assert {(a.status, a.body) for a in answers} == {(200, event(0) + event(1))}

    run(main())


def test_a_large_body_arrives_whole_and_a_larger_one_is_refused_in_json() -> None:
    mib = 1024 * 1024

    async def echo_length(call: Call) -> None:
        await call.write(whole(200, b"%d" % len(call.body)))

    async def main() -> None:
        async with Replica(echo_length) as replica, gateway(replica) as running:
            body = b'{"prompt":"' + b"x" * (32 * mib - 13) + b'"}'
            got = await ask(running.server.port, request(body))
            assert (got.status, got.body) == (200, b"%d" % (32 * mib))
            head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (32 * mib + 1)
            got = await ask(running.server.port, head)  # refused by its head: the body need not be sent
            assert got.status == 413
            assert "33554432" in got.json()["error"]["message"]
            assert len(replica.calls) == 1

    run(main())


def test_a_chunked_request_is_sent_on_with_one_length() -> None:
    async def main() -> None:
        async with Replica() as replica, gateway(replica) as running:
            head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
            got = await ask(running.server.port, head + chunk(PROMPT[:9]) + chunk(PROMPT[9:]) + END)
            assert got.status == 200
            call = replica.calls[0]
            assert (call.body, call.header(b"content-length")) == (PROMPT, b"%d" % len(PROMPT))
            assert call.header(b"transfer-encoding") is None

    run(main())


def test_expect_100_continue_is_answered_here() -> None:
    async def main() -> None:
        async with Replica() as replica, gateway(replica) as running:
            client = await Client.connect(running.server.port)
            await client.send(
                b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n"
                b"content-length: %d\r\n\r\n" % len(PROMPT)
            )
            assert (await client.event()).status_code == 100
            client.writer.write(PROMPT)
            assert (await client.answer()).status == 200
            assert replica.calls[0].header(b"expect") is None
            client.close()

    run(main())


def test_comments_keep_a_silent_stream_alive_between_events_only() -> None:
    async def slow(call: Call) -> None:
        await call.write(SSE)
        await asyncio.sleep(0.9)
        await call.write(chunk(event(0)[:10]))
        await asyncio.sleep(0.9)
        await call.write(chunk(event(0)[10:]), END)

    async def main() -> None:
        async with Replica(slow) as replica, gateway(replica, keep_alive_s=0.3) as running:
            got = await ask(running.server.port, request())
            comments, _, rest = got.body.rpartition(b": keep-alive\n\n")
            assert comments.replace(b": keep-alive\n\n", b"") == b""
            assert rest == event(0)  # none in the middle of an event

    run(main())
