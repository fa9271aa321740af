"""A scripted replica and a client that reads with h11, for tests of the gateway."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from random import Random
from typing import Any, Self, TypeVar

import h11
import msgspec

from knee.core.clock import RealClock
from knee.http1.loop import new_event_loop
from knee.http1.origin import parse_origin
from knee.policy.admission import Limits
from knee.protect.config import GatewayConfig
from knee.protect.serve import Ports, RunningGateway

T = TypeVar("T")

SSE = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
END = b"0\r\n\r\n"
PROMPT = b'{"model":"m","prompt":"hello","stream":true}'
WIDE = Limits(max_in_flight=1000, max_queue=0, queue_deadline_ns=0, ready_wait_ns=5_000_000_000)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(number: int) -> bytes:
    return b'data: {"choices":[{"text":"t%d"}]}\n\n' % number


def whole(status: int, body: bytes, more: bytes = b"") -> bytes:
    head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n" % (status, len(body))
    return head + more + b"\r\n" + body


def gauges(running: float, waiting: float, usage: float = 0.1) -> bytes:
    """A page with the three metrics that routing reads."""
    return b"".join(
        b'# TYPE vllm:%b gauge\nvllm:%b{engine="0",model_name="m"} %f\n' % (name, name, value)
        for name, value in (
            (b"num_requests_running", running),
            (b"num_requests_waiting", waiting),
            (b"kv_cache_usage_perc", usage),
        )
    )  # fmt: skip


class Call:
    """One request as the replica saw it; `gone` is set when its client closes."""

    def __init__(self, writer: asyncio.StreamWriter, head: bytes, body: bytes) -> None:
        self.writer = writer
        self.head = head
        self.body = body
        self.gone = asyncio.Event()

    async def write(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.writer.write(piece)
        await self.writer.drain()

    def header(self, name: bytes) -> bytes | None:
        for line in self.head.split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.strip().lower() == name:
                return value.strip()
        return None


Generate = Callable[[Call], Awaitable[None]]


async def three_events(call: Call) -> None:
    await call.write(SSE)
    for number in range(3):
        await call.write(chunk(event(number)))
        await asyncio.sleep(0.002)
    await call.write(chunk(b"data: [DONE]\n\n"), END)


class Replica:
    """Serves /health, /v1/models and /metrics; everything else goes to `generate`."""

    def __init__(self, generate: Generate = three_events, model: str = "m") -> None:
        self.generate = generate
        self.model = model
        self.health: bytes | None = whole(200, b"")
        self.page: bytes | None = gauges(0, 0)
        self.calls: list[Call] = []
        self.in_flight = self.most_in_flight = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, limit=2**26)
        self.port = self._server.sockets[0].getsockname()[1]

    async def kill(self) -> None:
        """Close the port and break every connection."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await asyncio.sleep(0)  # a connection that was just accepted gets its task now
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._one(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        call = Call(writer, head, b"")
        path = head.split(b" ")[1]
        if path in (b"/health", b"/metrics", b"/v1/models"):
            models = json.dumps({"object": "list", "data": [{"id": self.model}]}).encode()
            page = None if self.page is None else whole(200, self.page)
            answer = {b"/health": self.health, b"/metrics": page}.get(path, whole(200, models))
            if answer is None:
                await asyncio.sleep(3600)
            else:
                await call.write(answer)
            return True
        call.body = await reader.readexactly(int(call.header(b"content-length") or 0))
        self.calls.append(call)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        watching = asyncio.ensure_future(_watch(reader, call))
        try:
            await self.generate(call)
        finally:
            self.in_flight -= 1
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        return not writer.is_closing() and not call.gone.is_set()


async def _watch(reader: asyncio.StreamReader, call: Call) -> None:
    """A proxy sends nothing while it waits for an answer, so what can be read here is the end."""
    with contextlib.suppress(OSError):
        if not await reader.read(1):
            pass
    call.gone.set()


class Answer(msgspec.Struct):
    """What h11 made of an answer: `pieces` are the body as it came, `broken` is why it is not whole."""

    status: int
    headers: dict[str, str]
    pieces: list[bytes]
    broken: str = ""

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    def json(self) -> Any:
        return json.loads(self.body)


def request(body: bytes = PROMPT, path: str = "/v1/completions", *more: str, method: str = "POST") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: gateway", *more]
    if body:
        lines += ["content-type: application/json", f"content-length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


class Client:
    """One connection to the gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._state = h11.Connection(h11.CLIENT)

    @classmethod
    async def connect(cls, port: int) -> Self:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def send(self, data: bytes) -> None:
        """Raw bytes; h11 is told that some request was sent, so that it reads the answer to it."""
        if self._state.our_state is h11.DONE:
            self._state.start_next_cycle()
        if self._state.our_state is h11.IDLE:
            self._state.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
            self._state.send(h11.EndOfMessage())
        self.writer.write(data)
        await self.writer.drain()

    async def event(self) -> Any:
        """The next thing h11 reads."""
        while True:
            found = self._state.next_event()
            if found is not h11.NEED_DATA:
                return found
            self._state.receive_data(await self.reader.read(65_536))

    async def answer(self) -> Answer:
        got = Answer(0, {}, [])
        try:
            while True:
                found = await self.event()
                if isinstance(found, h11.Response):
                    got.status = found.status_code
                    got.headers = {name.decode(): value.decode() for name, value in found.headers}
                elif isinstance(found, h11.Data):
                    got.pieces.append(bytes(found.data))
                elif isinstance(found, h11.EndOfMessage):
                    return got
                elif isinstance(found, h11.ConnectionClosed):
                    got.broken = "closed"
                    return got
        except (h11.RemoteProtocolError, OSError) as error:
            got.broken = str(error)
            return got

    def close(self) -> None:
        self.writer.transport.abort()


async def ask(port: int, data: bytes) -> Answer:
    """One request on a connection of its own."""
    client = await Client.connect(port)
    try:
        await client.send(data)
        return await client.answer()
    finally:
        client.close()


@contextlib.asynccontextmanager
async def gateway(
    *replicas: Replica, limits: Limits = WIDE, await_ready: bool = True, **config: Any
) -> AsyncIterator[RunningGateway]:
    """A gateway in front of `replicas`, with short waits, stopped at the end; its books must balance then."""
    settings = {"probe_s": 0.5, "probe_every_s": 0.1, "unready_s": 0.0, "grace_s": 2.0, **config}
    made = GatewayConfig(
        upstreams=tuple(parse_origin(replica.url) for replica in replicas), limits=limits, **settings
    )
    running = RunningGateway(made, Ports(port=0, admin_port=0), clock=RealClock(), rng=Random(7))
    await running.start()
    try:
        if await_ready:
            await until(lambda: len(running.gateway.replicas.ready) == len(replicas))
        yield running
    finally:
        if not running.gateway.over:
            await running.stop()
    books = running.gateway.admission
    assert (books.in_flight, books.queued) == (0, 0)
    assert books.arrived == sum(books.ended.values())
    assert all(replica.in_flight == 0 for replica in running.gateway.replicas.router.replicas.values())
    assert not running.gateway.journeys


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Wait for something that must come true."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - conditions are of any kind
            await asyncio.sleep(0.005)


def run(work: Coroutine[Any, Any, T], seconds: float = 20.0) -> T:
    """Run a test's coroutine, bounded in time."""

    async def bounded() -> T:
        async with asyncio.timeout(seconds):
            try:
                return await work
            finally:
                await asyncio.sleep(0.05)  # connections that were dropped close in the next turns of the loop

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(bounded())
