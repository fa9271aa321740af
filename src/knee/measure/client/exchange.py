"""One request, from the send to its entry in the books."""

from collections.abc import Callable
from itertools import pairwise

import msgspec

from knee.core.requests import CENSORED, FAILED, OK, REJECTED
from knee.http1.failure import Cause
from knee.http1.outbound import Headers
from knee.http1.sse import SseError, SseParser
from knee.measure.client.books import Books
from knee.measure.client.events import Usage, decode_event, words_of

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
        "_answers", "_at", "_books", "_counted", "_done", "_ended", "_error", "_held", "_origin_ns",
        "_parser", "_pieces", "_retry_after", "_stamps", "_status", "_stream", "_usage",
        "cause", "gaps", "index",
    )  # fmt: skip

    def __init__(self, books: Books, index: int, origin_ns: int, stream: bool, ended: Ended) -> None:
        self._books = books
        self._origin_ns = origin_ns
        self._stream = stream
        self._ended = ended
        self._status = 0
        self._retry_after = ""
        self._stamps: list[int] = []
        self._pieces: list[bytes] = []
        self._held = 0
        self._parser = SseParser()
        self._at: list[tuple[int, int, int]] = []
        """(answer, instant, total tokens of that answer by then or -1) of every chunk with output."""
        self._answers: dict[int, int] = {}
        self._counted = False
        self._usage: tuple[int, int, int] | None = None
        self._error: tuple[str, str] | None = None
        self._done = False
        self.index = index
        self.cause = ""
        self.gaps: list[tuple[int, int]] = []
        """(ns, tokens) of each chunk with output after the first, once the answer is over."""

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
        if self._error:
            self._close(now_ns, FAILED, *self._error)
        elif not self._done:
            self._close(now_ns, FAILED, "no_done", "the stream ended without [DONE]")
        elif not self._at:
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
        if cause.startswith("timeout") and self._at:  # a stall is a gap, even if no token ended it
            chunk_ns = now_ns - self._at[-1][1]
            self._books.gap(chunk_ns, 1, now_ns - self._origin_ns)
        self._close(now_ns, FAILED, cause, detail)

    # What the books need.

    def look(self) -> None:
        """Bring the books up to what has come so far, at little cost however long the stream is.

        The first token is exact. Pieces that came after the last reading count as a token each until then.
        """
        if not self._stream or self._status != 200 or self._counted:
            return
        if not self._at:
            self._fold()
        if not self._at:
            return
        books, index = self._books, self.index
        told = sum(self._answers.values())
        counted = told if self._at[0][2] >= 0 and told else len(self._at)
        books.first_ns[index] = self._at[0][1] - self._origin_ns
        books.first_tokens[index] = max(1, self._at[0][2])
        books.last_ns[index] = (self._stamps[-1] if self._stamps else self._at[-1][1]) - self._origin_ns
        books.output_tokens[index] = counted + len(self._pieces)

    def _fold(self, last: bool = False) -> None:
        """Read the pieces that have gathered."""
        stamps, pieces = self._stamps, self._pieces
        self._stamps, self._pieces, self._held = [], [], 0
        at_ns = stamps[-1] if stamps else 0
        feed, read = self._parser.feed, self._read
        try:
            for at_ns, piece in zip(stamps, pieces, strict=True):
                for data in feed(piece):
                    read(at_ns, data)
            if last:
                for data in self._parser.flush():
                    self._read(at_ns, data)
        except (msgspec.MsgspecError, RecursionError) as error:
            self._fault("bad_event", str(error))
        except SseError as error:
            self._fault("too_large", str(error))

    def _fault(self, cause: str, said: str) -> None:
        if not self._error:
            self._error = (cause, " ".join(said.split())[:160])

    def _read(self, at_ns: int, data: bytes) -> None:
        if data == b"[DONE]":
            self._done = True
            return
        event = decode_event(data)
        if event.error is not None or event.object == "error":
            self._fault("error_event", event.failure() or "")
        usage = event.usage
        total = -1 if usage is None or usage.completion_tokens is None else usage.completion_tokens
        for choice in event.choices:
            if choice.speaks() or total > self._answers.get(choice.index, 0):
                self._at.append((choice.index, at_ns, total))
                self._answers[choice.index] = max(total, 0)
        if usage is not None:
            self._take_usage(usage)

    def _take_usage(self, usage: Usage) -> None:
        details = usage.prompt_tokens_details
        cached = (details.cached_tokens or 0) if details else 0
        self._usage = (usage.prompt_tokens, usage.completion_tokens or 0, cached)

    def _whole(self, now_ns: int) -> None:
        """The answer came in one piece: its first token is seen when its last one is."""
        try:
            event = decode_event(b"".join(self._pieces))
        except (msgspec.MsgspecError, RecursionError) as error:
            self._close(now_ns, FAILED, "bad_answer", " ".join(str(error).split())[:160])
            return
        failure = event.failure()
        if failure is not None:
            self._close(now_ns, FAILED, "error_event", failure[:160])
            return
        if event.usage is not None:
            self._take_usage(event.usage)
        if not any(choice.speaks() for choice in event.choices) and not (self._usage and self._usage[1]):
            self._close(now_ns, FAILED, "empty", "the answer held no output")
            return
        self._at = [(0, now_ns, self._usage[1] if self._usage else -1)]
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
        books, index, origin = self._books, self.index, self._origin_ns
        usage = self._usage
        if usage is not None:
            books.cached_tokens += usage[2]
        if usage is not None and usage[0]:
            books.checked_prompt_tokens += books.prompt_tokens[index]
            books.off_prompt_tokens += abs(usage[0] - books.prompt_tokens[index])
            books.prompt_tokens[index] = usage[0]
        if not self._at:
            return
        if usage is None and self._done:
            books.notes["no usage: tokens counted as chunks"] += 1
        counts = chunk_tokens(self._at, usage[1] if usage else None)
        books.first_ns[index] = self._at[0][1] - origin
        books.last_ns[index] = self._at[-1][1] - origin
        books.first_tokens[index] = counts[0]
        books.output_tokens[index] = max(sum(counts), usage[1] if usage else 0)
        latest: dict[int, int] = {}
        for (answer, at_ns, _), tokens in zip(self._at, counts, strict=True):
            before = latest.get(answer)
            latest[answer] = at_ns
            if before is not None and tokens:
                self.gaps.append((at_ns - before, tokens))
                books.gap(at_ns - before, tokens, at_ns - origin)


def chunk_tokens(chunks: list[tuple[int, int, int]], total: int | None) -> list[int]:
    """How many tokens each chunk with output carried.

    `chunks` are (answer, instant, tokens of that answer by then, or -1 where the server does not say).
    Where it says (`continuous_usage_stats`), that is the truth. Where it does not, the final usage, `total`,
    is the truth and is spread evenly over the chunks, as nothing says where the tokens were; without either,
    a chunk is a token.
    """
    if all(known >= 0 for _, _, known in chunks):
        counts, so_far = [], dict[int, int]()
        for answer, _, known in chunks:
            counts.append(max(0, known - so_far.get(answer, 0)))
            so_far[answer] = max(known, so_far.get(answer, 0))
        return counts
    n = len(chunks)
    if not total or total == n:
        return [1] * n
    by = [-(-i * total // n) for i in range(n + 1)]  # rounded up: the first chunk carries a token
    return [later - earlier for earlier, later in pairwise(by)]
