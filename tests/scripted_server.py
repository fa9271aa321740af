"""A server that looks like vLLM and does to each request what a test's script says, at known instants."""

import asyncio
import contextlib
import json
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

from knee.http1.loop import new_event_loop

Script = Callable[["Call"], AsyncIterator[bytes]]
"""Yields the raw bytes of the answer to one generation request, sleeping in between as it likes."""

SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Call:
    """One generation request as the server saw it."""

    def __init__(self, path: str, headers: dict[str, str], body: Any, number: int) -> None:
        self.path = path
        self.headers = headers
        self.body = body
        self.number = number
        self.at_ns = time.monotonic_ns()
        self.writes_ns: list[int] = []

    @property
    def prompt(self) -> str:
        for name in ("prompt", "input"):
            if name in self.body:
                return str(self.body[name])
        return str(self.body["messages"][0]["content"])

    @property
    def asked(self) -> int:
        """The tokens asked for."""
        return int(self.body.get("max_tokens") or self.body["max_output_tokens"])

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt.split()) + 3


class Scripted:
    """The server's state; `added` tokens come on top of the words of a prompt."""

    def __init__(self, script: Script, answers: dict[str, tuple[int, Any]]) -> None:
        self.script = script
        self.calls: list[Call] = []
        self.answers: dict[str, tuple[int, Any]] = {
            "/v1/models": (200, {"data": [{"id": "tiny", "max_model_len": 100_000}]}),
            "/version": (200, {"version": "0.32.0"}),
            **answers,
        }
        self.metrics: Callable[[], str] | None = None
        self.url = ""
        self.connections = 0
        self.writers: list[asyncio.StreamWriter] = []

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        # uvloop says RuntimeError where a write meets a connection that the client has dropped.
        gone = (ConnectionError, RuntimeError, asyncio.IncompleteReadError, asyncio.CancelledError)
        with contextlib.suppress(*gone):
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                path = lines[0].split(" ")[1]
                headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines[1:-2])}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                if not await self.answer(path, headers, json.loads(body) if body else None, writer):
                    break
        writer.close()

    async def answer(
        self, path: str, headers: dict[str, str], body: Any, writer: asyncio.StreamWriter
    ) -> bool:
        if path == "/metrics" and self.metrics is not None:
            writer.write(plain(200, self.metrics().encode()))
        elif path in self.answers:
            status, value = self.answers[path]
            writer.write(plain(status, value if isinstance(value, bytes) else json.dumps(value).encode()))
        elif path == "/tokenize":
            text = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
            writer.write(plain(200, json.dumps({"count": len(text.split()) + 3}).encode()))
        elif path.startswith("/v1/") and body is not None:
            call = Call(path, headers, body, len(self.calls))
            if call.asked == 1 and "hello" in call.prompt:  # the preflight's question
                say = response_tokens if path.endswith("/responses") else tokens
                writer.write(b"".join([piece async for piece in say(call, 0, 0)]))
                return True
            self.calls.append(call)
            async for piece in self.script(call):
                if piece == CUT:
                    writer.transport.abort()
                    return False
                if piece == CLOSE:
                    return False
                call.writes_ns.append(time.monotonic_ns())
                writer.write(piece)
        else:
            writer.write(plain(404, b'{"detail":"Not Found"}'))
        return True


CUT = b"<cut>"
CLOSE = b"<close>"


def plain(status: int, body: bytes, *headers: str) -> bytes:
    """A whole answer."""
    lines = [
        f"HTTP/1.1 {status} X",
        "content-type: application/json",
        f"content-length: {len(body)}",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def chunk(data: bytes) -> bytes:
    """One piece of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(value: Any) -> bytes:
    """One server-sent event as a chunk."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return chunk(b"data: " + data + b"\n\n")


END = event(b"[DONE]") + b"0\r\n\r\n"


def text_event(text: str, so_far: int | None = None, prompt: int = 0) -> bytes:
    """A completions chunk, with `continuous_usage_stats` where `so_far` is given."""
    value: dict[str, Any] = {"choices": [{"index": 0, "text": text}]}
    if so_far is not None:
        value["usage"] = {"prompt_tokens": prompt, "completion_tokens": so_far}
    return event(value)


def usage_event(prompt: int, completion: int) -> bytes:
    """The last chunk of a stream with `include_usage`."""
    return event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}})


async def tokens(call: Call, first_s: float, gap_s: float) -> AsyncIterator[bytes]:
    """The tokens asked for, the first after `first_s`, the others `gap_s` apart."""
    n = call.asked
    options = call.body.get("stream_options") or {}
    start = asyncio.get_running_loop().time()
    if not call.body.get("stream"):
        await asyncio.sleep(first_s + gap_s * (n - 1))
        usage = {"prompt_tokens": call.prompt_tokens, "completion_tokens": n}
        yield plain(200, json.dumps({"choices": [{"index": 0, "text": "a" * n}], "usage": usage}).encode())
        return
    yield SSE
    for i in range(n):
        await asyncio.sleep(max(0.0, start + first_s + i * gap_s - asyncio.get_running_loop().time()))
        yield text_event("a", i + 1 if options.get("continuous_usage_stats") else None, call.prompt_tokens)
    if options.get("include_usage"):
        yield usage_event(call.prompt_tokens, n)
    yield END


async def response_tokens(call: Call, first_s: float, gap_s: float) -> AsyncIterator[bytes]:
    """The same in the events of `/v1/responses`."""
    n, text = call.asked, "a" * call.asked
    usage = {
        "input_tokens": call.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 2},
        "output_tokens": n,
    }
    output = [{"type": "message", "content": [{"type": "output_text", "text": text}]}]
    whole = {"object": "response", "status": "completed", "output": output, "usage": usage}
    if not call.body.get("stream"):
        await asyncio.sleep(first_s + gap_s * (n - 1))
        yield plain(200, json.dumps(whole).encode())
        return
    yield SSE
    yield typed_event("response.created", response={**whole, "status": "in_progress", "usage": None})
    for i in range(n):
        await asyncio.sleep(gap_s if i else first_s)
        yield typed_event("response.output_text.delta", delta="a")
    yield typed_event("response.output_text.done", text=text)
    yield typed_event("response.completed", response=whole) + chunk(b"")


def typed_event(kind: str, **fields: Any) -> bytes:
    """An event of `/v1/responses` as a chunk."""
    return chunk(f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode())


def steady(first_s: float, gap_s: float) -> Script:
    """Every request alike."""
    return lambda call: tokens(call, first_s, gap_s)


@contextlib.contextmanager
def scripted(
    script: Script,
    answers: dict[str, tuple[int, Any]] | None = None,
    kind: type[Scripted] = Scripted,
    tls: ssl.SSLContext | None = None,
) -> Iterator[Scripted]:
    """The server on a free port, in a thread of its own; over https with `tls`."""
    state = kind(script, answers or {})
    loop = new_event_loop()
    ready = threading.Event()
    over = asyncio.Event()

    async def serve() -> None:
        server = await asyncio.start_server(state.connected, "127.0.0.1", 0, backlog=1024, ssl=tls)
        state.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ready.set()
        await over.wait()
        server.close()
        await asyncio.sleep(0.02)  # what was being accepted is a connection by then
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        for writer in state.writers:
            writer.transport.abort()
        await asyncio.sleep(0.02)  # lets closed connections go

    def run(coroutine: Callable[[], Awaitable[None]]) -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(coroutine())
        loop.close()

    thread = threading.Thread(target=run, args=(serve,))
    thread.start()
    try:
        assert ready.wait(5)
        yield state
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
