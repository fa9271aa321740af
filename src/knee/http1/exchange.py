"""One request as the server read it, and the answer as it is being written."""

import asyncio
from collections.abc import Iterable
from http import HTTPStatus
from typing import Protocol
from urllib.parse import unquote

import msgspec

Headers = Iterable[tuple[bytes, bytes]]

STATUS_LINES = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in HTTPStatus}
JSON = (b"content-type", b"application/json")


class Request:
    """A request, complete with its body.

    `target` is the request target as sent, `path` its decoded path, `query` what follows the question mark.
    Header names are lower case, in order of arrival. `received_ns` is the monotonic instant at which the
    last byte of the request was read, `peer` the client's address and port.
    """

    __slots__ = (
        "body",
        "headers",
        "keep_alive",
        "method",
        "path",
        "peer",
        "query",
        "received_ns",
        "target",
        "version",
    )

    def __init__(self, method: str, target: str, version: str, headers: list[tuple[bytes, bytes]]) -> None:
        self.method = method
        self.target = target
        self.version = version
        self.headers = headers
        self.body = b""
        self.keep_alive = True
        self.received_ns = 0
        self.peer = ""
        path, _, self.query = target.partition("#")[0].partition("?")
        if not path.startswith("/") and "://" in path:  # absolute form, as sent to a proxy
            path = "/" + path.split("://", 1)[1].partition("/")[2]
        self.path = unquote(path) if "%" in path else path

    def header(self, name: bytes) -> str | None:
        """The value of the header `name` (lower case); several are joined by commas, none is None."""
        values = [value for key, value in self.headers if key == name]
        return b", ".join(values).decode("latin-1") if values else None


class Wire(Protocol):
    """What a response needs of the connection it is written to."""

    def write_out(self, data: bytes) -> None:
        """Hand bytes to the socket."""
        ...

    def common_headers(self) -> bytes:
        """The `date` and `server` lines."""
        ...

    def response_ended(self) -> None:
        """The response is complete."""
        ...

    def response_cut(self) -> None:
        """The response cannot be completed: the connection must break so that the client sees it."""
        ...


class Response:
    """The answer to one request: `send` a fixed body, or `start`, `write` and `end` a stream.

    Writing never blocks. `writable` turns False when the client reads more slowly than we write; `drain`
    waits until it has caught up. When the client goes away, `disconnected` turns True, the handler's task is
    cancelled, and further writes are dropped.
    """

    __slots__ = (
        "_chunked", "_left", "_silent", "_waiter", "_wire", "disconnected", "ended", "keep_alive",
        "method", "sent_bytes", "started", "status", "version", "writable",
    )  # fmt: skip

    def __init__(self, wire: Wire, request: Request) -> None:
        self._wire = wire
        self.method = request.method
        self.version = request.version
        self.keep_alive = request.keep_alive
        self.status = 0
        self.sent_bytes = 0
        self.started = self.ended = self.disconnected = False
        self.writable = True
        self._chunked = self._silent = False
        self._left: int | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def streamed(self) -> bool:
        """Whether the body goes out without its length being known from the start."""
        return self.started and self._left is None

    def send(self, status: int, headers: Headers = (), body: bytes = b"") -> None:
        """The whole answer at once."""
        head = self._head(status, headers, len(body))
        self.sent_bytes = len(body)
        self._wire.write_out(head if self._silent else head + body)
        self._left = 0
        self.end()

    def start(self, status: int, headers: Headers = (), length: int | None = None) -> None:
        """Send the head at once. With `length` that many body bytes must follow, else any number."""
        self._wire.write_out(self._head(status, headers, length))

    def write(self, data: bytes) -> None:
        """Send a piece of the body; with no `length` each piece is a chunk of its own.

        Raises:
            ValueError: more bytes than `start` announced, or no `start` before, or after `end`.
        """
        if not self.started or self.ended:
            raise ValueError("write() outside of start() and end()")
        if not data or self._silent:
            return
        if self._left is not None:
            if len(data) > self._left:
                raise ValueError(f"{len(data)} bytes where {self._left} were left of the announced length")
            self._left -= len(data)
        self.sent_bytes += len(data)
        self._wire.write_out(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def end(self) -> None:
        """Complete the answer. A body shorter than announced breaks the connection instead."""
        if self.ended or not self.started:
            return
        self.ended = True
        if self._left and not self._silent:
            self._wire.response_cut()
            return
        if self._chunked and not self._silent:
            self._wire.write_out(b"0\r\n\r\n")
        self._wire.response_ended()

    def cut(self) -> None:
        """Break the connection, so that the client sees an answer that is not complete."""
        self.ended = True
        self._wire.response_cut()

    async def drain(self) -> None:
        """Wait until the client has read enough for more to be worth writing, or has gone away."""
        if self.writable or self.disconnected:
            return
        if self._waiter is None:
            self._waiter = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._waiter)

    def set_writable(self, writable: bool) -> None:
        """Called by the connection."""
        self.writable = writable
        if writable:
            self._wake()

    def set_disconnected(self) -> None:
        """Called by the connection."""
        self.disconnected = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        self._waiter = None

    def _head(self, status: int, headers: Headers, length: int | None) -> bytes:
        if self.started:
            raise ValueError("the response has been started already")
        self.started = True
        self.status = status
        bodyless = status in (204, 304) or status < 200
        self._silent = bodyless or self.method == "HEAD"
        lines = [STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status, self._wire.common_headers()]
        if length is not None and not bodyless:
            self._left = length
            lines.append(b"content-length: %d\r\n" % length)
        for name, value in headers:
            line = name + b": " + value
            if b"\n" in line or b"\r" in line or b"\0" in line:
                raise ValueError(f"not a header: {line!r}")
            lines.append(line + b"\r\n")
        if length is None and not bodyless:
            if self.version == "1.1":
                self._chunked = True
                lines.append(b"transfer-encoding: chunked\r\n")
            else:  # HTTP/1.0 knows no chunks: the end of the connection is the end of the body
                self.keep_alive = False
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        elif self.version == "1.0":
            lines.append(b"connection: keep-alive\r\n")
        lines.append(b"\r\n")
        return b"".join(lines)


def error_body(status: int, message: str, kind: str = "", param: str | None = None) -> bytes:
    """An error in the shape that OpenAI-style servers use."""
    kind = kind or HTTPStatus(status).phrase.replace(" ", "") + ("Error" if status < 500 else "")
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": status}})
