"""The reader of requests against h11 as the oracle, and against bytes that are no requests at all."""

from itertools import pairwise
from typing import Any

import h11
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from knee.http1.exchange import Request
from knee.http1.limits import Limits
from knee.http1.reader import Refusal, RequestReader

TOKEN = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=12).filter(
    lambda name: (
        name not in ("host", "connection", "expect", "upgrade", "content-length", "transfer-encoding")
    )
)
VALUE = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=30)
TARGET = st.text("abcxyz/?&=%.~-_", max_size=40).map(lambda text: "/" + text)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A well-formed request as a client might send it."""
    method = draw(st.sampled_from(["GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE"]))
    lines = [f"{method} {draw(TARGET)} HTTP/1.1", "Host: example"]
    lines += [f"x-{name}: {value}" for name, value in draw(st.lists(st.tuples(TOKEN, VALUE), max_size=4))]
    body = draw(st.binary(max_size=200)) if method in ("POST", "PUT") else b""
    if method not in ("POST", "PUT"):
        return "\r\n".join([*lines, "", ""]).encode() + body
    if draw(st.booleans()):
        return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body
    size = draw(st.integers(1, 64))
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    chunked = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    return "\r\n".join([*lines, "Transfer-Encoding: chunked", "", ""]).encode() + chunked


def read(data: bytes, cuts: list[int], limits: Limits | None = None) -> RequestReader:
    reader = RequestReader(limits or Limits())
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, end in pairwise(edges):
        reader.feed(data[start:end])
    return reader


def read_h11(data: bytes) -> list[tuple[str, str, list[tuple[bytes, bytes]], bytes]]:
    """What h11 makes of a pipeline of requests."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    found = []
    head: h11.Request | None = None
    body = b""
    while True:
        event: Any = connection.next_event()
        if isinstance(event, h11.Request):
            head, body = event, b""
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            assert head is not None
            found.append((head.method.decode(), head.target.decode(), list(head.headers), body))
            connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
            connection.send(h11.EndOfMessage())
            if connection.our_state is h11.MUST_CLOSE:
                return found
            connection.start_next_cycle()
        else:
            return found


@settings(max_examples=200, deadline=None)
@given(st.lists(requests(), min_size=1, max_size=5), st.lists(st.integers(0, 2000), max_size=12))
def test_reads_what_h11_reads_however_it_is_cut(pipeline: list[bytes], cuts: list[int]) -> None:
    data = b"".join(pipeline)
    reader = read(data, cuts)
    ours = []
    while reader.ready:
        item = reader.take()
        assert isinstance(item, Request), item
        ours.append((item.method, item.target, item.headers, item.body))
    assert ours == read_h11(data)
    assert len(ours) == len(pipeline)


HEAD = b"POST /x HTTP/1.1\r\nHost: a\r\n"
CHUNK = b"64\r\n" + b"a" * 100 + b"\r\n"
BAD = {
    "length and coding": (400, HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "coding and length": (400, HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n"),
    "two lengths": (400, HEAD + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd"),
    "two equal lengths": (400, HEAD + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc"),
    "length list": (400, HEAD + b"Content-Length: 3, 3\r\n\r\nabc"),
    "signed length": (400, HEAD + b"Content-Length: +3\r\n\r\nabc"),
    "hexadecimal length": (400, HEAD + b"Content-Length: 0x3\r\n\r\nabc"),
    "length of a galaxy": (400, HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n"),
    "unknown coding": (501, HEAD + b"Transfer-Encoding: gzip\r\n\r\nabc"),
    "two codings": (501, HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    "coding that only looks chunked": (501, HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
    "coding twice": (400, HEAD + b"Transfer-Encoding: chunked\r\n" * 2 + b"\r\n0\r\n\r\n"),
    "vertical tab": (400, HEAD + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n"),
    "space before the colon": (400, HEAD + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n"),
    "coding in HTTP/1.0": (400, b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "chunk size without CR": (400, HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n"),
    "chunk longer than said": (400, HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n"),
    "negative chunk": (400, HEAD + b"Transfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n"),
    "overflowing chunk": (400, HEAD + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n"),
    "folded header": (400, HEAD + b"Foo: a\r\n b\r\n\r\n"),
    "bare line feeds": (400, b"GET / HTTP/1.1\nHost: a\n\n"),
    "bare carriage return": (400, HEAD + b"Foo: a\rb\r\n\r\n"),
    "zero byte": (400, HEAD + b"Foo: a\0b\r\n\r\n"),
    "no host": (400, b"GET / HTTP/1.1\r\n\r\n"),
    "two hosts": (400, b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
    "another version": (505, b"GET / HTTP/2.0\r\nHost: a\r\n\r\n"),
    "no version": (505, b"GET /\r\n\r\n"),
    "another protocol": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    "HTTP/2 preface": (400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "unknown method": (400, b"BREW /pot HTTP/1.1\r\nHost: a\r\n\r\n"),
    "tunnel": (501, b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n"),
    "expectation": (417, HEAD + b"Expect: miracles\r\nContent-Length: 1\r\n\r\na"),
    "body over the limit": (413, HEAD + b"Content-Length: 1001\r\n\r\n"),
    "chunks over the limit": (413, HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNK * 11),
    "long target": (431, b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\nHost: a\r\n\r\n"),
    "long header": (431, HEAD + b"X: " + b"a" * 3000 + b"\r\n\r\n"),
    "many headers": (431, HEAD + b"".join(b"X-%d: a\r\n" % n for n in range(30)) + b"\r\n"),
    "long trailer": (431, HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"a" * 3000 + b"\r\n\r\n"),
}  # fmt: skip
SMALL = Limits(head_bytes=2000, headers=20, body_bytes=1000, pipelined=4)


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("cut", [None, 1, 7])
def test_refuses(name: str, cut: int | None) -> None:
    status, data = BAD[name]
    good = b"GET /first HTTP/1.1\r\nHost: a\r\n\r\n"
    reader = RequestReader(SMALL)
    whole = good + data + b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
    for at in range(0, len(whole), cut or len(whole)):
        reader.feed(whole[at : at + (cut or len(whole))])
    first, refusal = reader.take(), reader.take()
    assert isinstance(first, Request)
    assert first.path == "/first"
    assert isinstance(refusal, Refusal), refusal
    assert refusal.status == status
    assert reader.over
    assert not reader.ready, "nothing after a refusal is ever read as a request"


@pytest.mark.parametrize("name", [name for name, (status, _) in BAD.items() if status == 400])
def test_h11_refuses_them_too_or_we_are_stricter(name: str) -> None:
    """Where h11 lets something pass that we refuse, it stands here by name."""
    stricter = {"length and coding", "coding and length", "two equal lengths", "length list",
                "bare line feeds", "folded header", "overflowing chunk", "coding in HTTP/1.0",
                "unknown method"}  # fmt: skip
    try:
        read_h11(BAD[name][1])
        refused = False
    except h11.RemoteProtocolError:
        refused = True
    assert refused != (name in stricter)


@pytest.mark.parametrize(
    "endless",
    [
        b"GET /",
        HEAD + b"X-Slow: ",
        HEAD + b"X",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n5;extension=",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nTrailer: ",
    ],
)
def test_nothing_endless_is_held(endless: bytes) -> None:
    reader = RequestReader(SMALL)
    reader.feed(endless)
    fed = 0
    while not reader.over:
        reader.feed(b"a" * 50)
        fed += 50
        assert fed <= 2 * SMALL.head_bytes
    refusal = reader.take()
    assert isinstance(refusal, Refusal)
    assert refusal.status in (400, 431)


def test_a_pipeline_has_a_bound_and_its_last_answer_ends_the_connection() -> None:
    reader = RequestReader(SMALL)
    reader.feed(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 50)
    assert len(reader.ready) == SMALL.pipelined + 1
    assert reader.over
    assert reader.unread
    taken = [reader.take() for _ in range(SMALL.pipelined + 1)]
    assert [item.keep_alive for item in taken if isinstance(item, Request)] == [True] * 4 + [False]


def test_an_upgrade_is_answered_as_the_plain_request_it_also_is() -> None:
    reader = RequestReader(SMALL)
    reader.feed(
        b"GET /a HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\nGET /b HTTP/1.1\r\n"
    )
    request = reader.take()
    assert isinstance(request, Request)
    assert (request.path, request.keep_alive, reader.over) == ("/a", False, True)
    assert not reader.ready


@settings(max_examples=400, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=60),
            requests(),
            st.sampled_from(
                [b"\r\n", b"0\r\n\r\n", b"GET / HTTP/1.1\r\n", b"Host: a\r\n", b"5\r\n", b": ", HEAD]
            ),
        ),
        max_size=12,
    )
)
@example([HEAD, b"Transfer-Encoding: chunked\r\n", b"\r\n", b"0\r\n\r\n"])
def test_no_bytes_break_the_reader(pieces: list[bytes]) -> None:
    reader = RequestReader(SMALL)
    for piece in pieces:
        reader.feed(piece)
        refusals = [item for item in reader.ready if isinstance(item, Refusal)]
        assert len(refusals) <= 1
        assert not refusals or (reader.over and reader.ready[-1] is refusals[0])
        assert len(reader.ready) <= SMALL.pipelined + 2


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/v1/models", "/v1/models", ""),
        ("/a%20b?x=%201", "/a b", "x=%201"),
        ("http://host:80/p?q", "/p", "q"),
        ("http://host", "/", ""),
        ("*", "*", ""),
        ("/a#frag", "/a", ""),
        ("/a?u=http://b", "/a", "u=http://b"),
    ],
)
def test_target(target: str, path: str, query: str) -> None:
    request = Request("GET", target, "1.1", [])
    assert (request.path, request.query) == (path, query)
