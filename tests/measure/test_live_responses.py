"""`/v1/responses`: another request, other events, the same books."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.measure.test_live_exchange import MS, SSE_HEADERS
from tests.measure.test_live_load import counts, inside, measured, offer
from tests.scripted_server import SSE, Call, chunk, plain, response_tokens, scripted, typed_event

from knee.cli.main import run
from knee.core.errors import UsageError
from knee.core.requests import FAILED, OK
from knee.measure.client.books import Books
from knee.measure.client.endpoints import Ask, form
from knee.measure.client.exchange import StreamExchange
from knee.measure.client.responses import ResponsesTally

ASK = Ask(model="", endpoint="responses")
REAL = Path(__file__).parents[1] / "data" / "real-0.32"
USAGE = {"input_tokens": 10, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 6}
SHORT = ["--prompt", "40", "--output", "4", "--duration", "500ms", "--warmup", "100ms", "--rate", "40"]


def entered(*events: dict[str, Any], stream: bool = True, cut: int = 0) -> tuple[Books, str]:
    """The books after a stream of `events`, 10 ms apart, sent in pieces of `cut` bytes (0: one an event)."""
    books = Books()
    exchange = StreamExchange(books, books.offer(0, 10, 6), 0, stream, lambda _: None, tally=ResponsesTally)
    exchange.sent(1 * MS)
    exchange.head(2 * MS, 200, SSE_HEADERS if stream else [(b"content-type", b"application/json")])
    for number, event in enumerate(events, 1):
        data = json.dumps(event).encode()
        if stream:
            data = b"event: %b\ndata: %b\n\n" % (str(event.get("type")).encode(), data)
        for at in range(0, len(data), cut or len(data)):
            exchange.body(10 * MS * number, data[at : at + (cut or len(data))])
    exchange.end(500 * MS)
    return books, exchange.cause


def delta(text: str = "a", kind: str = "response.output_text.delta") -> dict[str, Any]:
    return {"type": kind, "delta": text}


def ended(kind: str = "response.completed", **fields: Any) -> dict[str, Any]:
    return {"type": kind, "response": {"status": kind.split(".")[1], "usage": USAGE, "output": []} | fields}


CREATED = {"type": "response.created", "response": {"status": "in_progress", "usage": None}}


@given(cut=st.integers(0, 40))
def test_a_stream_is_booked_by_its_deltas_and_its_usage(cut: int) -> None:
    books, cause = entered(CREATED, delta(), delta(""), delta(), delta(), ended(), cut=cut)
    assert (books.outcome[0], cause) == (OK, "")
    assert books.first_ns[0] == 20 * MS  # the first delta with text, not the event that opens the answer
    assert books.last_ns[0] == 50 * MS
    assert (books.prompt_tokens[0], books.output_tokens[0], books.cached_tokens) == (10, 6, 4)
    gaps = books.observed(0).gaps
    assert (gaps.ns.tolist(), gaps.count.tolist()) == ([10 * MS, 5 * MS], [2, 2])  # two tokens a chunk


def test_answers_of_vllm() -> None:
    """Six tokens in five chunks, cut off by max_output_tokens: as recorded from vLLM 0.32.0."""
    books = Books()
    exchange = StreamExchange(books, books.offer(0, 19, 6), 0, True, lambda _: None, tally=ResponsesTally)
    exchange.sent(1 * MS)
    exchange.head(2 * MS, 200, SSE_HEADERS)
    events = (REAL / "responses.sse").read_bytes().split(b"\n\n")[:-1]
    for number, event in enumerate(events, 1):
        exchange.body(10 * MS * number, event + b"\n\n")
    exchange.end(500 * MS)
    assert (books.outcome[0], books.prompt_tokens[0], books.output_tokens[0]) == (OK, 19, 6)
    assert books.first_ns[0] == 50 * MS  # after four events that open the answer
    assert books.last_ns[0] == 90 * MS
    books, cause = entered(json.loads((REAL / "responses.json").read_bytes()), stream=False)
    assert (cause, books.prompt_tokens[0], books.output_tokens[0]) == ("", 19, 6)


@pytest.mark.parametrize("kind", ["response.reasoning_text.delta", "response.function_call_arguments.delta"])
def test_reasoning_and_calls_are_output(kind: str) -> None:
    books, _ = entered(CREATED, delta("{", kind), ended("response.incomplete"))
    assert (books.outcome[0], books.first_ns[0]) == (OK, 20 * MS)


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (
            ended("response.failed", error={"code": "server_error", "message": "out of memory"}),
            "out of memory",
        ),
        (ended("response.completed", status="failed"), "the response is failed"),
        ({"type": "error", "code": "x", "message": "no such thing"}, "no such thing"),
        ({"type": "error"}, "error"),
        ({"error": {"message": "EngineCore died", "code": 500}}, "EngineCore died"),
        ({"type": "response.cancelled"}, "response.cancelled"),
    ],
)
def test_an_error_after_a_200_is_a_failure(last: dict[str, Any], said: str) -> None:
    for more in ((), (ended(),)):  # whatever follows it
        books, cause = entered(CREATED, delta(), last, *more)
        assert (books.outcome[0], cause) == (FAILED, "error_event")
        assert said in books.said["error_event"]


def test_other_ends_are_failures_of_their_own() -> None:
    books, cause = entered(CREATED, delta())
    assert (cause, books.said[cause]) == ("no_done", "the stream ended without response.completed")
    assert entered(CREATED, ended())[1] == "empty"
    assert entered({"type": 7})[1] == "bad_event"


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        ({"status": "completed", "output": [{"type": "message", "content": [{"text": "a"}]}]}, ""),
        ({"status": "completed", "output": [{"type": "function_call"}]}, ""),
        ({"status": "incomplete", "output": [], "usage": USAGE}, ""),
        ({"status": "completed", "output": [{"type": "message", "content": [7, {"text": ""}]}]}, "empty"),
        ({"status": "failed", "output": [], "error": {"message": "x"}}, "error_event"),
        ({"status": "failed", "output": []}, "error_event"),
        ({"output": 3}, "bad_answer"),
    ],
)
def test_whole_answers(answer: dict[str, Any], cause: str) -> None:
    books, found = entered(answer, stream=False)
    assert found == cause
    assert (books.outcome[0] == OK) == (not cause)


NAMES = ["type", "content", "text", "output", "status", "usage"]
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "content", "text", "output", "status", "usage"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@given(value=values, stream=st.booleans())
def test_whatever_is_said_is_booked(value: Any, stream: bool) -> None:
    event = value if isinstance(value, dict) else {"response": value, "output": [value]}
    books, cause = entered(event, ended(), stream=stream)
    assert books.outcome[0] in (OK, FAILED)
    assert (books.outcome[0] == FAILED) == bool(cause)


def test_load_over_responses() -> None:
    async def script(call: Call) -> AsyncIterator[bytes]:
        if call.number % 5 == 4:
            yield SSE + typed_event("response.failed", response={"error": {"message": "full"}}) + chunk(b"")
            return
        async for piece in response_tokens(call, 0.02, 0.004):
            yield piece

    asked = offer(rate=60)
    got, server = measured(script, asked, ask=ASK)
    body = server.calls[0].body
    assert server.calls[0].path == "/v1/responses"
    assert (body["stream"], body["store"], body["ignore_eos"]) == (True, False, True)
    assert not {"n", "stream_options", "max_tokens", "prompt"} & set(body)
    found = counts(got.observed, asked)
    assert found[OK] > 30
    assert found[OK] + found[FAILED] == inside(got.observed, asked).sum()
    assert set(got.observed.causes) == {"error_event"}
    ok = got.observed.outcome == OK
    assert (got.observed.output_tokens[ok] == 5).all()
    assert got.health is not None
    assert got.health.prompt_error_share == 0  # the usage of the last event says what was sent
    assert got.health.cached_share
    assert any("full" in note for note in got.health.notes)


@pytest.mark.parametrize("how", ["--stream", "--no-stream"])
def test_the_command(how: str, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted(lambda call: response_tokens(call, 0.01, 0.002)) as server:
        assert run(["bench", server.url, *SHORT, "--endpoint", "responses", how]) in (0, 1)
    assert "failed 0 + rejected 0" in capsys.readouterr().out


def test_a_server_without_it(capsys: pytest.CaptureFixture[str]) -> None:
    async def script(call: Call) -> AsyncIterator[bytes]:  # noqa: ARG001
        yield plain(404, b"{}")

    with scripted(script, {"/v1/responses": (404, {"detail": "Not Found"})}) as server:
        assert run(["bench", server.url, *SHORT, "--endpoint", "responses"]) == 4
    assert "has no /v1/responses" in capsys.readouterr().err


def test_what_cannot_be_asked() -> None:
    with pytest.raises(UsageError, match="--n 2"):
        form(msgspec.structs.replace(ASK, n=2))
    with pytest.raises(UsageError, match="input"):
        form(msgspec.structs.replace(ASK, body={"input": "x"}))
