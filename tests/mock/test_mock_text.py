"""The simulated model's tokenizer and voice."""

from collections.abc import Sequence
from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from knee.mock.text import POOL, Voice, plan_answer
from knee.mock.tokens import pieces, shared_segments, text_of, token_ids

VOICE = Voice(0)


@given(st.text())
def test_text_to_tokens_and_back(text: str) -> None:
    assert "".join(pieces(text)) == text
    assert text_of(token_ids(text)) == text
    assert len(token_ids(text)) == len(pieces(text))


@given(st.lists(st.integers(-10, 2**70)))
def test_any_number_is_some_text(ids: list[int]) -> None:
    assert isinstance(text_of(ids), str)


@given(st.integers(0, POOL - 1), st.integers(0, 300), st.integers(0, 300))
def test_every_token_that_is_said_counts_as_one(start: int, begin: int, length: int) -> None:
    text = VOICE.say(start, begin, begin + length)
    assert len(pieces(text)) == length
    assert VOICE.say(start, 0, begin) + text == VOICE.say(start, 0, begin + length)


def test_an_answer_longer_than_the_pool_goes_on() -> None:
    assert len(pieces(VOICE.say(5, 0, POOL + 10))) == POOL + 10


@given(
    st.integers(0, POOL - 1),
    st.integers(1, 200),
    st.integers(0, 60),
    st.lists(st.sampled_from(["the", "and", "e", "of", " to be"]), max_size=3),
)
def test_plans(start: int, limit: int, eos_after: int, stop: list[str]) -> None:
    stops = tuple(stop)
    answer = plan_answer(VOICE, start, limit, eos_after, stops)
    assert 1 <= answer.tokens <= limit
    said = VOICE.say(start, 0, answer.tokens)
    if answer.stop_reason is not None:
        assert answer.stop_reason in stops
        assert answer.visible == said.find(answer.stop_reason) >= 0
        visible = said[: answer.visible]
    else:
        visible = said
        assert answer.finish_reason == ("stop" if 0 < eos_after < limit else "length")
    assert not any(word in visible for word in stops)


@given(st.lists(st.integers(0, 3), max_size=60), st.lists(st.integers(0, 3), max_size=60), st.integers(1, 8))
def test_segments_are_equal_as_far_as_whole_blocks_are(one: list[int], other: list[int], size: int) -> None:
    ours, theirs = shared_segments(one, size), shared_segments(other, size)
    equal, same = _common(one, other), _common(ours, theirs)
    assert same == equal // size
    assert all(tokens == size for _, tokens in ours)
    assert not set(ours) & set(shared_segments(one, size, "salt"))


def _common(one: Sequence[object], other: Sequence[object]) -> int:
    """How many leading items are equal."""
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))
