"""Overload is answered at once and in a shape that clients know; places are never lost."""

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

from knee.policy.admission import Limits

MS = 1_000_000
BIG = b'{"prompt":"' + b"x" * 200_000 + b'"}'


def limits(
    in_flight: int = 1, queue: int = 0, deadline_ms: int = 1000, drain_rate: float | None = None
) -> Limits:
    return Limits(
        max_in_flight=in_flight,
        max_queue=queue,
        queue_deadline_ns=deadline_ms * MS,
        ready_wait_ns=300 * MS,
        drain_rate=drain_rate,
    )


def held(release: asyncio.Event) -> Replica:
    async def hold(call: Call) -> None:
        await call.write(SSE, chunk(event(0)))
        await release.wait()
        await call.write(END)

    return Replica(hold)


def test_beyond_the_bound_the_answer_is_503_at_once_and_the_connection_stays_usable() -> None:
    async def main() -> None:
        release = asyncio.Event()
        async with held(release) as replica, gateway(replica, limits=limits(2, drain_rate=0.1)) as running:
            asking = [asyncio.create_task(ask(running.server.port, request())) for _ in range(2)]
            await until(lambda: replica.in_flight == 2)
            client = await Client.connect(running.server.port)
            for _ in range(3):
                await client.send(request())
                got = await client.answer()
                assert (got.status, got.headers["content-type"]) == (503, "application/json")
                error = got.json()["error"]
                assert (error["type"], error["code"]) == ("overloaded", 503)
                assert error["message"]
                assert 10 <= int(got.headers["retry-after"]) <= 15  # one place, 0.1 a second, none seen yet
            client.close()
            release.set()
            assert {answer.status for answer in await asyncio.gather(*asking)} == {200}
            assert running.gateway.admission.ended == {"shed": 3, "done": 2}
            assert replica.most_in_flight == 2

    run(main())


def test_the_openai_client_sees_an_overloaded_server() -> None:
    import openai

    async def main() -> None:
        release = asyncio.Event()
        async with held(release) as replica, gateway(replica, limits=limits(1)) as running:
            asking = asyncio.create_task(ask(running.server.port, request()))
            await until(lambda: replica.in_flight == 1)
            async with openai.AsyncOpenAI(
                base_url=f"http://127.0.0.1:{running.server.port}/v1", api_key="k", max_retries=0
            ) as client:
                with pytest.raises(openai.InternalServerError) as caught:
                    await client.completions.create(model="m", prompt="x")
            assert caught.value.status_code == 503
            assert "limit" in str(caught.value)
            release.set()
            await asking

    run(main())


def test_a_queued_request_gets_the_place_that_comes_free_and_an_overdue_one_is_refused() -> None:
    async def main() -> None:
        release = asyncio.Event()
        async with held(release) as replica, gateway(replica, limits=limits(1, 1, 2000)) as running:
            first = asyncio.create_task(ask(running.server.port, request()))
            await until(lambda: replica.in_flight == 1)
            second = asyncio.create_task(ask(running.server.port, request()))
            await until(lambda: running.gateway.admission.queued == 1)
            assert (await ask(running.server.port, request())).status == 503
            release.set()
            assert [(await task).status for task in (first, second)] == [200, 200]

        release.clear()
        async with held(release) as replica, gateway(replica, limits=limits(1, 1, 150)) as running:
            first = asyncio.create_task(ask(running.server.port, request()))
            await until(lambda: replica.in_flight == 1)
            got = await ask(running.server.port, request())
            assert got.json()["error"]["type"] == "overloaded"
            assert running.gateway.admission.ended == {"expired": 1}
            release.set()
            await first

    run(main())


def test_a_client_that_leaves_the_queue_leaves_nothing_behind() -> None:
    async def main() -> None:
        release = asyncio.Event()
        async with held(release) as replica, gateway(replica, limits=limits(1, 5, 5000)) as running:
            first = asyncio.create_task(ask(running.server.port, request()))
            await until(lambda: replica.in_flight == 1)
            client = await Client.connect(running.server.port)
            await client.send(request())
            await until(lambda: running.gateway.admission.queued == 1)
            client.close()
            await until(lambda: running.gateway.admission.queued == 0)
            assert running.gateway.admission.ended == {"left": 1}
            release.set()
            await first
            assert len(replica.calls) == 1  # what was never admitted was never sent

    run(main())


def test_a_refused_upload_is_not_read() -> None:
    async def main() -> None:
        release = asyncio.Event()
        async with held(release) as replica, gateway(replica, limits=limits(1)) as running:
            first = asyncio.create_task(ask(running.server.port, request()))
            await until(lambda: replica.in_flight == 1)
            client = await Client.connect(running.server.port)
            head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 30000000\r\n\r\n"
            await client.send(head + BIG)
            got = await client.answer()
            assert (got.status, got.json()["error"]["type"]) == (503, "overloaded")
            assert got.headers["connection"] == "close"
            assert running.server.held_bytes == 0
            client.close()
            release.set()
            await first
            assert running.gateway.admission.ended == {"shed": 1, "done": 1}

    run(main())


def test_an_upload_holds_no_place_and_its_end_before_time_loses_none() -> None:
    async def main() -> None:
        async with Replica() as replica, gateway(replica, limits=limits(1)) as running:
            uploading = []
            for _ in range(5):
                client = await Client.connect(running.server.port)
                await client.send(request(BIG)[:100_000])
                uploading.append(client)
            await until(lambda: running.server.held_bytes > 400_000)
            assert (await ask(running.server.port, request())).status == 200
            for client in uploading:
                client.close()
            await until(lambda: running.server.open_connections == 0)
            assert (await ask(running.server.port, request())).status == 200
            assert running.gateway.admission.ended == {"done": 2}
            assert len(replica.calls) == 2

    run(main())


def test_bodies_on_their_way_in_are_bounded_all_together() -> None:
    async def main() -> None:
        async with Replica() as replica, gateway(replica, held_bytes=250_000) as running:
            client = await Client.connect(running.server.port)
            await client.send(request(BIG)[:150_000])
            await until(lambda: running.server.held_bytes > 100_000)
            assert (await ask(running.server.port, request(BIG))).status == 503
            client.close()
            await until(lambda: running.server.held_bytes == 0)
            assert (await ask(running.server.port, request(BIG))).status == 200

    run(main())


def test_no_replica_ready_is_a_different_answer_after_a_bounded_wait() -> None:
    async def main() -> None:
        async with Replica() as replica:
            replica.health = whole(503, b"")
            async with gateway(replica, limits=limits(4), await_ready=False) as running:
                loop = asyncio.get_running_loop()
                start = loop.time()
                got = await ask(running.server.port, request())
                assert 0.25 < loop.time() - start < 1.0
                assert (got.status, got.json()["error"]["type"]) == (503, "no_replica_ready")
                assert int(got.headers["retry-after"]) >= 1
                assert (await ask(running.server.port, request(b"", "/health", method="GET"))).status == 503

    run(main())


def test_requests_that_came_while_pods_load_are_served_by_the_first_that_is_ready() -> None:
    async def main() -> None:
        wide = Limits(max_in_flight=20, max_queue=0, queue_deadline_ns=0, ready_wait_ns=5_000 * MS)
        async with Replica() as replica:
            replica.health = whole(503, b"")
            async with gateway(replica, limits=wide, await_ready=False) as running:
                asking = [asyncio.create_task(ask(running.server.port, request())) for _ in range(10)]
                await until(lambda: running.gateway.admission.queued == 10)
                assert not replica.calls
                replica.health = whole(200, b"")
                assert {answer.status for answer in await asyncio.gather(*asking)} == {200}

    run(main())


def test_what_comes_through_the_gateway_equals_what_the_replica_says_itself() -> None:
    async def check(call: Call) -> None:
        good = call.body.startswith(b"{")
        await call.write(whole(200 if good else 400, json.dumps({"length": len(call.body)}).encode()))

    async def main() -> None:
        async with Replica(check) as replica, gateway(replica) as running:
            bodies = [(b"{}" if number % 3 else b"oops") * (number + 1) for number in range(60)]
            through = await asyncio.gather(*(ask(running.server.port, request(body)) for body in bodies))
            direct = await asyncio.gather(*(ask(replica.port, request(body)) for body in bodies))
            assert [(a.status, a.body) for a in through] == [(a.status, a.body) for a in direct]

    run(main())


def test_reading_paths_need_no_place() -> None:
    async def main() -> None:
        release = asyncio.Event()

        async def hold(call: Call) -> None:
            if call.head.startswith(b"GET"):
                await call.write(whole(200, b'{"version":"0.32.0"}'))
            else:
                await call.write(SSE)
                await release.wait()
                await call.write(END)

        async with Replica(hold) as replica, gateway(replica, limits=limits(1)) as running:
            first = asyncio.create_task(ask(running.server.port, request()))
            await until(lambda: replica.in_flight == 1)
            got = await ask(running.server.port, request(b"", "/version", method="GET"))
            assert got.json() == {"version": "0.32.0"}
            release.set()
            await first

    run(main())


@pytest.mark.parametrize(
    "path",
    [
        "/sleep",
        "/collective_rpc",
        "/reset_prefix_cache",
        "/metrics",
        "/v1",
        "/",
        "/docs",
        "/vulnerable/v1/x",
        "/v1/../sleep",
        "/v1/%2e%2e/sleep",
        "/%73leep",
    ],
)
def test_paths_for_operators_are_not_served_to_clients(path: str) -> None:
    async def main() -> None:
        async with Replica() as replica, gateway(replica) as running:
            got = await ask(running.server.port, request(PROMPT, path))
            assert got.status == 404
            assert got.json()["error"]["code"] == 404
            assert not replica.calls

    run(main())
