"""Prompts as long as asked by the server's own count, and never the same twice."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knee.measure.client.prompts import (
    FRESH_WORDS,
    TAPE_WORDS,
    Prompts,
    Vocabulary,
    calibrate,
    plain_vocabulary,
)
from knee.measure.client.words import WORDS


class Tokenizer:
    """Words of up to `longest` letters are one token, longer ones two; `added` come on top of every text."""

    def __init__(self, longest: int, added: int) -> None:
        self.longest = longest
        self.added = added
        self.calls = 0

    def __call__(self, text: str) -> int:
        self.calls += 1
        return self.added + sum(1 if len(word) <= self.longest else 2 for word in text.split(" "))


@pytest.mark.parametrize(("longest", "added"), [(99, 0), (99, 1), (7, 1), (6, 12), (5, 27)])
def test_prompts_hold_exactly_the_asked_number_of_tokens(longest: int, added: int) -> None:
    count = Tokenizer(longest, added)
    vocabulary = calibrate(count)
    assert vocabulary.exact
    assert count.calls <= 60
    prompts = Prompts(vocabulary, entropy=1)
    for tokens in [prompts.shortest, 40, 41, 63, 64, 65, 128, 1_000, 5_000]:
        text, held = prompts.text(tokens)
        assert count(text) == held == tokens


def test_a_tokenizer_without_whole_words_is_approximated() -> None:
    """Every word is two tokens: no single-token words, so lengths come from the mean."""
    count = Tokenizer(0, 3)
    vocabulary = calibrate(count)
    assert not vocabulary.exact
    assert vocabulary.tokens_per_word == pytest.approx(2)
    prompts = Prompts(vocabulary, entropy=1)
    for tokens in (100, 1_000):
        text, held = prompts.text(tokens)
        assert abs(count(text) - tokens) <= 2
        assert abs(held - count(text)) <= 2


def test_letters_as_tokens_are_approximated() -> None:
    def count(text: str) -> int:
        return len(text)

    vocabulary = calibrate(count)
    assert not vocabulary.exact
    text, _ = Prompts(vocabulary, entropy=1).text(2_000)
    assert len(text) == pytest.approx(2_000, rel=0.05)


def opening(text: str, words: int = 16) -> str:
    return " ".join(text.split(" ")[:words])


def test_no_two_prompts_open_alike() -> None:
    """Neither in a run nor in the next run of the same load: a prefix-cache block holds 16 tokens."""
    both = [Prompts(plain_vocabulary()) for _ in range(2)]
    texts = [prompts.text(tokens)[0] for prompts in both for tokens in [16, 32, 200] * 400]
    assert len({opening(text) for text in texts}) == len(texts)


def test_entropy_makes_the_texts() -> None:
    one, other = Prompts(plain_vocabulary(), entropy=7), Prompts(plain_vocabulary(), entropy=7)
    assert [one.text(300) for _ in range(20)] == [other.text(300) for _ in range(20)]


def test_shared_segments_are_equal_text_and_the_rest_is_fresh() -> None:
    prompts = Prompts(plain_vocabulary(), entropy=7)
    shared = ((5, 40), (9, 30))
    one, other = prompts.text(200, shared)[0], prompts.text(150, shared)[0]
    assert opening(one, 70) == opening(other, 70)  # both segments; the opening word is part of the first
    assert opening(one, 86) != opening(other, 86)
    assert opening(prompts.text(200, ((5, 40), (8, 30)))[0], 40) == opening(one, 40)
    assert (len(one.split(" ")), len(other.split(" "))) == (200, 150)
    assert opening(Prompts(plain_vocabulary()).text(200, shared)[0]) != opening(one)  # fresh in another run


@given(tokens=st.integers(1, 3_000), added=st.integers(0, 50))
@settings(max_examples=100, deadline=None)
def test_any_length(tokens: int, added: int) -> None:
    text, held = PROMPTS[added].text(tokens)
    assert held == max(tokens, added + 1)
    assert len(text.split(" ")) == held - added
    assert re.fullmatch(r"[a-z]+( [a-z]+)*", text)  # nothing that JSON would escape


PROMPTS = [Prompts(Vocabulary(words=WORDS, added=added), entropy=added) for added in range(51)]


def test_the_tape_may_be_shorter_than_the_prompt() -> None:
    tokens = TAPE_WORDS * 2 + 17
    text, held = Prompts(plain_vocabulary(), entropy=1).text(tokens)
    assert held == tokens == len(text.split(" "))
    assert FRESH_WORDS >= 16


def test_words_are_distinct_and_plain() -> None:
    assert len(set(WORDS)) == len(WORDS) > 300
    assert all(re.fullmatch(r"[a-z]+", word) for word in WORDS)
