"""A replica that fails harms the requests it holds, and no other."""

import asyncio
import json
import socket

import pytest
from tests.protect.replica import (
    END,
    SSE,
    Answer,
    Call,
    Replica,
    ask,
    chunk,
    event,
    gateway,
    gauges,
    request,
    run,
    three_events,
    until,
    whole,
)

from knee.policy.admission import Limits
from knee.policy.health import HealthRules

GOOD = event(0) + event(1) + event(2) + b"data: [DONE]\n\n"


def error_of(got: Answer) -> dict[str, object]:
    found = got.json()["error"]
    assert isinstance(found, dict)
    return found


def last_error(got: Answer) -> dict[str, object]:
    """The error event that ends a stream."""
    lines = [line for line in got.body.split(b"\n\n") if line]
    assert lines[-1] == b"data: [DONE]"
    found = json.loads(lines[-2].removeprefix(b"data: "))["error"]
    assert isinstance(found, dict)
    return found


def test_a_refused_connection_costs_nobody_anything() -> None:
    async def main() -> None:
        async with Replica() as good, Replica() as bad, gateway(good, bad) as running:
            await bad.kill()
            answers = await asyncio.gather(*(ask(running.server.port, request()) for _ in range(20)))
            assert {(a.status, a.body) for a in answers} == {(200, GOOD)}
            assert running.gateway.replicas.all[bad.url].state == "ejected"

    run(main())


def test_a_killed_replica_ends_its_own_streams_with_an_error_event_and_no_others() -> None:
    async def long(call: Call) -> None:
        await call.write(SSE)
        for number in range(40):
            await call.write(chunk(event(number)))
            await asyncio.sleep(0.01)
        await call.write(END)

    async def main() -> None:
        async with Replica(long) as good, Replica(long) as bad, gateway(good, bad) as running:
            asking = [asyncio.create_task(ask(running.server.port, request())) for _ in range(10)]
            await until(lambda: good.in_flight == bad.in_flight == 5)
            await asyncio.sleep(0.05)
            await bad.kill()
            answers = await asyncio.gather(*asking)
            whole_ones = [a for a in answers if a.body == b"".join(event(n) for n in range(40))]
            broken = [a for a in answers if a not in whole_ones]
            assert (len(whole_ones), len(broken)) == (5, 5)
            for got in broken:
                assert not got.broken  # ended as HTTP wants it; the error is in the stream
                assert last_error(got)["type"] == "upstream_error"
                assert got.body.startswith(event(0))

    run(main())


def test_a_replica_that_comes_back_is_used_again() -> None:
    async def main() -> None:
        async with Replica() as good, Replica() as bad, gateway(good, bad) as running:
            await bad.kill()
            await asyncio.gather(*(ask(running.server.port, request()) for _ in range(8)))
            await bad.start()
            await until(lambda: len(running.gateway.replicas.ready) == 2)
            before = len(bad.calls)
            await asyncio.gather(*(ask(running.server.port, request()) for _ in range(20)))
            assert len(bad.calls) > before

    run(main())


def test_what_a_replica_took_is_not_sent_to_another() -> None:
    async def swallow(call: Call) -> None:
        call.writer.close()

    async def main() -> None:
        async with Replica(swallow) as one, Replica(swallow) as two, gateway(one, two) as running:
            got = await ask(running.server.port, request())
            assert (got.status, error_of(got)["type"]) == (502, "upstream_error")
            assert len(one.calls) + len(two.calls) == 1

    run(main())


def test_not_even_over_a_kept_connection_is_a_request_sent_twice() -> None:
    answers = 0

    async def once(call: Call) -> None:
        nonlocal answers
        answers += 1
        if answers == 1:
            await call.write(whole(200, b"{}"))
        else:
            call.writer.close()

    async def main() -> None:
        async with Replica(once) as replica, gateway(replica) as running:
            assert (await ask(running.server.port, request())).status == 200
            assert (await ask(running.server.port, request())).status == 502
            assert len(replica.calls) == 2

    run(main())


def test_a_connection_closed_while_it_was_free_is_not_used() -> None:
    async def and_close(call: Call) -> None:
        await call.write(whole(200, b"{}"))
        call.writer.close()

    async def main() -> None:
        async with Replica(and_close) as replica, gateway(replica) as running:
            for _ in range(10):
                assert (await ask(running.server.port, request())).status == 200

    run(main())


def test_a_hung_replica_slows_no_other_and_its_requests_end_in_time() -> None:
    async def hang(call: Call) -> None:
        await call.gone.wait()

    async def main() -> None:
        each = Limits(max_in_flight=4, max_queue=0, queue_deadline_ns=0, ready_wait_ns=10**9)
        hung = Replica(hang)
        async with Replica() as good, hung, gateway(good, hung, limits=each, first_byte_s=0.6) as running:
            stuck = [asyncio.create_task(ask(running.server.port, request())) for _ in range(8)]
            await until(lambda: len(hung.calls) == 4)  # it takes what one replica may have, and no more
            await until(lambda: running.gateway.admission.in_flight == 4)
            loop = asyncio.get_running_loop()
            start = loop.time()
            for _ in range(15):
                assert (await ask(running.server.port, request())).body == GOOD
            assert loop.time() - start < 0.5
            assert len(hung.calls) == 4
            answers = await asyncio.gather(*stuck)
            assert sorted({a.status for a in answers}) == [200, 504]
            late = [error_of(a) for a in answers if a.status == 504]
            assert len(late) == 4
            assert {error["type"] for error in late} == {"upstream_error"}
            assert running.gateway.replicas.all[hung.url].state == "ejected"

    run(main())


def test_a_hung_replica_is_put_out_by_its_probes_without_any_traffic() -> None:
    async def main() -> None:
        async with Replica() as replica, gateway(replica, probe_s=0.1) as running:
            replica.health = None
            await until(lambda: running.gateway.replicas.all[replica.url].state == "ejected")
            assert running.gateway.admission.capacity == 0
            replica.health = whole(200, b"")
            await until(lambda: running.gateway.ready)

    run(main())


def test_a_busy_replica_whose_probes_are_late_is_left_alone() -> None:
    async def steady(call: Call) -> None:
        await call.write(SSE)
        for number in range(60):
            await call.write(chunk(event(number)))
            await asyncio.sleep(0.02)
        await call.write(END)

    async def main() -> None:
        async with Replica(steady) as replica, gateway(replica, probe_s=0.1) as running:
            asking = asyncio.create_task(ask(running.server.port, request()))
            await until(lambda: replica.in_flight == 1)
            replica.health = None
            await asyncio.sleep(0.7)
            assert running.gateway.replicas.all[replica.url].state == "ready"
            await asking

    run(main())


@pytest.mark.parametrize("status", [400, 404, 422, 503])
def test_refusals_put_no_replica_out(status: int) -> None:
    async def refuse(call: Call) -> None:
        await call.write(whole(status, b"{}"))

    async def main() -> None:
        async with Replica(refuse) as replica, gateway(replica) as running:
            for _ in range(30):
                assert (await ask(running.server.port, request())).status == status
            assert running.gateway.replicas.all[replica.url].state == "ready"

    run(main())


def test_a_replica_that_answers_500_is_put_out_and_let_in_again_by_one_real_request() -> None:
    broken = True

    async def maybe(call: Call) -> None:
        if broken:
            await call.write(whole(500, b"{}"))
        else:
            await three_events(call)

    async def main() -> None:
        nonlocal broken
        rules = HealthRules(first_ns=100_000_000)
        async with Replica() as good, Replica(maybe) as bad, gateway(good, bad, health=rules) as running:
            upstream = running.gateway.replicas.all[bad.url]
            failed = 0
            while upstream.state == "ready":
                failed += (await ask(running.server.port, request())).status == 500
            assert failed == rules.failures
            await until(lambda: upstream.state == "half_open")
            answers = [await ask(running.server.port, request()) for _ in range(10)]
            assert sum(a.status == 500 for a in answers) <= 1  # the one request on trial
            broken = False
            await until(lambda: upstream.state == "half_open")
            for _ in range(5):
                assert (await ask(running.server.port, request())).status == 200
            await until(lambda: upstream.state == "ready")

    run(main())


def test_a_replica_without_metrics_is_neither_flooded_nor_starved() -> None:
    async def slow(call: Call) -> None:
        await call.write(SSE, chunk(event(0)))
        await asyncio.sleep(0.05)
        await call.write(END)

    async def main() -> None:
        async with Replica(slow) as seen, Replica(slow) as unseen, Replica(slow) as broken:
            seen.page = gauges(3, 0)
            unseen.page = None
            broken.page = b"<html>not metrics</html>"
            async with gateway(seen, unseen, broken, scrape_every_s=0.02) as running:
                await until(lambda: running.gateway.replicas.all[seen.url].scraped_ns is not None)
                await asyncio.gather(*(ask(running.server.port, request()) for _ in range(90)))
                assert all(20 <= len(replica.calls) <= 40 for replica in (seen, unseen, broken))

    run(main())


def test_load_that_others_put_on_a_replica_is_seen() -> None:
    async def main() -> None:
        async with Replica() as busy, Replica() as idle:
            busy.page, idle.page = gauges(30, 10, 0.9), gauges(0, 0, 0.0)
            async with gateway(busy, idle, scrape_every_s=0.02) as running:
                await until(lambda: running.gateway.replicas.router.replicas[busy.url].foreign == 40)
                await asyncio.gather(*(ask(running.server.port, request()) for _ in range(20)))
                assert len(idle.calls) == 20

    run(main())


def test_engines_of_one_replica_are_added_up() -> None:
    async def main() -> None:
        async with Replica() as replica:
            second = gauges(5, 2, 0.8).replace(b'engine="0"', b'engine="1"').split(b"\n")
            replica.page = gauges(3, 1, 0.2) + b"\n".join(line for line in second if line[:1] != b"#")
            async with gateway(replica, scrape_every_s=0.02) as running:
                book = running.gateway.replicas.router.replicas[replica.url]
                await until(lambda: book.load is not None)
                assert book.load is not None
                assert (book.load.running, book.load.waiting) == (8, 3)
                assert book.load.kv_usage == pytest.approx(0.5)

    run(main())


@pytest.mark.parametrize(
    "said",
    [
        b"not http at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"HTTP/1.1 99999 OK\r\n\r\n",
        b"\x16\x03\x01\x00\x05hello",
        b"",
    ],
)
def test_an_answer_that_is_not_http_is_502(said: bytes) -> None:
    async def odd(call: Call) -> None:
        await call.write(said)
        call.writer.close()

    async def main() -> None:
        async with Replica(odd) as replica, gateway(replica) as running:
            got = await ask(running.server.port, request())
            assert (got.status, error_of(got)["type"]) == (502, "upstream_error")

    run(main())


@pytest.mark.parametrize("bad", [b"zz\r\nhello\r\n", b"5\r\nhello!!\r\n", b"-1\r\nx\r\n", b"5\nhello\n"])
def test_a_stream_whose_chunks_are_invalid_ends_with_an_error_event(bad: bytes) -> None:
    async def odd(call: Call) -> None:
        await call.write(SSE, chunk(event(0)))
        await asyncio.sleep(0.02)
        await call.write(bad)
        await asyncio.sleep(0.02)

    async def main() -> None:
        async with Replica(odd) as replica, gateway(replica) as running:
            got = await ask(running.server.port, request())
            assert got.status == 200
            assert got.body.startswith(event(0))
            assert last_error(got)["type"] == "upstream_error"

    run(main())


@pytest.mark.parametrize(
    "said",
    [
        b'HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"half":',
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
    ],
)
def test_a_cut_answer_that_is_no_stream_is_cut_for_the_client_too(said: bytes) -> None:
    async def half(call: Call) -> None:
        await call.write(said)
        await asyncio.sleep(0.02)
        call.writer.close()

    async def main() -> None:
        async with Replica(half) as replica, gateway(replica) as running:
            got = await ask(running.server.port, request())
            assert got.status == 200
            assert got.broken

    run(main())


def test_a_stream_that_falls_silent_ends_in_time() -> None:
    async def stall(call: Call) -> None:
        await call.write(SSE, chunk(event(0)))
        await call.gone.wait()

    async def main() -> None:
        async with Replica(stall) as replica, gateway(replica, between_bytes_s=0.2) as running:
            got = await ask(running.server.port, request())
            assert last_error(got)["code"] == 504
            await until(replica.calls[0].gone.is_set)

    run(main())


def test_a_replica_that_takes_no_connection_is_left_within_the_bound() -> None:
    async def main() -> None:
        full = socket.socket()
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = []
        for _ in range(4):  # nobody accepts: once its backlog is full, connecting waits
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
            fillers.append(filler)
        try:
            silent = Replica()
            silent.port = full.getsockname()[1]
            wait = Limits(max_in_flight=9, max_queue=0, queue_deadline_ns=0, ready_wait_ns=10**9)
            async with (
                Replica() as good,
                gateway(good, silent, limits=wait, connect_s=0.2, probe_s=0.2, await_ready=False) as running,
            ):
                await until(lambda: running.gateway.ready)
                running.gateway.replicas.all[silent.url].health.on_probe(answered=True, now_ns=0)
                answers = await asyncio.gather(*(ask(running.server.port, request()) for _ in range(8)))
                assert {a.body for a in answers} == {GOOD}
        finally:
            for filler in (*fillers, full):
                filler.close()

    run(main())
