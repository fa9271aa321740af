"""Whole requests: what scraping, preflight and calibration need, blocking or inside an event loop."""

import asyncio
import contextlib
import ssl
from collections.abc import Iterator, Mapping
from typing import Any, Self, TypedDict, Unpack

import msgspec

from knee.core.clock import RealClock
from knee.core.errors import TargetError
from knee.http1.failure import Cause, HttpError
from knee.http1.loop import new_event_loop
from knee.http1.origin import Origin, parse_origin, split_url
from knee.http1.outbound import BODY_LIMIT, Headers
from knee.http1.pool import Pool, Timeouts

USER_AGENT = "knee"
GRACE_S = 2.0
"""How much longer than its own bounds a request is waited for before that is called a bug."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer. `head_ns` and `end_ns` are monotonic instants, `started_ns` that of the send."""

    url: str
    status: int
    headers: Headers
    body: bytes
    started_ns: int
    head_ns: int
    end_ns: int

    def header(self, name: str) -> str | None:
        """The first header of that name, in any case."""
        wanted = name.lower().encode()
        return next((value.decode("latin-1") for key, value in self.headers if key == wanted), None)

    def json(self) -> Any:
        """The body as JSON.

        Raises:
            TargetError: the body is something else.
        """
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise TargetError(f"{self.url} did not answer with JSON: {error}") from error


def request_bytes(
    origin: Origin, path: str, body: bytes | None, headers: Mapping[str, str], method: str = ""
) -> bytes:
    """An HTTP/1.1 request for `path` below the origin's base; POST with a body, else GET."""
    return request_head(origin, path, headers, None if body is None else len(body), method) + (body or b"")


def request_head(
    origin: Origin, path: str, headers: Mapping[str, str], length: int | None, method: str = ""
) -> bytes:
    """The head of a request with `length` bytes of JSON to follow (None: no body).

    Raises:
        TargetError: a header or the path holds what would end it (a line break).
    """
    lines = [
        f"{method or ('GET' if length is None else 'POST')} {origin.base}{path} HTTP/1.1",
        f"host: {origin.authority}",
        f"user-agent: {USER_AGENT}",
        "accept: */*",
    ]
    if length is not None:
        lines += ["content-type: application/json", f"content-length: {length}"]
    own = {name.lower(): f"{name.lower()}: {value}" for name, value in headers.items()}
    lines = [line for line in lines if line.partition(":")[0] not in own] + list(own.values())
    if any("\r" in line or "\n" in line or not line.isprintable() for line in lines):
        raise TargetError("a header or path with a line break or control character")  # never its value
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")


class _Collected:
    """An exchange that keeps the whole answer for one waiter."""

    def __init__(self, url: str, loop: asyncio.AbstractEventLoop) -> None:
        self.answer: asyncio.Future[Answer] = loop.create_future()
        self._url = url
        self._started_ns = self._head_ns = self._status = 0
        self._headers: Headers = []
        self._pieces: list[bytes] = []

    def sent(self, now_ns: int) -> None:
        self._started_ns = now_ns

    def head(self, now_ns: int, status: int, headers: Headers) -> None:
        self._head_ns, self._status, self._headers = now_ns, status, headers

    def body(self, now_ns: int, data: bytes) -> None:  # noqa: ARG002 - instants of pieces are not kept here
        self._pieces.append(data)

    def end(self, now_ns: int) -> None:
        if not self.answer.done():
            self.answer.set_result(
                Answer(
                    url=self._url,
                    status=self._status,
                    headers=self._headers,
                    body=b"".join(self._pieces),
                    started_ns=self._started_ns,
                    head_ns=self._head_ns,
                    end_ns=now_ns,
                )
            )

    def fail(self, now_ns: int, cause: Cause, detail: str) -> None:  # noqa: ARG002 - the error has no instant
        if not self.answer.done():
            self.answer.set_exception(HttpError(cause, self._url, detail))


class Client:
    """Requests to one server from inside an event loop, over kept connections.

    `timeout_s` bounds each request from start to end.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
        tls: ssl.SSLContext | None = None,
        body_limit: int = BODY_LIMIT,
    ) -> None:
        self.origin = parse_origin(url)
        self._headers = dict(headers or {})
        self._timeout_s = timeout_s
        timeouts = Timeouts(
            connect_s=timeout_s, first_byte_s=timeout_s, between_bytes_s=timeout_s, total_s=timeout_s
        )
        self._pool = Pool(self.origin, RealClock(), timeouts, tls=tls, limit=100, body_limit=body_limit)

    async def request(self, path: str = "", body: Any = None, method: str = "") -> Answer:
        """GET `path` below the client's URL, or POST `body` to it as JSON.

        Raises:
            HttpError: no whole answer came; any status is an answer.
        """
        exchange = _Collected(f"{self.origin}{path}", asyncio.get_running_loop())
        encoded = body if isinstance(body, bytes) or body is None else msgspec.json.encode(body)
        self._pool.start(exchange, request_bytes(self.origin, path, encoded, self._headers, method))
        # Not asyncio.wait_for: before Python 3.12 it swallows a cancel that comes together with the answer.
        try:
            async with asyncio.timeout(2 * self._timeout_s + GRACE_S):
                return await exchange.answer
        except asyncio.CancelledError:
            self._pool.stop(exchange)
            raise

    def close(self) -> None:
        """Drop all connections."""
        self._pool.close()


class ClientOptions(TypedDict, total=False):
    """What a `Client` takes beside its URL."""

    headers: Mapping[str, str] | None
    timeout_s: float
    tls: ssl.SSLContext | None
    body_limit: int


class BlockingClient:
    """A `Client` for callers without an event loop: several requests over kept connections, one at a time.

    A context manager; must not be used from inside an event loop.
    """

    def __init__(self, url: str, **options: Unpack[ClientOptions]) -> None:
        self.origin = parse_origin(url)
        self._url = url
        self._options = options
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._loop = self._stack.enter_context(private_loop())
        self._client = self._loop.run_until_complete(self._made())
        self._stack.callback(self._client.close)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def request(self, path: str = "", body: Any = None, method: str = "") -> Answer:
        """As `Client.request`."""
        return self._loop.run_until_complete(self._client.request(path, body, method))

    async def _made(self) -> Client:
        return Client(self._url, **self._options)


async def fetch_async(
    url: str, *, body: Any = None, method: str = "", **options: Unpack[ClientOptions]
) -> Answer:
    """GET `url`, or POST `body` to it as JSON, on a connection of its own.

    Raises:
        UsageError: `url` is not one.
        HttpError: no whole answer came in `timeout_s` (10 unless given); any status is an answer.
    """
    origin, target = split_url(url)
    client = Client(str(origin), **options)
    try:
        return await client.request(target, body, method)
    finally:
        client.close()


def fetch(url: str, *, body: Any = None, method: str = "", **options: Unpack[ClientOptions]) -> Answer:
    """`fetch_async` for callers without an event loop; must not be called from inside one.

    Raises:
        UsageError: `url` is not one.
        HttpError: no whole answer came in `timeout_s` (10 unless given); any status is an answer.
    """
    with private_loop() as loop:
        return loop.run_until_complete(fetch_async(url, body=body, method=method, **options))


@contextlib.contextmanager
def private_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop of the caller's own, closed cleanly afterwards."""
    loop = new_event_loop()
    try:
        yield loop
    finally:
        if not loop.is_running():  # an interrupt can leave uvloop believing that it does
            try:
                loop.run_until_complete(_wind_up(loop))
            finally:
                loop.close()


async def _wind_up(loop: asyncio.AbstractEventLoop) -> None:
    left = asyncio.all_tasks(loop) - {asyncio.current_task(loop)}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    for _ in range(3):  # a transport that was dropped closes in the next turns of the loop
        await asyncio.sleep(0)
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()
