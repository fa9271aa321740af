"""One connection to a server: bytes out, and the answer as it arrives, with the instant of each read.

No coroutine runs per request: the event loop calls the connection, the connection calls its exchange. That
is what keeps the cost of a streamed chunk near that of the system call which read it.
"""

import asyncio
import select
from collections.abc import Callable
from typing import Protocol, cast

import httptools

from knee.http1.failure import Cause, name_failure

HEADER_LIMIT = 64 * 1024
BODY_LIMIT = 64 * 1024 * 1024
FRAMING = (b"content-length", b"transfer-encoding")


class _Sizes(dict[bytes, int]):
    """What the size lines of chunks say, -1 for what is not one; 0, the end of a body, is not one here."""

    def __missing__(self, digits: bytes) -> int:
        if not digits or not set(digits) <= set(b"0123456789abcdefABCDEF"):
            return -1
        size = int(digits, 16) or -1
        if len(self) < 10_000:
            self[digits] = size
        return size


SIZES = _Sizes()
Now = Callable[[], int]
Headers = list[tuple[bytes, bytes]]


class Exchange(Protocol):
    """What one request wants to hear. Exactly one of `end` and `fail` is called, once, as the last."""

    def sent(self, now_ns: int) -> None:
        """The request was handed to the socket."""

    def head(self, now_ns: int, status: int, headers: Headers) -> None:
        """Status and headers (names in lower case) have come."""

    def body(self, now_ns: int, data: bytes) -> None:
        """A piece of the body has come; a read that carries several chunks gives several pieces."""

    def end(self, now_ns: int) -> None:
        """The answer is whole."""

    def fail(self, now_ns: int, cause: Cause, detail: str) -> None:
        """There will be no whole answer."""


class Outbound(asyncio.Protocol):
    """A connection that carries one exchange at a time.

    `released` is called when an exchange is over, with whether the connection can carry another (and again,
    with False, when a free connection is lost). `stale` is called instead of a failure where a connection
    that had carried an exchange before was closed as the next one was sent, and nothing was answered: the
    server had given it up for idle (RFC 9112, 9.3.1), and the request belongs on a new one.
    """

    def __init__(
        self,
        now: Now,
        released: "Callable[[Outbound, bool], None]",
        stale: Callable[[Exchange, bytes], None],
        body_limit: int = BODY_LIMIT,
    ) -> None:
        self._now = now
        self._released = released
        self._stale = stale
        self._body_limit = body_limit
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._exchange: Exchange | None = None
        self._headers: Headers = []
        self._head_bytes = 0
        self._body_bytes = 0
        self._in_body = False
        self._until_close = False
        self._between = False
        """Whether what was read last ended where a chunk ends, and the parser stands before the next."""
        self._complete = False
        self._keep_alive = False
        self._request = b""
        self._reused = False
        self._early = b""
        self.paused = False
        """Whether reading is held back; no timeout between bytes runs meanwhile."""
        self.started_ns = 0
        self.last_ns = 0
        """The instant of the latest byte, or of the send where none came yet."""
        self.heard = False
        """Whether a byte of the answer has come."""

    def send(self, exchange: Exchange, request: bytes) -> None:
        """Send `request` whole, and tell `exchange` what comes back. The connection must carry no other.

        One that was lost since it was made, or on which the server spoke first, fails the exchange.
        """
        assert self._exchange is None
        if self._transport is None or self._early:
            self._refuse(exchange)
            return
        self._exchange = exchange
        self._parser = httptools.HttpResponseParser(self)
        self._head_bytes = self._body_bytes = 0
        self._in_body = self._until_close = self._between = self._complete = self.heard = False
        self._request = request
        self._transport.write(request)
        self.started_ns = self.last_ns = now_ns = self._now()
        exchange.sent(now_ns)

    def _refuse(self, exchange: Exchange) -> None:
        spoke = self._early.decode("latin-1").split("\r\n")[0][:40]
        self.close()
        self._released(self, False)
        if self._early:
            exchange.fail(self._now(), "not_http", f"it spoke first: {spoke!r}")
        else:
            exchange.fail(self._now(), "cut", "")

    def pause(self) -> None:
        """Read no more until `resume`: who the answer is for takes it more slowly than it comes."""
        if not self.paused and self._transport is not None:
            self.paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self.paused and self._transport is not None:
            self.paused = False
            self.last_ns = self._now()
            self._transport.resume_reading()

    def silent(self) -> bool:
        """Whether the socket has nothing to read: on a free connection anything, even its end, is bad."""
        if self._transport is None or self._transport.is_closing():
            return False
        poller = select.poll()
        poller.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not poller.poll(0)

    def carries(self, exchange: Exchange) -> bool:
        """Whether `exchange` is the one under way."""
        return self._exchange is exchange

    def close(self) -> None:
        """Drop the connection; an exchange under way hears nothing more."""
        self._exchange = self._parser = None
        if self._transport is not None:
            self._transport.abort()

    def fail(self, cause: Cause, detail: str = "") -> None:
        """End the exchange under way with a failure, and drop the connection."""
        exchange = self._exchange
        self.close()
        self._released(self, False)
        if exchange is not None:
            exchange.fail(self._now(), cause, detail)

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        self.received(data, self._now())

    def received(self, data: bytes, at_ns: int) -> None:
        """Bytes came at `at_ns`."""
        self.last_ns = at_ns
        if self._between and self._exchange is not None:
            at = data.find(b"\r\n", 0, 8)
            size = len(data) - at - 4
            if SIZES[data[:at]] == size and data[-2:] == b"\r\n":  # a whole chunk and no more: most reads are
                self._body_bytes += size
                if self._body_bytes > self._body_limit:
                    self.fail("too_large", f"a body of {self._body_limit >> 10} KiB")
                else:
                    self._exchange.body(at_ns, data[at + 2 : -2])
                return
        self._read(data)

    def _read(self, data: bytes) -> None:
        parser = self._parser
        if parser is None and not self._reused and len(self._early) < HEADER_LIMIT:
            self._early += data  # no HTTP server speaks first; whoever sends here will hear of it
            return
        if parser is None:
            self.close()  # bytes nobody asked for: the connection cannot be trusted any more
            self._released(self, False)
            return
        if not self._in_body:
            self.heard = True
            self._head_bytes += len(data)
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._broken(error)
            return
        self._between = self._between and data[-2:] == b"\r\n"
        if self._complete:
            self._finish(reusable=self._keep_alive)
        elif self._body_bytes > self._body_limit:
            self.fail("too_large", f"a body of {self._body_limit >> 10} KiB")
        elif self._head_bytes > HEADER_LIMIT and not self._in_body:
            self.fail("too_large", f"{HEADER_LIMIT >> 10} KiB of headers")

    def _broken(self, error: Exception) -> None:
        if self._complete:  # whole, and then bytes that belong to no answer
            self._finish(reusable=False)
        elif isinstance(error, httptools.HttpParserUpgrade):
            self.fail("not_http", "an upgrade nobody asked for")
        else:
            self.fail("not_http", _first_line(error))

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone, for whatever reason."""
        self._transport = None
        exchange = self._exchange
        if exchange is None:
            self._released(self, False)
        elif exc is None and self._in_body and self._until_close:
            self.last_ns = self._now()
            self._finish(reusable=False)
        elif self._reused and not self.heard:
            self._exchange = None
            self._released(self, False)
            self._stale(exchange, self._request)
        elif exc is None:
            self.fail("cut")
        else:
            self.fail(*name_failure(exc))

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header of the answer."""
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """All headers of the answer."""
        headers, self._headers = self._headers, []
        if self._complete or self._exchange is None or self._parser is None:
            return
        status = self._parser.get_status_code()
        if status < 200:
            return
        self._in_body = True
        framing = {name: value for name, value in headers if name in FRAMING}
        self._until_close = not framing
        self._between = framing.get(b"transfer-encoding", b"").lower() == b"chunked"
        self._exchange.head(self.last_ns, status, headers)

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        self._body_bytes += len(data)
        if self._exchange is not None and not self._complete:
            self._exchange.body(self.last_ns, data)

    def on_chunk_header(self) -> None:
        """The size of a chunk (0: of the last, which is none)."""
        self._between = False

    def on_chunk_complete(self) -> None:
        """The end of a chunk."""
        self._between = not self._complete

    def on_message_complete(self) -> None:
        """The end of the answer; an interim one (1xx) is followed by the real one."""
        if self._in_body and self._parser is not None:
            self._complete = True
            self._keep_alive = self._parser.should_keep_alive()

    def _finish(self, reusable: bool) -> None:
        exchange, self._exchange, self._parser = self._exchange, None, None
        self._reused = True
        self._request = b""
        self.resume()
        if not reusable:
            self.close()
        self._released(self, reusable)
        if exchange is not None:
            exchange.end(self.last_ns)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:120]
