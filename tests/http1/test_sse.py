import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from openai._streaming import SSEDecoder

from knee.http1.sse import SseError, SseParser

SHARED = Path(__file__).parents[2].parent / "shared"


def whole(data: bytes) -> list[bytes]:
    return SseParser().feed(data)


def in_pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    parser, events, at = SseParser(), [], 0
    for cut in [*sorted(cuts), len(data)]:
        events += parser.feed(data[at:cut])
        at = max(at, cut)
    return events


def by_the_standard(data: bytes) -> list[bytes]:
    """The standard's own steps, over the whole stream and line by line."""
    data = data.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    events: list[bytes] = []
    buffer: list[bytes] = []
    for line in data.split(b"\n")[:-1]:
        name, colon, value = line.partition(b":")
        if not line:
            if buffer:
                events.append(b"\n".join(buffer))
            buffer = []
        elif name == b"data" and (colon or line == b"data"):
            buffer.append(value.removeprefix(b" "))
    return events


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data:a\r\n\r\ndata:  b\r\r", [b"a", b" b"]),
        (b": keep-alive\n\n: again\n\ndata: x\n\n", [b"x"]),
        (b"event: m\nid: 3\ndata: one\ndata: two\nretry: 5\n\n", [b"one\ntwo"]),
        (b"\xef\xbb\xbfdata: x\n\n", [b"x"]),
        (b"\n\n\n\ndata: x\n\n\n\n\ndata: y\n\n", [b"x", b"y"]),
        (b"data\n\n", [b""]),
        (b"dataset: no\n\nda\n\n", []),
        (b"data: half\n", []),
        ("data: Zürich 東京 🙂\n\n".encode(), ["Zürich 東京 🙂".encode()]),
    ],
)
def test_streams(stream: bytes, events: list[bytes]) -> None:
    assert whole(stream) == events == by_the_standard(stream)
    assert in_pieces(stream, list(range(len(stream)))) == events


def test_a_last_event_without_its_blank_line() -> None:
    parser = SseParser()
    assert parser.feed(b"data: a\n\ndata: [DONE]\n") == [b"a"]
    assert parser.flush() == [b"[DONE]"]
    parser.feed(b"data: [DO")
    assert parser.rest == b"data: [DO"
    assert parser.flush() == []


pieces = st.sampled_from(
    [b"data: ", b"data:", b"data", b":", b" ", b"\n", b"\r", b"\r\n", b"\n\n", b"event: x", b"\xef\xbb\xbf",
     "ü🙂".encode(), b'{"a": 1}', b"[DONE]"]
)  # fmt: skip
streams = st.lists(pieces, max_size=40).map(b"".join) | st.binary(max_size=60)


@given(stream=streams, data=st.data())
@settings(max_examples=300, deadline=None)
def test_cutting_makes_no_difference(stream: bytes, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    # An end of line is the last thing in the stream: a CR that may still get its LF is not decided yet.
    assert in_pieces(stream, cuts) == whole(stream) == by_the_standard(stream)


insides = st.sampled_from([b"", b"a", b"x\r", b"\xef\xbb\xbf", b"a\nb"])
ends = st.sampled_from([b"\n\n"] * 9 + [b"\n", b"\r\n\r\n", b"\n\n\n"])
plain_or_not = st.lists(st.builds(lambda i, e: b"data: " + i + e, insides, ends) | pieces, max_size=6)


@example(batches=[[], [b"\xef\xbb\xbf", b"data: a\n\n"]], limit=1_000)
@given(batches=st.lists(plain_or_not, max_size=4), limit=st.sampled_from([8, 1_000]))
@settings(max_examples=500, deadline=None)
def test_the_short_cut_for_plain_events_makes_no_difference(batches: list[list[bytes]], limit: int) -> None:
    """Whatever came before, in whatever state that left the parser."""
    plain, short = SseParser(limit), SseParser(limit)
    for batch in batches:
        found = short.feed_plain(batch)
        try:
            wanted = [event for piece in batch for event in plain.feed(piece)]
        except SseError:
            assert found is None
            return
        if found is None:
            found = [event for piece in batch for event in short.feed(piece)]
        assert found == wanted


text = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S")), max_size=30)


@given(texts=st.lists(text, max_size=8), end=st.sampled_from(["\n", "\r\n", "\r"]), comment=st.booleans())
@settings(max_examples=100, deadline=None)
def test_agrees_with_the_openai_client(texts: list[str], end: str, comment: bool) -> None:
    """An independent parser reads the same events (it reports one with no text at all as well)."""
    stream = "".join(f"{': ping' + end if comment else ''}data: {t}{end}{end}" for t in texts).encode()
    theirs = [event.data.encode() for event in SSEDecoder().iter_bytes(iter([stream]))]
    assert whole(stream) == theirs == [t.encode() for t in texts]


@given(stream=st.binary(max_size=300), limit=st.integers(1, 50))
@settings(max_examples=200, deadline=None)
def test_what_is_kept_is_bounded(stream: bytes, limit: int) -> None:
    parser = SseParser(limit)
    try:
        for i in range(0, len(stream), 7):
            parser.feed(stream[i : i + 7])
            assert len(parser.rest) <= limit
    except SseError:
        return


def test_a_chunk_of_ten_megabytes_is_read_in_linear_time() -> None:
    big = b"data: " + b"x" * (9 * 1024 * 1024) + b"\n\n"
    parser, events = SseParser(), []
    begun = time.process_time()
    for at in range(0, len(big), 4_096):
        events += parser.feed(big[at : at + 4_096])
    assert time.process_time() - begun < 1.0  # copying what is kept on every read takes over 5 s
    assert [len(event) for event in events] == [9 * 1024 * 1024]
    piece = b"data: " + b"x" * 1_000_000
    with pytest.raises(SseError, match="more than"):
        any(parser.feed(piece) for _ in range(11))


@pytest.mark.parametrize(
    "name", ["sse-chat.txt", "sse-completions.txt", "sse-completions-continuous-usage.txt"]
)
def test_recorded_streams(name: str) -> None:
    stream = (SHARED / "captures" / name).read_bytes()
    events = whole(stream)
    assert events == by_the_standard(stream)
    assert events[-1] == b"[DONE]"
    assert len(events) == stream.count(b"data: ")
