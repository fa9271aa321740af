"""What the simulated model says: a run of common words, one token each, fixed by seed and prompt."""

import random
import zlib

import msgspec

WORDS = """
the of and to in is it was for on are as with his they at be this from have or by one had not but what all
were when we there can an your which their said if do will each about how up out them then she many some so
these would other into has more her two like him see time could no make than first been its who now people
my made over did down only way find use may water long little very after words called just
"""
POOL = 1 << 16


class Voice:
    """A long text of one-token words, of which every answer is a stretch."""

    def __init__(self, seed: int) -> None:
        drawn = random.Random(seed).choices([" " + word for word in WORDS.split()], k=POOL)
        self._words = drawn

    def start(self, prompt: str, seed: int | None, index: int) -> int:
        """Where the answer number `index` to `prompt` begins: the same prompt and seed, the same answer."""
        basis = zlib.crc32(prompt.encode("utf-8", "replace"), (seed or 0) & 0xFFFFFFFF)
        return (basis + 7_919 * index) % POOL

    def say(self, start: int, begin: int, end: int) -> str:
        """The tokens `begin` to `end` (excluded) of the answer that starts at `start`, as text."""
        at = (start + begin) % POOL
        if at + end - begin <= POOL:
            return "".join(self._words[at : at + end - begin])
        return "".join(self._words[(start + number) % POOL] for number in range(begin, end))


class Answer(msgspec.Struct, frozen=True):
    """How an answer will go: known when it begins, as the simulated model is not a surprise to itself.

    `visible` is how many characters are shown, None for all; a stop string cuts it.
    """

    start: int
    tokens: int
    finish_reason: str
    stop_reason: str | None = None
    visible: int | None = None


def plan_answer(voice: Voice, start: int, limit: int, eos_after: int, stop: tuple[str, ...] = ()) -> Answer:
    """An answer of at most `limit` tokens; it may end by itself before.

    It does after `eos_after` tokens (0 is never), or at a string of `stop`, which is not visible itself. Of
    two that begin at the same place, the shorter one counts.
    """
    tokens, reason = (eos_after, "stop") if 0 < eos_after < limit else (limit, "length")
    text = voice.say(start, 0, tokens) if stop else ""
    found = [(at, len(word), word) for word in stop if (at := text.find(word)) >= 0]
    if not found:
        return Answer(start, tokens, reason)
    at, length, word = min(found)
    needed, said = 0, 0
    while said < at + length:
        said += len(voice.say(start, needed, needed + 1))
        needed += 1
    return Answer(start, needed, "stop", word, at)
