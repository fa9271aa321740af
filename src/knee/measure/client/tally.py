"""What one streamed answer has said: the chunks with output, when they came, and the server's own counts."""

from itertools import pairwise
from typing import ClassVar

import msgspec

from knee.http1.sse import SseError, SseParser
from knee.measure.client.events import Event, Usage, decode_event


class Tally:
    """Reads the pieces of a stream. `instants`, `answers` and `totals` have an entry per chunk with output.

    `totals` are the tokens of that answer by then, -1 where the server does not say. `error` is the cause
    and the words of the first thing that was wrong.
    """

    __slots__ = ("_latest", "_parser", "answers", "done", "error", "instants", "totals", "usage")
    last_word: ClassVar[str] = "[DONE]"
    """What ends a whole stream."""

    def __init__(self) -> None:
        self._parser = SseParser()
        self._latest: dict[int, int] = {}
        self.instants: list[int] = []
        self.answers: list[int] = []
        self.totals: list[int] = []
        self.usage: Usage | None = None
        self.error: tuple[str, str] | None = None
        self.done = False

    @staticmethod
    def whole(body: bytes) -> Event:
        """An answer that was not streamed.

        Raises:
            msgspec.MsgspecError, RecursionError: it is none.
        """
        return decode_event(body)

    @property
    def told(self) -> int:
        """The tokens of all answers so far, as the server says; 0 where it says nothing."""
        return sum(self._latest.values())

    def read(self, stamps: list[int], pieces: list[bytes], last: bool = False) -> None:
        """Read on; `stamps` are the instants at which `pieces` came. With `last`, nothing more will come."""
        times_ns, texts, too_large = self._events(stamps, pieces, last)
        try:
            self._take(times_ns, texts)
        except (msgspec.MsgspecError, RecursionError) as error:
            self._fault("bad_event", str(error))
        if too_large:
            self._fault("too_large", too_large)

    def _events(
        self, stamps: list[int], pieces: list[bytes], last: bool
    ) -> tuple[list[int], list[bytes], str]:
        """The events that `pieces` complete, when they came, and what was wrong with what followed."""
        plain = self._parser.feed_plain(pieces)
        if plain is not None:
            return stamps, plain, ""
        times_ns, texts = list[int](), list[bytes]()
        try:
            for at_ns, piece in zip(stamps, pieces, strict=True):
                found = self._parser.feed(piece)
                texts += found
                times_ns += [at_ns] * len(found)
        except SseError as error:
            return times_ns, texts, str(error)
        if last:
            found = self._parser.flush()
            texts += found
            times_ns += [stamps[-1] if stamps else 0] * len(found)
        return times_ns, texts, ""

    def _take(self, times_ns: list[int], texts: list[bytes]) -> None:
        """Note what events say; some 80,000 a second in one process, so nothing is called without need."""
        latest = self._latest
        for at_ns, text in zip(times_ns, texts, strict=True):
            if text == b"[DONE]":
                self.done = True
                continue
            event = decode_event(text)
            if event.error is not None or event.object == "error":
                self._fault("error_event", event.failure() or "")
            usage, total = event.usage, -1
            if usage is not None:
                self.usage = usage
                if usage.completion_tokens is not None:
                    total = usage.completion_tokens
            for choice in event.choices:
                answer = choice.index
                if choice.text or choice.speaks() or total > latest.get(answer, 0):
                    self.instants.append(at_ns)
                    self.answers.append(answer)
                    self.totals.append(total)
                    latest[answer] = max(total, 0)

    def _fault(self, cause: str, said: str) -> None:
        if not self.error:
            self.error = (cause, " ".join(said.split())[:160])


def chunk_tokens(answers: list[int], totals: list[int], usage: int | None) -> list[int]:
    """How many tokens each chunk with output carried, of columns as `Tally` has them.

    Where the server says it (`continuous_usage_stats`), that is the truth. Where it does not, the final
    `usage` is the truth and is spread evenly over the chunks, as nothing says where the tokens were; without
    either, a chunk is a token.
    """
    n = len(totals)
    if min(totals) < 0:
        if not usage or usage == n:
            return [1] * n
        by = [-(-i * usage // n) for i in range(n + 1)]  # rounded up: the first chunk carries a token
        return [later - earlier for earlier, later in pairwise(by)]
    if max(answers) == min(answers) and sorted(totals) == totals:
        return [totals[0], *(later - earlier for earlier, later in pairwise(totals))]
    counts, so_far = [], dict[int, int]()
    for answer, total in zip(answers, totals, strict=True):
        before = so_far.get(answer, 0)
        counts.append(max(0, total - before))
        so_far[answer] = max(total, before)
    return counts


def gaps_between(
    instants: list[int], answers: list[int], counts: list[int]
) -> tuple[list[int], list[int], list[int]]:
    """The gaps before chunks with tokens, each to the same answer's last: lengths, tokens, and their ends."""
    if max(answers) == min(answers) and min(counts) > 0:
        return [later - earlier for earlier, later in pairwise(instants)], counts[1:], instants[1:]
    gap_ns, tokens, ends_ns, latest = list[int](), list[int](), list[int](), dict[int, int]()
    for answer, at_ns, count in zip(answers, instants, counts, strict=True):
        before = latest.get(answer)
        latest[answer] = at_ns
        if before is not None and count:
            gap_ns.append(at_ns - before)
            tokens.append(count)
            ends_ns.append(at_ns)
    return gap_ns, tokens, ends_ns
