"""What the server writes, as h11 reads it."""

from typing import Any

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from knee.http1.exchange import Request, Response


class Tape:
    """Stands in for a connection and keeps what is written."""

    def __init__(self) -> None:
        self.data = b""
        self.ended = self.was_cut = False

    def write_out(self, data: bytes) -> None:
        self.data += data

    def common_headers(self) -> bytes:
        return b"date: now\r\nserver: test\r\n"

    def response_ended(self) -> None:
        self.ended = True

    def response_cut(self) -> None:
        self.was_cut = True


def read_h11(data: bytes, method: str) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method=method, target="/", headers=[("host", "a")]))
    client.send(h11.EndOfMessage())
    client.receive_data(data)
    status, headers, body = 0, [], b""
    while True:
        event: Any = client.next_event()
        if isinstance(event, h11.Response):
            status, headers = event.status_code, list(event.headers)
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            return status, headers, body
        else:
            pytest.fail(f"not a whole answer: {event}")


STATUSES = st.sampled_from([200, 201, 204, 206, 304, 400, 404, 413, 418, 500, 503, 599])
METHODS = st.sampled_from(["GET", "POST", "HEAD"])


@given(
    METHODS,
    STATUSES,
    st.lists(st.binary(max_size=200), max_size=8),
    st.sampled_from(["send", "chunks", "length"]),
)
def test_every_answer_is_whole_to_h11(method: str, status: int, pieces: list[bytes], way: str) -> None:
    tape = Tape()
    response = Response(tape, Request(method, "/", "1.1", []))
    body = b"".join(pieces)
    if way == "send":
        response.send(status, [(b"x-a", b"b")], body)
    else:
        response.start(status, [(b"x-a", b"b")], length=len(body) if way == "length" else None)
        for piece in pieces if status not in (204, 304) else []:
            response.write(piece)
        response.end()
    assert tape.ended
    assert not tape.was_cut
    found = read_h11(tape.data, method)
    shown = b"" if method == "HEAD" or status in (204, 304) else body
    assert found[0] == status
    assert found[2] == shown
    assert found[1][:2] == [(b"date", b"now"), (b"server", b"test")]
    assert (b"x-a", b"b") in found[1]


@given(st.binary(min_size=1, max_size=50), st.integers(1, 50))
def test_a_body_shorter_or_longer_than_announced_is_never_passed_off_as_whole(body: bytes, more: int) -> None:
    tape = Tape()
    response = Response(tape, Request("GET", "/", "1.1", []))
    response.start(200, length=len(body) + more)
    response.write(body)
    response.end()
    assert tape.was_cut
    assert not tape.ended
    other = Response(Tape(), Request("GET", "/", "1.1", []))
    other.start(200, length=len(body) - 1)
    with pytest.raises(ValueError, match="announced"):
        other.write(body)


@pytest.mark.parametrize("value", [b"a\r\nb: c", b"a\nb", b"a\0b", b"a\rb"])
def test_a_header_cannot_smuggle_another(value: bytes) -> None:
    response = Response(Tape(), Request("GET", "/", "1.1", []))
    with pytest.raises(ValueError, match="not a header"):
        response.start(200, [(b"x", value)])
