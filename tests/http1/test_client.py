import asyncio
import socket
import ssl
import threading
import time
from pathlib import Path

import pytest
from tests.certificate import self_signed
from tests.raw_server import answering, read_request, serving

from knee.core.errors import TargetError, UsageError
from knee.http1.client import Client, _Collected, fetch, private_loop, request_bytes
from knee.http1.failure import HttpError
from knee.http1.origin import parse_origin

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


def test_get_and_headers() -> None:
    seen: list[bytes] = []

    def handle(connection: socket.socket, number: int) -> None:  # noqa: ARG001
        seen.append(read_request(connection))
        connection.sendall(b"HTTP/1.1 404 Not Found\r\nX-Two: a\r\nContent-Length: 2\r\n\r\nno")

    with serving(handle) as url:
        answer = fetch(f"{url}/metrics?a=b", headers={"authorization": "Bearer k"})
    assert (answer.status, answer.body, answer.header("x-TWO")) == (404, b"no", "a")
    assert seen[0].startswith(b"GET /metrics?a=b HTTP/1.1\r\nhost: 127.0.0.1:")
    assert b"authorization: Bearer k\r\n" in seen[0]
    assert answer.started_ns <= answer.head_ns <= answer.end_ns


def test_post_json() -> None:
    def handle(connection: socket.socket, number: int) -> None:  # noqa: ARG001
        body = read_request(connection).partition(b"\r\n\r\n")[2]
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))

    with serving(handle) as url:
        assert fetch(f"{url}/x", body={"a": [1, "ü"]}).json() == {"a": [1, "ü"]}


@pytest.mark.parametrize(
    "pieces",
    [
        (OK, b"o", b"k"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\no\r\n1\r", b"\nk\r\n0\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\n\r\no", b"k"),
        (b"HTTP/1.0 200 OK\r\n\r\nok",),
        (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n", OK + b"ok"),
        (OK + b"ok" + b"and something that no one asked for",),
    ],
)
def test_every_way_to_end_a_body(pieces: tuple[bytes, ...]) -> None:
    with serving(answering(*pieces, pause_s=0.01)) as url:
        assert fetch(url).body == b"ok"


def failing(url: str, timeout_s: float = 0.3) -> HttpError:
    begun = time.monotonic()
    with pytest.raises(HttpError) as caught:
        fetch(url, timeout_s=timeout_s, body_limit=100_000)
    assert time.monotonic() - begun < timeout_s + 2
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 4
    return caught.value


def test_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    error = failing(f"http://127.0.0.1:{port}")
    assert error.cause == "refused"
    assert f"http://127.0.0.1:{port}/ refuses connections" in str(error)
    assert "loading" in error.hint


def test_unknown_host() -> None:
    assert failing("http://no-such-host.invalid:8000", 5).cause == "unknown_host"


@pytest.mark.parametrize(
    ("pieces", "pause_s", "cause"),
    [
        ((b"",), 1.0, "timeout_first_byte"),
        ((OK + b"o", b"k"), 1.0, "timeout_total"),
        ((OK + b"o",), 0.0, "cut"),
        ((b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\no\r\n",), 0.0, "cut"),
        ((b"HTTP/1.1 200 OK\r\ncontent-le",), 0.0, "cut"),
        ((b"SSH-2.0-OpenSSH_9\r\n",), 0.0, "not_http"),
        ((b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",), 0.0, "not_http"),
        ((b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",), 0.0, "not_http"),
        ((b"HTTP/1.1 101 Up\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",), 0.0, "not_http"),
        ((b"HTTP/1.1 200 OK\r\n", *[b"a: " + b"b" * 9_000 + b"\r\n"] * 20), 0.001, "too_large"),
        ((b"HTTP/1.1 200 OK\r\n\r\n", *[b"x" * 50_000] * 20), 0.001, "too_large"),
    ],
)
def test_answers_that_are_none(pieces: tuple[bytes, ...], pause_s: float, cause: str) -> None:
    with serving(answering(*pieces, pause_s=pause_s)) as url:
        assert failing(url).cause == cause


def test_a_trickle_ends_at_the_total() -> None:
    with serving(
        answering(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n", *[b"x"] * 30, pause_s=0.05)
    ) as url:
        assert failing(url, 0.5).cause == "timeout_total"


def test_a_connection_is_kept_and_a_stale_one_replaced() -> None:
    """The server gives up a kept connection exactly when the next request comes: that is no failure."""
    connections: list[int] = []

    def handle(connection: socket.socket, number: int) -> None:
        connections.append(number)
        for _ in range(2 if number == 0 else 9):
            if not read_request(connection):
                return
            connection.sendall(OK + b"ok")
        read_request(connection)  # and close without a word

    async def several(url: str) -> list[bytes]:
        client = Client(url)
        try:
            return [(await client.request("/x")).body for _ in range(4)]
        finally:
            client.close()

    with serving(handle) as url, private_loop() as loop:
        assert loop.run_until_complete(several(url)) == [b"ok"] * 4
    assert connections == [0, 1]


def test_requests_at_once_are_independent() -> None:
    def handle(connection: socket.socket, number: int) -> None:  # noqa: ARG001
        while request := read_request(connection):
            path = request.split(b" ", 2)[1]
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(path), path))

    async def several(url: str) -> list[bytes]:
        client = Client(url)
        try:
            answers = await asyncio.gather(*[client.request(f"/{i}") for i in range(50)])
            return [answer.body for answer in answers]
        finally:
            client.close()

    with serving(handle) as url, private_loop() as loop:
        assert loop.run_until_complete(several(url)) == [b"/%d" % i for i in range(50)]


def test_cancelling_a_request_ends_it() -> None:
    closed = threading.Event()

    def handle(connection: socket.socket, number: int) -> None:  # noqa: ARG001
        read_request(connection)
        if not connection.recv(1):
            closed.set()

    async def cancelled(url: str) -> None:
        client = Client(url)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.request("/"), 0.1)
        client.close()

    with serving(handle) as url, private_loop() as loop:
        loop.run_until_complete(cancelled(url))
        assert closed.wait(2)


def test_a_cancel_is_heard_though_the_answer_has_just_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else whoever asks in a loop, as the scraper does, goes on for ever after it was stopped."""
    asking: list[asyncio.Task[object]] = []
    plain = _Collected.end

    def end(self: _Collected, now_ns: int) -> None:
        plain(self, now_ns)
        asking[0].cancel()

    monkeypatch.setattr(_Collected, "end", end)

    async def cancelled(url: str) -> None:
        client = Client(url)
        asking.append(asyncio.ensure_future(client.request("/")))
        with pytest.raises(asyncio.CancelledError):
            await asking[0]
        client.close()

    with serving(answering(OK + b"ok")) as url, private_loop() as loop:
        loop.run_until_complete(cancelled(url))


def test_tls(tmp_path: Path) -> None:
    context, certificate = self_signed(tmp_path)

    def handle(connection: socket.socket, number: int) -> None:  # noqa: ARG001
        with context.wrap_socket(connection, server_side=True) as secure:
            read_request(secure)
            secure.sendall(OK + b"ok")

    with serving(handle) as url:
        https = url.replace("http", "https")
        assert failing(https, 2).cause == "tls"
        trusting = ssl.create_default_context(cafile=str(certificate))
        assert fetch(https, tls=trusting).body == b"ok"
        assert failing(url, 2).cause in ("cut", "not_http", "reset")  # plain HTTP to a TLS port
    with serving(lambda connection, _: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as url:
        assert failing(url.replace("http", "https"), 2).cause == "tls"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://[::1]:80/a/", "http://[::1]:80/a"),
        ("https://x.example", "https://x.example:443"),
    ],
)
def test_urls(url: str, said: str) -> None:
    assert str(parse_origin(url)) == said


@pytest.mark.parametrize(
    "url",
    ["", "ftp://x", "http://", "http://x:99999", "http://x:0", "http://a b", "http://x/?q=1", "http://x#f",
     "http://[::1", "http://x\n.y", "http://u:p@x"],
)  # fmt: skip
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_origin(url)
    assert "u:p" not in str(caught.value)


def test_a_header_cannot_smuggle_a_line() -> None:
    origin = parse_origin("http://x")
    with pytest.raises(TargetError) as caught:
        request_bytes(origin, "/", None, {"authorization": "Bearer secret\r\nx: y"})
    assert "secret" not in str(caught.value)
    assert request_bytes(origin, "/", b"{}", {"User-Agent": "me"}).count(b"user-agent") == 1
