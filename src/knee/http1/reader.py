"""Bytes of a connection to requests, in order, and refusal of what HTTP/1.1 forbids.

llhttp (through httptools) already refuses a Content-Length beside a Transfer-Encoding, repeated lengths,
bare line feeds, folded headers and chunks that are not as long as they say. Added here: exactly one Host,
`chunked` as the only transfer coding, and the limits. A refusal takes the place of its request, so that
earlier answers still go out before it.
"""

from collections import deque
from collections.abc import Callable

import httptools
import msgspec

from knee.http1.exchange import Request
from knee.http1.limits import Limits


class Refusal(msgspec.Struct, frozen=True):
    """An error answer in place of a request that could not be read; the connection ends with it."""

    status: int
    message: str
    kind: str = ""
    headers: tuple[tuple[bytes, bytes], ...] = ()


Screen = Callable[[Request], Refusal | None]
"""Called when the head of a request is whole; a refusal leaves its body unread and ends the connection."""


class RequestReader:
    """Feed it bytes; whole requests and refusals appear in `ready`.

    `begun`: a request has begun and is not whole; `in_body`: its head is whole; `wants_continue`: its client
    waits for `100 Continue`. `over`: no more bytes are read, either because the last request ended the
    connection or because of a refusal (`unread` then says that bytes may have been left unread).
    """

    __slots__ = (
        "_body", "_fields", "_head_bytes", "_held_bytes", "_limits", "_parser", "_progress", "_quiet_bytes",
        "_refusal", "_request", "_screen", "_url", "begun", "over", "ready", "unread", "wants_continue",
    )  # fmt: skip

    def __init__(self, limits: Limits, screen: Screen | None = None) -> None:
        self.ready: deque[Request | Refusal] = deque()
        self.begun = self.over = self.unread = self.wants_continue = False
        self._limits = limits
        self._screen = screen
        self._parser = httptools.HttpRequestParser(self)
        self._fields: list[tuple[bytes, bytes]] = []
        self._url = b""
        self._body = bytearray()
        self._request: Request | None = None
        self._refusal: Refusal | None = None
        self._head_bytes = self._held_bytes = self._quiet_bytes = 0
        self._progress = False

    @property
    def in_body(self) -> bool:
        """Whether the head of a request is whole and its body is not."""
        return self._request is not None

    @property
    def held_bytes(self) -> int:
        """Bytes of bodies held here, of whole requests and of the one that is arriving."""
        return self._held_bytes + len(self._body)

    def feed(self, data: bytes) -> None:
        """Read on."""
        if self.over:
            return
        self._progress = False
        try:
            self._parser.feed_data(data)
            # The parser joins the pieces of a header before it shows it: what it holds back counts here.
            self._quiet_bytes = 0 if self._progress else self._quiet_bytes + len(data)
            if self._quiet_bytes > self._limits.head_bytes:
                self.refuse(
                    431, f"the request line and headers are larger than {self._limits.head_bytes} bytes"
                )
        except httptools.HttpParserUpgrade:
            self._ignore_upgrade()
        except httptools.HttpParserError as error:
            if not self.over:
                self._end(self._refusal or Refusal(400, f"malformed request: {error}"))

    def take(self) -> Request | Refusal:
        """The next item of `ready`."""
        item = self.ready.popleft()
        if isinstance(item, Request):
            self._held_bytes -= len(item.body)
        return item

    def refuse(self, status: int, message: str) -> None:
        """End the connection with this error, after the answers to what is ready."""
        self._end(Refusal(status, message))

    def _end(self, refusal: Refusal) -> None:
        self.ready.append(refusal)
        self.over = self.unread = True
        self.begun = self.wants_continue = False
        self._request = None

    def stop(self) -> None:
        """Read no more, and drop what is ready."""
        self.over = True
        self.ready.clear()

    # --- what the parser calls

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._progress = self.begun = True
        self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        """A piece of the request target."""
        self._url += url
        self._check_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header; or one trailer, which is counted and dropped."""
        self._check_head(len(name) + len(value) + 4)
        if self._request is None:
            self._fields.append((name.lower(), value))
            if len(self._fields) > self._limits.headers:
                self._fail(431, f"more than {self._limits.headers} headers")

    def on_headers_complete(self) -> None:
        """The head is whole: refuse what needs no body to be refused."""
        version = self._parser.get_http_version()
        request = Request(
            self._parser.get_method().decode("ascii"), self._url.decode("latin-1"), version, self._fields
        )
        if version not in ("1.0", "1.1"):
            self._fail(505, f"HTTP/{version} is not served here")
        hosts = sum(name == b"host" for name, _ in self._fields)
        if hosts > 1 or (hosts == 0 and version == "1.1"):
            self._fail(400, "malformed request: exactly one Host header is needed")
        self._check_framing(request)
        request.keep_alive = self._parser.should_keep_alive()
        self._request = request
        if self._screen is not None:
            self._refusal = self._screen(request)
            if self._refusal is not None:
                raise ValueError(self._refusal.message)

    def on_chunk_header(self) -> None:
        """A chunk begins."""
        self._progress = True

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        self._progress = True
        self._body += data
        if len(self._body) > self._limits.body_bytes:
            self._fail(413, f"the body is larger than {self._limits.body_bytes} bytes")

    def on_message_complete(self) -> None:
        """The request is whole."""
        request = self._request
        if request is None or self.over:
            return
        self._progress = True
        request.body = bytes(self._body)
        self._held_bytes += len(request.body)
        self._request, self._url, self._fields, self._body = None, b"", [], bytearray()
        self.begun = self.wants_continue = False
        if len(self.ready) >= self._limits.pipelined or self._held_bytes > self._limits.body_bytes:
            request.keep_alive = False
            self.unread = True
        self.ready.append(request)
        self.over = not request.keep_alive

    # --- refusing

    def _check_framing(self, request: Request) -> None:
        coding = request.header(b"transfer-encoding")
        if coding is not None and request.version == "1.0":
            self._fail(400, "malformed request: HTTP/1.0 knows no Transfer-Encoding")
        if coding is not None and coding.strip().lower() != "chunked":
            self._fail(501, f"transfer coding {coding!r} is not implemented")
        length = int(request.header(b"content-length") or 0)
        if length > self._limits.body_bytes:
            self._fail(413, f"the body is larger than {self._limits.body_bytes} bytes")
        expect = request.header(b"expect")
        if expect is not None and request.version == "1.1":
            if expect.lower() != "100-continue":
                self._fail(417, f"cannot meet the expectation {expect!r}")
            self.wants_continue = coding is not None or length > 0

    def _check_head(self, more: int) -> None:
        self._progress = True
        self._head_bytes += more
        if self._head_bytes > self._limits.head_bytes:
            self._fail(431, f"the request line and headers are larger than {self._limits.head_bytes} bytes")

    def _fail(self, status: int, message: str) -> None:
        """Stop the parser from inside one of its callbacks."""
        self._refusal = Refusal(status, message)
        raise ValueError(message)

    def _ignore_upgrade(self) -> None:
        """Answer the request as it stands, and read nothing after it (RFC 9110, 7.8, allows to ignore it)."""
        request = self.ready.pop() if self.ready else None
        if isinstance(request, Request) and request.method != "CONNECT":
            request.keep_alive = False
            self.ready.append(request)
            self.over = self.unread = True
        else:
            self.refuse(501, "CONNECT is not implemented")
