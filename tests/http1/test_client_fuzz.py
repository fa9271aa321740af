"""The client's side of a connection against hostile bytes, and beside h11 and aiohttp on valid ones."""

import asyncio
from itertools import pairwise
from typing import Any

import aiohttp
import h11
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.raw_server import answering, serving

from knee.http1.client import Client, fetch, private_loop
from knee.http1.failure import HttpError
from knee.http1.outbound import BODY_LIMIT, HEADER_LIMIT, Headers, Outbound


class Heard:
    """An exchange that notes what it hears."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Headers = []
        self.data = b""
        self.ends = 0
        self.cause = ""

    def sent(self, now_ns: int) -> None: ...

    def head(self, now_ns: int, status: int, headers: Headers) -> None:  # noqa: ARG002
        self.status, self.headers = status, headers

    def body(self, now_ns: int, data: bytes) -> None:  # noqa: ARG002
        self.data += data

    def end(self, now_ns: int) -> None:  # noqa: ARG002
        self.ends += 1

    def fail(self, now_ns: int, cause: str, detail: str) -> None:  # noqa: ARG002
        self.ends += 1
        self.cause = cause


class Transport(asyncio.Transport):
    """A transport that only notes whether it was dropped."""

    dropped = False

    def write(self, data: Any) -> None: ...

    def abort(self) -> None:
        self.dropped = True


def hear(data: bytes, cuts: list[int], limit: int = BODY_LIMIT) -> tuple[Heard, bool]:
    """What an exchange hears where `data`, cut at `cuts`, is all that comes; and whether more may come."""
    heard, reusable = Heard(), []
    connection = Outbound(
        lambda: 0,
        lambda _, free: reusable.append(free),
        lambda exchange, _: exchange.fail(0, "cut", ""),
        limit,
    )
    transport = Transport()
    connection.connection_made(transport)
    connection.send(heard, b"GET / HTTP/1.1\r\n\r\n")
    at = 0
    for cut in [*sorted(cuts), len(data)]:
        if cut > at and not transport.dropped:
            connection.data_received(data[at:cut])
        at = max(at, cut)
    free = bool(reusable) and reusable[-1]
    connection.connection_lost(None)
    return heard, free


names = st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,12}", fullmatch=True).filter(
    lambda n: n.lower() not in ("content-length", "transfer-encoding", "connection", "upgrade", "trailer")
)
values = st.from_regex(r"[!-~]([ -~]{0,20}[!-~])?", fullmatch=True)


@given(
    status=st.sampled_from([200, 201, 400, 404, 429, 500, 503]),
    headers=st.lists(st.tuples(names, values), max_size=5),
    body=st.lists(st.binary(min_size=1, max_size=60), max_size=6),
    chunked=st.booleans(),
    data=st.data(),
)
@settings(max_examples=150, deadline=None)
def test_valid_answers_are_heard_as_h11_meant_them(
    status: int, headers: list[tuple[str, str]], body: list[bytes], chunked: bool, data: st.DataObject
) -> None:
    """An independent implementation writes the answer; cut anywhere, we hear exactly it."""
    length = sum(len(piece) for piece in body)
    framing = ("transfer-encoding", "chunked") if chunked else ("content-length", str(length))
    server = h11.Connection(h11.SERVER)
    server.receive_data(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    server.next_event()
    wire = server.send(h11.Response(status_code=status, headers=[*headers, framing])) or b""
    for piece in body:
        wire += server.send(h11.Data(data=piece)) or b""
    wire += server.send(h11.EndOfMessage()) or b""
    cuts = data.draw(st.lists(st.integers(0, len(wire)), max_size=8))
    heard, free = hear(wire, cuts)
    assert (heard.status, heard.data, heard.ends, heard.cause) == (status, b"".join(body), 1, "")
    wanted = [(name.lower().encode(), value.encode()) for name, value in headers]
    assert [pair for pair in heard.headers if pair[0] != framing[0].encode()] == wanted
    assert free


@given(
    body=st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=8),
    bad=st.sampled_from(
        [b"", b"", b"0x5\r\nhello\r\n", b"5\r\nhell\r\n", b"+5\r\nhello\r\n", b"5 \r\nhello"]
    ),
    at=st.integers(0, 8),
    data=st.data(),
)
@settings(max_examples=300, deadline=None)
def test_chunks_that_come_whole_are_heard_as_cut_ones(
    body: list[bytes], bad: bytes, at: int, data: st.DataObject
) -> None:
    """A read that is one chunk passes the parser by; what is none never does, and later reads are its own."""
    chunks = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in body]
    if bad:
        chunks.insert(at, bad)
    reads = [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", *chunks, b"0\r\n\r\n"]
    wire, cuts = b"".join(reads), list[int]()
    for read in reads:
        cuts.append((cuts[-1] if cuts else 0) + len(read))
    cuts = [cut for cut in cuts if data.draw(st.booleans() | st.just(value=True))]
    cuts += data.draw(st.lists(st.integers(0, len(wire)), max_size=2))
    (in_reads, free), (whole, also_free) = hear(wire, cuts), hear(wire, [])
    assert (in_reads.cause, in_reads.ends, free) == (whole.cause, whole.ends, also_free)
    if not bad:
        assert in_reads.data == whole.data == b"".join(body)


BITS = [
    b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.0 200\r\n", b"content-length: 5\r\n",
    b"transfer-encoding: chunked\r\n", b"connection: close\r\n", b"\r\n", b"5\r\nhello\r\n", b"0\r\n\r\n",
    b"ffffffffffffffffff\r\n", b"-1\r\n", b"\x00", b"a: b\r\n", b"\n", b"hello", b"\xff\xfe",
    b"content-length: 99999999999999999999\r\n", b"HTTP/1.1 204 No\r\n\r\n",
    b"HTTP/1.1 101 Up\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
]  # fmt: skip
wires = st.lists(st.sampled_from(BITS), max_size=10).map(b"".join) | st.binary(max_size=80)


def longest_read(wire: bytes, cuts: list[int]) -> int:
    """What may come at once, before a limit can be seen to be passed."""
    ends = [0, *sorted(cuts), len(wire)]
    return max(after - before for before, after in pairwise(ends))


@given(wire=wires, data=st.data())
@settings(max_examples=500, deadline=None)
def test_hostile_bytes_end_every_exchange_exactly_once(wire: bytes, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(wire)), max_size=6))
    heard, _ = hear(wire, cuts, limit=100)
    assert heard.ends == 1
    assert len(heard.data) <= 100 + longest_read(wire, cuts)


@given(wire=wires, data=st.data())
@settings(max_examples=300, deadline=None)
@example(wire=b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", data=None)
def test_cutting_makes_no_difference(wire: bytes, data: st.DataObject | None) -> None:
    cuts = (
        list(range(len(wire))) if data is None else data.draw(st.lists(st.integers(0, len(wire)), max_size=6))
    )
    (whole, _), (cut, _) = hear(wire, []), hear(wire, cuts)
    assert (whole.status, whole.cause == "") == (cut.status, cut.cause == "")
    if whole.cause == "":
        assert whole.data == cut.data


@pytest.mark.parametrize(("early", "cause"), [(b"SSH-2.0-OpenSSH_9.6\r\n", "not_http"), (b"", "cut")])
def test_a_connection_that_is_spoilt_before_it_is_used(early: bytes, cause: str) -> None:
    """The server speaks first, or is gone, between connect and send: the request ends all the same."""
    heard, released = Heard(), []
    connection = Outbound(lambda: 0, lambda _, free: released.append(free), lambda *_: None)
    connection.connection_made(Transport())
    if early:
        connection.data_received(early)
    else:
        connection.connection_lost(None)
    connection.send(heard, b"GET / HTTP/1.1\r\n\r\n")
    connection.connection_lost(None)
    assert (heard.cause, heard.ends) == (cause, 1)
    assert released
    assert not any(released)


def test_headers_without_end_are_bounded() -> None:
    heard, free = hear(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 40_000, list(range(0, 240_000, 1_000)))
    assert (heard.cause, heard.ends, free) == ("too_large", 1, False)
    assert HEADER_LIMIT < 240_000


def test_an_endless_body_is_bounded() -> None:
    wire = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"3e8\r\n" + b"x" * 1_000 + b"\r\n"
    heard, _ = hear(wire + (b"3e8\r\n" + b"x" * 1_000 + b"\r\n") * 50, list(range(0, 50_000, 1_000)), 10_000)
    assert heard.cause == "too_large"
    assert len(heard.data) <= 12_000


ANSWERS = [
    b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3;ext=1\r\nllo\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nhello",
    b"HTTP/1.1 503 Busy\r\nretry-after: 3\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 204 None\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    b"garbage\r\n\r\n",
    b"",
]


@pytest.mark.parametrize("wire", ANSWERS)
def test_agrees_with_aiohttp(wire: bytes) -> None:
    """Another client makes the same of the same bytes: an answer with its body, or a failure."""

    async def theirs(url: str) -> tuple[int, bytes] | None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=3)) as session:
            try:
                async with session.get(url) as response:
                    return response.status, await response.read()
            except aiohttp.ClientError:
                return None

    with serving(answering(wire)) as url:
        other = asyncio.run(theirs(url))
        try:
            answer = fetch(url, timeout_s=3)
            ours = (answer.status, answer.body)
        except HttpError:
            ours = None
    assert ours == other


def test_a_request_reads_as_h11_reads_it() -> None:
    seen: list[bytes] = []

    def handle(connection: Any, number: int) -> None:  # noqa: ARG001
        from tests.raw_server import read_request

        seen.append(read_request(connection))
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    async def ask(url: str) -> None:
        client = Client(f"{url}/base", headers={"authorization": "Bearer k", "X-A": "b"})
        await client.request("/v1/completions", {"prompt": "ü"})
        client.close()

    with serving(handle) as url, private_loop() as loop:
        loop.run_until_complete(ask(url))
    server = h11.Connection(h11.SERVER)
    server.receive_data(seen[0])
    request, body, end = server.next_event(), server.next_event(), server.next_event()
    assert isinstance(request, h11.Request)
    assert isinstance(body, h11.Data)
    assert isinstance(end, h11.EndOfMessage)
    assert (request.method, request.target) == (b"POST", b"/base/v1/completions")
    assert dict(request.headers)[b"x-a"] == b"b"
    assert bytes(body.data) == '{"prompt":"ü"}'.encode()
