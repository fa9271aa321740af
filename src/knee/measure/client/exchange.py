"""One request, from the send to its entry in the books."""

from collections.abc import Callable

import msgspec

from knee.core.requests import CENSORED, FAILED, OK, REJECTED
from knee.http1.failure import Cause
from knee.http1.outbound import Headers
from knee.measure.client.books import Books
from knee.measure.client.events import Usage, words_of
from knee.measure.client.tally import Tally, chunk_tokens, gaps_between

REFUSALS = (429, 503)
"""Statuses by which a server refuses work it has no room for (vLLM's admission limits answer 503)."""
FOLD_BYTES = 32 * 1024
"""What is kept of a stream before it is read: reading in lumps keeps the instants of other streams exact."""

Ended = Callable[["StreamExchange"], None]


class StreamExchange:
    """Listens to one answer and enters it in the books under `index`; `ended` hears of it last.

    The pieces are only stamped as they come. Tokens are counted when the answer ends, or FOLD_BYTES have
    gathered, or someone looks.
    """

    __slots__ = (
        "_books", "_counted", "_ended", "_held", "_origin_ns", "_pieces", "_retry_after", "_stamps",
        "_status", "_stream", "_tally", "cause", "gap_ns", "gap_tokens", "index",
    )  # fmt: skip

    def __init__(
        self,
        books: Books,
        index: int,
        origin_ns: int,
        stream: bool,
        ended: Ended,
        *,
        tally: type[Tally] = Tally,
    ) -> None:
        self._books = books
        self._origin_ns = origin_ns
        self._stream = stream
        self._ended = ended
        self._status = 0
        self._retry_after = ""
        self._stamps: list[int] = []
        self._pieces: list[bytes] = []
        self._held = 0
        self._tally = tally()
        self._counted = False
        self.index = index
        self.cause = ""
        self.gap_ns: list[int] = []
        self.gap_tokens: list[int] = []
        """Of each chunk with output after the first, once the answer is over."""

    # What the connection calls.

    def sent(self, now_ns: int) -> None:
        """The request is on its way (the first time: a second send follows a stale connection)."""
        if self._books.sent_ns[self.index] < 0:
            self._books.sent_ns[self.index] = now_ns - self._origin_ns

    def head(self, now_ns: int, status: int, headers: Headers) -> None:  # noqa: ARG002 - the body's instants count
        """Status and headers have come."""
        self._status = status
        kind = b""
        for name, value in headers:
            if name == b"retry-after":
                self._retry_after = value.decode("latin-1")[:40]
            elif name == b"content-type":
                kind = value
        if status == 200 and self._stream and not kind.startswith(b"text/event-stream"):
            self._stream = False
            self._books.notes["answered whole where a stream was asked for"] += 1

    def body(self, now_ns: int, data: bytes) -> None:
        """A piece of the answer has come."""
        self._stamps.append(now_ns)
        self._pieces.append(data)
        self._held += len(data)
        if self._held > FOLD_BYTES and self._stream and self._status == 200:
            self._fold()

    def end(self, now_ns: int) -> None:
        """The answer is over."""
        if self._status != 200:
            said = words_of(b"".join(self._pieces))
            if self._status in REFUSALS:
                self._books.retry_after[self._retry_after or "none"] += 1
                self._close(now_ns, REJECTED, f"http_{self._status}", said)
            else:
                self._close(now_ns, FAILED, f"http_{self._status}", said)
            return
        if not self._stream:
            self._whole(now_ns)
            return
        self._fold(last=True)
        tally = self._tally
        if tally.error:
            self._close(now_ns, FAILED, *tally.error)
        elif not tally.done:
            self._close(now_ns, FAILED, "no_done", f"the stream ended without {tally.last_word}")
        elif not tally.instants:
            self._close(now_ns, FAILED, "empty", "the stream held no output")
        else:
            self._close(now_ns, OK)

    def fail(self, now_ns: int, cause: Cause, detail: str) -> None:
        """There will be no whole answer."""
        if self._stream and self._status == 200:
            self._fold()
        if cause == "client_stopped":
            self._close(now_ns, CENSORED)
            return
        instants = self._tally.instants
        if cause.startswith("timeout") and instants:  # a stall is a gap, even if no token ended it
            self._books.gaps([now_ns - instants[-1]], [1], [now_ns - self._origin_ns])
        self._close(now_ns, FAILED, cause, detail)

    # What the books need.

    def look(self) -> None:
        """Bring the books up to what has come so far, at little cost however long the stream is.

        The first token is exact. Pieces that came after the last reading count as a token each until then.
        """
        if not self._stream or self._status != 200 or self._counted:
            return
        tally = self._tally
        if not tally.instants:
            self._fold()
        if not tally.instants:
            return
        books, index, stamps = self._books, self.index, self._stamps
        told = tally.told if tally.totals[0] >= 0 else 0
        books.first_ns[index] = tally.instants[0] - self._origin_ns
        books.first_tokens[index] = max(1, tally.totals[0])
        books.last_ns[index] = (stamps[-1] if stamps else tally.instants[-1]) - self._origin_ns
        books.output_tokens[index] = (told or len(tally.instants)) + len(stamps)

    def _fold(self, last: bool = False) -> None:
        """Read the pieces that have gathered."""
        stamps, pieces = self._stamps, self._pieces
        self._stamps, self._pieces, self._held = [], [], 0
        self._tally.read(stamps, pieces, last)

    def _whole(self, now_ns: int) -> None:
        """The answer came in one piece: its first token is seen when its last one is."""
        try:
            event = self._tally.whole(b"".join(self._pieces))
        except (msgspec.MsgspecError, RecursionError) as error:
            self._close(now_ns, FAILED, "bad_answer", " ".join(str(error).split())[:160])
            return
        failure = event.failure()
        if failure is not None:
            self._close(now_ns, FAILED, "error_event", failure[:160])
            return
        tally, usage = self._tally, event.usage
        tokens = (usage.completion_tokens or 0) if usage else 0
        if not tokens and not any(choice.speaks() for choice in event.choices):
            self._close(now_ns, FAILED, "empty", "the answer held no output")
            return
        tally.usage = usage
        tally.instants, tally.answers, tally.totals = [now_ns], [0], [tokens if usage else -1]
        self._close(now_ns, OK)

    def _close(self, now_ns: int, outcome: int, cause: str = "", said: str = "") -> None:
        books, index = self._books, self.index
        if not self._counted:
            self._enter_tokens()
        self._counted = True
        books.outcome[index] = outcome
        if outcome != CENSORED:
            books.end_ns[index] = now_ns - self._origin_ns
        self.cause = cause
        if cause:
            books.cause(cause, said)
        self._stamps, self._pieces = [], []
        self._ended(self)

    def _enter_tokens(self) -> None:
        """Enter what came, when no more will."""
        books, index, origin, tally = self._books, self.index, self._origin_ns, self._tally
        usage, instants = tally.usage, tally.instants
        if usage is not None:
            self._enter_usage(usage)
        if not instants:
            return
        if usage is None and tally.done:
            books.notes["no usage: tokens counted as chunks"] += 1
        said = (usage.completion_tokens or 0) if usage else None
        counts = chunk_tokens(tally.answers, tally.totals, said)
        books.first_ns[index] = instants[0] - origin
        books.last_ns[index] = instants[-1] - origin
        books.first_tokens[index] = counts[0]
        books.output_tokens[index] = max(sum(counts), said or 0)
        self.gap_ns, self.gap_tokens, ends_ns = gaps_between(instants, tally.answers, counts)
        books.gaps(self.gap_ns, self.gap_tokens, [at_ns - origin for at_ns in ends_ns])

    def _enter_usage(self, usage: Usage) -> None:
        """Enter the prompt's length, and how much of it the server had cached."""
        books, index = self._books, self.index
        if usage.prompt_tokens_details is not None:
            books.cached_tokens += usage.prompt_tokens_details.cached_tokens or 0
        if usage.prompt_tokens:
            books.checked_prompt_tokens += books.prompt_tokens[index]
            books.off_prompt_tokens += abs(usage.prompt_tokens - books.prompt_tokens[index])
            books.prompt_tokens[index] = usage.prompt_tokens
