"""The operator's side: probes, metrics, emptying a replica, names with several addresses, and the end."""

import asyncio
import io
import json
from random import Random

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.protect.replica import (
    END,
    PROMPT,
    SSE,
    WIDE,
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

from knee.core.clock import RealClock
from knee.core.errors import UsageError
from knee.http1.origin import parse_origin
from knee.http1.resolve import is_address, resolve
from knee.policy.admission import Limits
from knee.protect.config import GatewayConfig
from knee.protect.serve import Ports, RunningGateway

GET = {"method": "GET"}


def get(path: str) -> bytes:
    return request(b"", path, method="GET")


async def forever(call: Call) -> None:
    await call.write(SSE)
    for number in range(10_000):
        await call.write(chunk(event(number)))
        await asyncio.sleep(0.01)


def test_models_are_those_of_all_that_answer() -> None:
    async def main() -> None:
        one, two, three = Replica(model="a"), Replica(model="b"), Replica(model="a")
        async with one, two, three, gateway(one, two, three) as running:
            got = await ask(running.server.port, get("/v1/models"))
            assert sorted(model["id"] for model in got.json()["data"]) == ["a", "b"]
            await two.kill()
            got = await ask(running.server.port, get("/v1/models"))
            assert [model["id"] for model in got.json()["data"]] == ["a"]

    run(main())


def test_readiness_follows_the_replicas_and_liveness_does_not() -> None:
    async def main() -> None:
        async with Replica() as replica, gateway(replica) as running:
            admin = running.admin.port
            assert (await ask(admin, get("/readyz"))).status == 200
            assert (await ask(running.server.port, get("/health"))).status == 200
            replica.health = whole(503, b"")
            await until(lambda: not running.gateway.ready)
            assert (await ask(admin, get("/readyz"))).status == 503
            assert (await ask(running.server.port, get("/health"))).status == 503
            assert (await ask(admin, get("/healthz"))).status == 200

    run(main())


def test_the_metrics_page_is_read_by_prometheus_and_balances() -> None:
    async def main() -> None:
        tight = Limits(max_in_flight=1, max_queue=0, queue_deadline_ns=0)
        async with Replica(forever) as replica, gateway(replica, limits=tight) as running:
            client = await Client.connect(running.server.port)
            await client.send(request())
            await until(lambda: replica.in_flight == 1)
            assert (await ask(running.server.port, request())).status == 503
            page = (await ask(running.admin.port, get("/metrics"))).body.decode()
            values = {
                (sample.name, *sample.labels.values()): sample.value
                for family in text_string_to_metric_families(page)
                for sample in family.samples
            }
            assert values["knee_gateway_in_flight",] == 1
            assert values["knee_gateway_in_flight_limit",] == 1
            assert values["knee_gateway_arrived_total",] == 2
            assert values["knee_gateway_tickets_total", "shed"] == 1
            assert values["knee_gateway_requests_total", "shed", "503"] == 1
            assert values["knee_gateway_replica_state", replica.url, "ready"] == 1
            assert values["knee_gateway_replica_in_flight", replica.url] == 1
            client.close()

    run(main())


def test_the_access_log_tells_all_but_what_was_asked() -> None:
    async def main() -> None:
        log = io.StringIO()
        async with Replica() as replica, gateway(replica) as running:
            running.gateway.books._log = log
            secret = b'{"prompt":"my secret wish","stream":true}'
            await ask(
                running.server.port,
                request(secret, "/v1/completions?token=hush", "authorization: Bearer k3y"),
            )
        lines = [json.loads(line) for line in log.getvalue().splitlines()]
        assert len(lines) == 1
        entry = lines[0]
        assert (entry["status"], entry["end"], entry["path"]) == (200, "ok", "/v1/completions")
        assert (entry["replica"], entry["bytes_in"]) == (replica.url, len(secret))
        assert entry["bytes_out"] == len(event(0) * 3) + len(b"data: [DONE]\n\n")
        assert 0 <= entry["queue_ms"] <= entry["first_byte_ms"] <= entry["total_ms"]
        assert not any(word in log.getvalue() for word in ("secret", "hush", "k3y"))

    run(main())


def test_a_drained_replica_gets_nothing_more_and_finishes_what_it_has() -> None:
    async def slow(call: Call) -> None:
        await call.write(SSE)
        for number in range(20):
            await call.write(chunk(event(number)))
            await asyncio.sleep(0.01)
        await call.write(END)

    async def main() -> None:
        async with Replica(slow) as one, Replica(slow) as two, gateway(one, two) as running:
            asking = [asyncio.create_task(ask(running.server.port, request())) for _ in range(6)]
            await until(lambda: one.in_flight == two.in_flight == 3)
            got = await ask(running.admin.port, request(b"", f"/replicas/drain?name={one.url}"))
            assert {"name": one.url, "state": "draining", "cause": None, "in_flight": 3} in got.json()
            asking += [asyncio.create_task(ask(running.server.port, request())) for _ in range(6)]
            answers = await asyncio.gather(*asking)
            assert {a.body for a in answers} == {b"".join(event(n) for n in range(20))}
            assert (len(one.calls), len(two.calls)) == (3, 9)
            await ask(running.admin.port, request(b"", f"/replicas/undrain?name={one.url}"))
            await asyncio.gather(*(ask(running.server.port, request()) for _ in range(6)))
            assert len(one.calls) > 3
            assert (await ask(running.admin.port, request(b"", "/replicas/drain?name=nobody"))).status == 404

    run(main())


def test_a_name_is_as_many_replicas_as_it_has_addresses() -> None:
    async def main() -> None:
        async with Replica() as replica:
            addresses = ["127.0.0.1"]

            async def resolver(host: str) -> list[str]:
                assert host == "replicas.example"
                return addresses

            config = GatewayConfig(
                upstreams=(parse_origin(f"http://replicas.example:{replica.port}"),),
                limits=WIDE, probe_every_s=0.1, resolve_every_s=0.1, unready_s=0.0, grace_s=1.0,
            )  # fmt: skip
            running = RunningGateway(
                config, Ports(port=0, admin_port=0), clock=RealClock(), rng=Random(1), resolver=resolver
            )
            await running.start()
            replicas = running.gateway.replicas
            await until(lambda: running.gateway.ready)
            assert (await ask(running.server.port, request())).status == 200
            addresses[:] = ["127.0.0.1", "127.0.0.2"]  # a second pod, that is not up yet
            await until(lambda: len(replicas.all) == 2)
            assert len(replicas.ready) == 1
            addresses[:] = []  # the name server fails: nobody is taken away
            await asyncio.sleep(0.3)
            assert len(replicas.ready) == 1
            addresses[:] = ["127.0.0.2"]  # the first pod is going
            await until(lambda: list(replicas.all) == [f"http://127.0.0.2:{replica.port}"])
            await running.stop()

    run(main())


def test_an_address_is_itself_and_a_name_is_asked_for() -> None:
    assert all(is_address(host) for host in ("127.0.0.1", "::1", "localhost"))
    assert not is_address("replicas.example")
    assert run(resolve("localhost")) in (["127.0.0.1"], ["::1"])
    assert run(resolve("no-such-host.invalid")) == []


def test_told_to_stop_it_is_not_ready_first_and_lets_streams_finish() -> None:
    async def slow(call: Call) -> None:
        await call.write(SSE)
        for number in range(30):
            await call.write(chunk(event(number)))
            await asyncio.sleep(0.02)
        await call.write(END)

    async def main() -> None:
        async with Replica(slow) as replica, gateway(replica, unready_s=0.3, grace_s=5.0) as running:
            first = asyncio.create_task(ask(running.server.port, request()))
            await until(lambda: replica.in_flight == 1)
            stopping = asyncio.create_task(running.stop())
            await asyncio.sleep(0.05)
            assert (await ask(running.admin.port, get("/readyz"))).status == 503
            late = asyncio.create_task(ask(running.server.port, request()))  # not every proxy has heard yet
            await until(lambda: replica.in_flight == 2)
            await asyncio.sleep(0.3)
            with pytest.raises(OSError, match="refused"):
                await ask(running.server.port, request())
            answers = await asyncio.gather(first, late)
            assert {a.body for a in answers} == {b"".join(event(n) for n in range(30))}
            assert await stopping

    run(main())


def test_what_has_not_finished_when_the_grace_is_over_ends_with_an_error_event() -> None:
    async def silent(call: Call) -> None:
        if b'"stream":false' in call.body:
            await call.gone.wait()
        else:
            await forever(call)

    async def main() -> None:
        bounds = Limits(max_in_flight=2, max_queue=2, queue_deadline_ns=60_000_000_000)
        async with Replica(silent) as replica, gateway(replica, limits=bounds, grace_s=0.3) as running:
            stream = asyncio.create_task(ask(running.server.port, request()))
            whole_one = asyncio.create_task(ask(running.server.port, request(b'{"stream":false}')))
            await until(lambda: replica.in_flight == 2)
            queued = asyncio.create_task(ask(running.server.port, request()))
            await until(lambda: running.gateway.admission.queued == 1)
            assert not await running.stop()
            got = await stream
            assert got.status == 200
            assert not got.broken
            *_, error, done = got.body.strip().split(b"\n\n")
            assert done == b"data: [DONE]"
            assert json.loads(error.removeprefix(b"data: "))["error"]["type"] == "gateway_stopping"
            for other in (await whole_one, await queued):
                assert (other.status, other.json()["error"]["type"]) == (503, "gateway_stopping")
            assert all(call.gone.is_set() for call in replica.calls)

    run(main())


def test_a_port_that_is_taken_is_one_clear_error() -> None:
    async def main() -> None:
        async with Replica() as replica:
            config = GatewayConfig(upstreams=(parse_origin(replica.url),), limits=WIDE)
            for ports in (Ports(port=replica.port, admin_port=0), Ports(port=0, admin_port=replica.port)):
                running = RunningGateway(config, ports, clock=RealClock(), rng=Random(1))
                with pytest.raises(UsageError, match="in use"):
                    await running.start()
                await running.gateway.replicas.close()

    run(main())


def test_probes_are_answered_at_once_while_300_streams_are_open() -> None:
    async def quiet(call: Call) -> None:
        await call.write(SSE, chunk(event(0)))
        await call.gone.wait()

    async def main() -> None:
        async with Replica(quiet) as replica, gateway(replica, grace_s=0.1) as running:
            clients = [await Client.connect(running.server.port) for _ in range(300)]
            for client in clients:
                await client.send(request(PROMPT))
            await until(lambda: replica.in_flight == 300, 30)
            loop = asyncio.get_running_loop()
            start = loop.time()
            assert (await ask(running.admin.port, get("/readyz"))).status == 200
            assert loop.time() - start < 1.0
            for client in clients:
                client.close()
            await until(lambda: running.gateway.admission.in_flight == 0)

    run(main(), seconds=60)
