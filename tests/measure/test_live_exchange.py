"""The token books: one answer, fed piece by piece at known instants, and what it must be entered as."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knee.core.requests import CENSORED, FAILED, OK, REJECTED
from knee.core.units import NS_PER_MS
from knee.measure.client.books import Books
from knee.measure.client.exchange import StreamExchange
from knee.measure.client.tally import chunk_tokens, gaps_between

SHARED = Path(__file__).parents[2].parent / "shared"
MS = NS_PER_MS
SSE_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8")]


class Answer:
    """An exchange with books of its own, in which the request was due at 0 and sent at 1 ms."""

    def __init__(self, stream: bool = True, asked: int = 4) -> None:
        self.books = Books()
        self.ended = 0
        index = self.books.offer(0, 10, asked)
        self.exchange = StreamExchange(self.books, index, 0, stream, self._end)
        self.exchange.sent(1 * MS)

    def _end(self, exchange: StreamExchange) -> None:  # noqa: ARG002
        self.ended += 1

    def head(self, status: int = 200, headers: list[tuple[bytes, bytes]] | None = None) -> "Answer":
        self.exchange.head(2 * MS, status, SSE_HEADERS if headers is None else headers)
        return self

    def events(self, *timed: tuple[float, Any]) -> "Answer":
        for at_ms, value in timed:
            data = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.exchange.body(int(at_ms * MS), b"data: " + data + b"\n\n")
        return self

    def end(self, at_ms: float) -> "Answer":
        self.exchange.end(int(at_ms * MS))
        return self

    def gaps(self) -> list[tuple[float, int]]:
        seen = self.books.observed(0).gaps
        return [(ns / MS, count) for ns, count in zip(seen.ns.tolist(), seen.count.tolist(), strict=True)]

    @property
    def outcome(self) -> int:
        return self.books.outcome[0]

    @property
    def ttft_ms(self) -> float:
        return self.books.first_ns[0] / MS

    @property
    def tokens(self) -> tuple[int, int]:
        return self.books.output_tokens[0], self.books.first_tokens[0]


def text(piece: str, so_far: int | None = None) -> dict[str, Any]:
    value: dict[str, Any] = {"choices": [{"index": 0, "text": piece}]}
    if so_far is not None:
        value["usage"] = {"prompt_tokens": 12, "completion_tokens": so_far}
    return value


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields}]}


def usage(prompt: int, completion: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}}


DONE = b"[DONE]"


def test_a_plain_stream() -> None:
    answer = (
        Answer()
        .head()
        .events((50, text("a")), (60, text("b")), (80, text("c")), (80, usage(12, 3)), (81, DONE))
    )
    answer.end(82)
    assert (answer.outcome, answer.ttft_ms, answer.tokens, answer.ended) == (OK, 50, (3, 1), 1)
    assert answer.gaps() == [(10, 1), (20, 1)]  # n tokens have n - 1 gaps; TTFT is not one of them
    assert answer.books.last_ns[0] == 80 * MS
    assert answer.books.end_ns[0] == 82 * MS
    assert answer.books.prompt_tokens[0] == 12  # as the server counts, not as asked
    assert (answer.books.checked_prompt_tokens, answer.books.off_prompt_tokens) == (10, 2)
    assert answer.books.sent_ns[0] == 1 * MS


def test_the_role_is_no_token() -> None:
    """A chat stream opens with the role at 5 ms; the first token comes at 214 ms."""
    answer = Answer().head().events(
        (5, delta(role="assistant", content="")), (214, delta(content="x")), (224, delta(content="y"))
    ).events((225, usage(9, 2)), (225, DONE)).end(226)  # fmt: skip
    assert answer.ttft_ms == 214
    assert answer.gaps() == [(10, 1)]


@pytest.mark.parametrize(
    "said",
    [
        {"reasoning": "hm"},
        {"reasoning_content": "hm"},
        {"tool_calls": [{"index": 0, "function": {"name": "f"}}]},
        {"refusal": "no"},
    ],
)
def test_reasoning_and_tool_calls_are_output(said: dict[str, Any]) -> None:
    answer = Answer().head().events((5, delta(role="assistant")), (40, delta(**said)), (50, DONE)).end(51)
    assert (answer.outcome, answer.ttft_ms) == (OK, 40)


def test_a_chunk_of_k_tokens_is_k_gaps() -> None:
    """Speculative decoding: 4 tokens after 14 ms are 4 gaps of 3.5 ms; the chunk gap is kept as it was."""
    answer = (
        Answer().head().events((50, text("abc", 3)), (64, text("defg", 7)), (66, text("h", 8)), (66, DONE))
    )
    answer.end(66)
    assert answer.tokens == (8, 3)  # TPOT is (66 - 50) / (8 - 3)
    assert answer.gaps() == [(3.5, 4), (2, 1)]
    assert answer.books.observed(0).gaps.chunk_ns is not None
    assert answer.books.chunk_ns.tolist() == [14 * MS, 2 * MS]


def test_without_continuous_usage_the_final_usage_is_spread() -> None:
    """5.5 tokens/s by chunks where the server's usage says 25: usage is the truth."""
    answer = (
        Answer()
        .head()
        .events((50, text("ab")), (60, text("cd")), (70, text("ef")), (70, usage(12, 12)), (70, DONE))
    )
    answer.end(70)
    assert answer.tokens == (12, 4)
    assert answer.gaps() == [(2.5, 4), (2.5, 4)]


def test_tokens_without_text_count() -> None:
    """An empty delta that the usage counts is a token (text is held back until a character is whole)."""
    answer = (
        Answer().head().events((50, text("a", 1)), (60, text("", 2)), (70, text("ü", 3)), (70, DONE)).end(71)
    )
    assert answer.tokens == (3, 1)
    assert answer.gaps() == [(10, 1), (10, 1)]
    hidden = Answer().head().events((50, text("", 1)), (60, text("b", 2)), (70, DONE)).end(71)
    assert hidden.ttft_ms == 50


def test_no_usage_at_all_is_remarked() -> None:
    answer = Answer().head().events((50, text("a")), (60, text("b")), (60, DONE)).end(61)
    assert answer.tokens == (2, 1)
    assert any("no usage" in note for note in answer.books.notes)


def test_several_answers_have_gaps_of_their_own() -> None:
    def one(index: int, so_far: int) -> dict[str, Any]:
        return {
            "choices": [{"index": index, "text": "x"}],
            "usage": {"prompt_tokens": 12, "completion_tokens": so_far},
        }

    answer = Answer(asked=4).head().events(
        (50, one(0, 1)), (51, one(1, 1)), (60, one(0, 2)), (71, one(1, 2)), (71, usage(12, 4)), (71, DONE)
    ).end(72)  # fmt: skip
    assert answer.tokens == (4, 1)
    assert answer.gaps() == [(10, 1), (20, 1)]


@pytest.mark.parametrize(
    ("timed", "cause", "said"),
    [
        ([(50, text("a")), (60, {"error": {"message": "EngineCore died", "code": 500}}), (60, DONE)],
         "error_event", "EngineCore died"),
        ([(60, {"object": "error", "message": "old form"}), (60, DONE)], "error_event", "old form"),
        ([(50, text("a")), (60, text("b")), (60, usage(12, 2))], "no_done", "without [DONE]"),
        ([(60, usage(12, 0)), (60, DONE)], "empty", "no output"),
        ([(5, delta(role="assistant", content="")), (60, DONE)], "empty", "no output"),
        ([(50, b'{"choices": ['), (60, DONE)], "bad_event", "truncated"),
        ([(50, b'{"choices": [{"text": "\xff\xfe"}]}'), (60, DONE)], "bad_event", ""),
        ([(50, b"not JSON"), (60, DONE)], "bad_event", ""),
        ([(50, b"[" * 100_000), (60, DONE)], "bad_event", ""),
        ([(50, b'{"choices":' + b"[" * 100_000), (60, DONE)], "bad_event", ""),
    ],
)  # fmt: skip
def test_a_200_that_is_a_failure(timed: list[tuple[float, Any]], cause: str, said: str) -> None:
    answer = Answer().head().events(*timed).end(61)
    assert (answer.outcome, dict(answer.books.causes), answer.ended) == (FAILED, {cause: 1}, 1)
    assert said in answer.books.said[cause]


@pytest.mark.parametrize("cause", ["cut", "reset", "timeout_stalled", "timeout_first_byte", "refused"])
def test_a_lost_answer_is_a_failure_of_its_own_cause(cause: Any) -> None:
    answer = Answer().head().events((50, text("a", 1)), (60, text("b", 2)))
    answer.exchange.fail(95 * MS, cause, "")
    assert (answer.outcome, dict(answer.books.causes), answer.ended) == (FAILED, {cause: 1}, 1)
    assert answer.tokens == (2, 1)
    stall = [(35, 1)] if cause.startswith("timeout") else []
    assert answer.gaps() == [(10, 1), *stall]


def test_what_is_under_way_at_the_end_is_censored() -> None:
    answer = Answer().head().events((50, text("a", 1)), (60, text("b", 2)))
    answer.exchange.look()
    assert (answer.outcome, answer.tokens, answer.ttft_ms) == (CENSORED, (2, 1), 50)
    answer.exchange.fail(90 * MS, "client_stopped", "")
    assert (answer.outcome, dict(answer.books.causes), answer.ended) == (CENSORED, {}, 1)
    assert answer.gaps() == [(10, 1)]
    assert answer.books.end_ns[0] == -1


def test_looking_costs_little_and_changes_nothing() -> None:
    """A look a second at a thousand long streams must not stop the clock of the others."""
    chunks = [(50.0 + i, text("a", i + 1)) for i in range(3_000)]
    looked, plain = Answer().head(), Answer().head()
    for i, chunk in enumerate(chunks):
        looked.events(chunk)
        plain.events(chunk)
        looked.exchange.look()
        assert looked.tokens == (i + 1, 1)
        assert looked.books.last_ns[0] == int(chunk[0] * MS)
    for answer in (looked, plain):
        answer.events((3_060, usage(12, 3_000)), (3_060, DONE)).end(3_061)
    assert looked.gaps() == plain.gaps()
    assert looked.tokens == plain.tokens == (3_000, 1)
    begun = time.process_time()
    for _ in range(10_000):
        looked.exchange.look()
    assert time.process_time() - begun < 0.1


@pytest.mark.parametrize(("status", "after"), [(503, None), (429, b"7")])
def test_refusals_are_rejections_with_their_retry_after(status: int, after: bytes | None) -> None:
    headers = [(b"content-type", b"application/json")] + ([(b"retry-after", after)] if after else [])
    answer = Answer().head(status, headers)
    answer.exchange.body(3 * MS, b'{"error":{"message":"The engine is currently busy"}}')
    answer.end(3)
    assert (answer.outcome, dict(answer.books.causes)) == (REJECTED, {f"http_{status}": 1})
    assert dict(answer.books.retry_after) == {after.decode() if after else "none": 1}
    assert answer.books.said[f"http_{status}"] == "The engine is currently busy"


@pytest.mark.parametrize(
    "name", ["error-max-tokens-too-big.txt", "error-model-404.txt", "error-bad-json.txt"]
)
def test_recorded_errors(name: str) -> None:
    head, _, body = (SHARED / "captures" / name).read_bytes().partition(b"\r\n\r\n")
    if not body:
        head, _, body = head.partition(b"\n\n")
    status = int(head.split(b" ")[1])
    answer = Answer().head(status, [])
    answer.exchange.body(3 * MS, body)
    answer.end(3)
    assert answer.outcome == FAILED
    assert answer.books.said[f"http_{status}"] == " ".join(json.loads(body)["error"]["message"].split())[:160]


def test_a_whole_answer() -> None:
    body = (SHARED / "captures" / "nonstream-chat.txt").read_bytes().partition(b"\n\n")[2]
    answer = Answer(stream=False).head(200, [(b"content-type", b"application/json")])
    answer.exchange.body(80 * MS, body.strip())
    answer.end(80)
    assert (answer.outcome, answer.ttft_ms, answer.tokens) == (OK, 80, (4, 4))
    assert answer.books.prompt_tokens[0] == 12
    assert answer.gaps() == []


@pytest.mark.parametrize(
    ("name", "tokens", "chunks"),
    [
        ("sse-chat.txt", 12, 10),
        ("sse-completions.txt", 12, 11),
        ("sse-completions-continuous-usage.txt", 4, 2),
    ],
)
def test_recorded_streams(name: str, tokens: int, chunks: int) -> None:
    answer = Answer().head()
    at = 10
    for block in (SHARED / "captures" / name).read_bytes().split(b"\n\n"):
        answer.exchange.body(at * MS, block + b"\n\n")
        at += 10
    answer.end(at)
    assert (answer.outcome, answer.tokens[0]) == (OK, tokens)
    assert sum(count for _, count in answer.gaps()) == tokens - answer.tokens[1]
    assert len(answer.books.chunk_ns) <= chunks


def test_a_recorded_engine_death() -> None:
    answer = Answer().head()
    answer.exchange.body(
        10 * MS, (SHARED / "captures" / "sigterm-abort0" / "stream.txt").read_bytes().partition(b"\n\n")[2]
    )
    answer.end(20)
    assert (answer.outcome, dict(answer.books.causes)) == (FAILED, {"error_event": 1})


@given(
    pieces=st.lists(
        st.binary(max_size=40) | st.sampled_from([b"data: ", b"\n\n", b"[DONE]", b'{"choices":[]}'])
    ),
    status=st.sampled_from([200, 200, 200, 503, 404]),
    stream=st.booleans(),
    ending=st.sampled_from(["end", "cut", "timeout_total", "client_stopped"]),
)
@settings(max_examples=300, deadline=None)
def test_whatever_comes_is_booked_once(pieces: list[bytes], status: int, stream: bool, ending: Any) -> None:
    answer = Answer(stream=stream).head(status)
    for at, piece in enumerate(pieces):
        answer.exchange.body(at * MS, piece)
        if at % 3 == 0:
            answer.exchange.look()
    if ending == "end":
        answer.end(100)
    else:
        answer.exchange.fail(100 * MS, ending, "")
    assert answer.ended == 1
    observed = answer.books.observed(0)
    assert len(observed) == 1
    assert sum(answer.books.causes.values()) == (0 if answer.outcome in (OK, CENSORED) else 1)


@given(counts=st.lists(st.integers(1, 9), min_size=1, max_size=30), told=st.booleans())
def test_tokens_add_up_to_the_usage(counts: list[int], told: bool) -> None:
    total = sum(counts)
    so_far = [sum(counts[: i + 1]) for i in range(len(counts))]
    found = chunk_tokens([0] * len(counts), so_far if told else [-1] * len(counts), total)
    assert sum(found) == total
    assert min(found) >= 1
    assert max(found) - min(found) <= 1 or found == counts


@given(chunks=st.integers(1, 50), total=st.integers(1, 50))
def test_fewer_tokens_than_chunks(chunks: int, total: int) -> None:
    found = chunk_tokens([0] * chunks, [-1] * chunks, total)
    assert sum(found) == total
    assert found[0] >= 1


chunks_of_answers = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 10**9), st.integers(-1, 9)), min_size=1, max_size=20
)


@given(chunks=chunks_of_answers)
def test_counts_and_gaps_of_answers_are_those_of_each_alone(chunks: list[tuple[int, int, int]]) -> None:
    """The short cuts for one answer whose totals grow, against the definition: chunk by chunk."""
    answers, instants, totals = (list(column) for column in zip(*chunks, strict=True))
    if min(totals) < 0:
        return
    instants.sort()
    wanted, so_far = [], dict.fromkeys(answers, 0)
    for answer, total in zip(answers, totals, strict=True):
        wanted.append(max(0, total - so_far[answer]))
        so_far[answer] = max(total, so_far[answer])
    counts = chunk_tokens(answers, totals, None)
    assert counts == wanted
    gaps = []
    for number, (answer, at_ns, count) in enumerate(zip(answers, instants, counts, strict=True)):
        earlier = [i for i in range(number) if answers[i] == answer]
        if earlier and count:
            gaps.append((at_ns - instants[earlier[-1]], count, at_ns))
    assert list(zip(*gaps_between(instants, answers, counts), strict=True)) == gaps
