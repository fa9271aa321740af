"""Prompts that hold the asked number of tokens, and that no server has seen before.

A prompt is a run of words that the server's tokenizer knows as one token each, so its length is the number
of words plus what the server adds (a start token, a chat template). Which words these are, and how much is
added, is learned from the server (`calibrate`). Every prompt opens with words drawn afresh from the
operating system's entropy, never from the seed: the same load again must not meet its own prefix cache.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np
from numpy.random import Generator, SeedSequence, default_rng

from knee.measure.client.words import WORDS

Count = Callable[[str], int]
"""How many tokens the server counts in a text sent as a prompt, all that it adds included."""

LEAST_WORDS = 32
"""Fewer single-token words than this do not make prompts that differ from the first block on."""
FRESH_WORDS = 32
"""Words at the start of what is fresh in a prompt that are drawn for it alone (a prefix-cache block holds 16
tokens by default); the rest is cut from a tape drawn once a run."""
TAPE_WORDS = 200_000
GROUP = 32


class Vocabulary(msgspec.Struct, frozen=True, kw_only=True):
    """What makes a prompt of a known length: `words` of `tokens_per_word` each, plus `added` tokens."""

    words: tuple[str, ...]
    added: int = 0
    tokens_per_word: float = 1.0
    exact: bool = True


def plain_vocabulary() -> Vocabulary:
    """Every word as one token and nothing added: right for a simulated server, a guess for others."""
    return Vocabulary(words=WORDS, exact=False)


def calibrate(count: Count, words: Sequence[str] = WORDS) -> Vocabulary:
    """The words that the server counts as one token each in the middle of a text, and what it adds to them.

    Asks `count` some 15 to 60 times, never for more than about 200 words. Where too few words are single
    tokens, all are used at their mean length, and lengths are then approximate (`exact` is False).
    """
    words = tuple(dict.fromkeys(words))
    opening, rest = words[0], words[1:]
    base = count(opening)
    good: list[str] = []
    budget = 48
    groups = [rest[i : i + GROUP] for i in range(0, len(rest), GROUP)]
    while groups and budget:
        group = groups.pop(0)
        budget -= 1
        if count(" ".join([opening, *group])) == base + len(group):
            good += group
        elif len(group) > 1:
            middle = len(group) // 2
            groups += [group[:middle], group[middle:]]
    if len(good) >= LEAST_WORDS:
        known = Vocabulary(words=(opening, *good), added=base - 1)
        trial = _mixed(good, 150)
        if count(" ".join([opening, *trial])) == base + len(trial):
            return known
    few, many = _mixed(rest, 50), _mixed(rest, 150)
    low, high = count(" ".join([opening, *few])), count(" ".join([opening, *many]))
    per_word = max(0.1, (high - low) / (len(many) - len(few)))
    added = round(low - per_word * (len(few) + 1))
    return Vocabulary(words=words, added=added, tokens_per_word=per_word, exact=False)


def _mixed(words: Sequence[str], n: int) -> list[str]:
    order = default_rng(1).integers(0, len(words), n)
    return [words[i] for i in order.tolist()]


class Prompts:
    """Texts of given token lengths, none opening like another (unless told to share).

    `entropy` makes the texts: leave it out for prompts that were never sent before; tests give it.
    `shared_entropy` makes the shared segments, for workers that must share them.
    """

    def __init__(
        self, vocabulary: Vocabulary, entropy: int | None = None, shared_entropy: int | None = None
    ) -> None:
        self._vocabulary = vocabulary
        self._words = vocabulary.words
        self._root = SeedSequence(entropy)
        self._shared_root = self._root if shared_entropy is None else SeedSequence(shared_entropy)
        self._generator = default_rng(self._root)
        self._fresh: list[int] = []
        self._tape = _Tape(self._words, self._generator)
        self._segments: dict[tuple[int, int], str] = {}

    @property
    def shortest(self) -> int:
        """The fewest tokens a prompt can hold."""
        return max(1, self._vocabulary.added + 1)

    def text(self, tokens: int, shared: Iterable[tuple[int, int]] = ()) -> tuple[str, int]:
        """A prompt that the server counts as `tokens` tokens, and how many it does hold.

        `shared` are the segments `(id, tokens)` it opens with: equal leading segments are equal text. What
        the server adds, and the word that every prompt opens with, are taken from the first of them. Where
        they alone are longer than `tokens`, the prompt is as long as they are.
        """
        per_word = self._vocabulary.tokens_per_word
        left = max(1, round((tokens - self._vocabulary.added) / per_word))
        parts = [self._words[0]]  # the word that calibration opened with
        held = 1
        overhead = self._vocabulary.added + per_word
        for segment, length in shared:
            words = round((length - overhead) / per_word)
            overhead = max(0.0, overhead - length)
            if words > 0:
                parts.append(self._segment(segment, words))
                held += words
        left -= held
        if left > 0:
            fresh = min(left, FRESH_WORDS)
            parts += self._draw(fresh)
            if left > fresh:
                parts.append(self._tape.cut(left - fresh))
            held += left
        return " ".join(parts), round(held * per_word) + self._vocabulary.added

    def _draw(self, n: int) -> list[str]:
        if len(self._fresh) < n:
            self._fresh = self._generator.integers(1, len(self._words), 8_192).tolist()
        words = self._words
        drawn = [words[i] for i in self._fresh[-n:]]
        del self._fresh[-n:]
        return drawn

    def _segment(self, segment: int, words: int) -> str:
        text = self._segments.get((segment, words))
        if text is None:
            drawn = default_rng([*self._shared_root.generate_state(4).tolist(), segment]).integers(
                1, len(self._words), words
            )
            text = " ".join([self._words[i] for i in drawn.tolist()])
            if len(self._segments) >= 20_000:
                self._segments.pop(next(iter(self._segments)))
            self._segments[segment, words] = text
        return text


class _Tape:
    """A long run of random words, of which any number can be cut out at little cost."""

    def __init__(self, words: Sequence[str], generator: Generator) -> None:
        drawn = generator.integers(1, len(words), TAPE_WORDS)
        lengths = np.array([len(word) for word in words])[drawn] + 1
        self._starts = np.concatenate([[0], np.cumsum(lengths)]).tolist()
        self._text = " ".join([words[i] for i in drawn.tolist()])
        self._generator = generator
        self._at = int(generator.integers(0, TAPE_WORDS))

    def cut(self, n: int) -> str:
        """The next `n` words."""
        pieces = []
        while n > 0:
            take = min(n, TAPE_WORDS - self._at)
            start, end = self._starts[self._at], self._starts[self._at + take]
            pieces.append(self._text[start : end - 1])
            self._at = (self._at + take + 7_919) % TAPE_WORDS  # a prime step: no two laps cut alike
            n -= take
        return " ".join(pieces)
