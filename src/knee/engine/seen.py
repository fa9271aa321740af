"""What the requests of one point saw, in columns that grow."""

from array import array
from collections.abc import Iterable

import numpy as np

from knee.core.requests import CENSORED, FAILED, NEVER, OK, REJECTED, Gaps, Ints, Observed
from knee.engine.request import Request

QUEUE_LIMITS = frozenset({"max_num_queued_reqs", "max_num_queued_tokens"})


class Seen:
    """The books of one point; instants come in on the engine's clock and go out from the start of the point.

    A request's number must be its place in the order in which it was offered.
    """

    def __init__(self, start_ns: int, counted_ns: tuple[int, int]) -> None:
        """`open` counts the requests due within `counted_ns` (from the start of the point) that go on."""
        self._start_ns = start_ns
        self._counted_ns = counted_ns
        self.open = 0
        self._due = array("q")
        self._first = array("q")
        self._last = array("q")
        self._end = array("q")
        self._prompt = array("q")
        self._asked = array("q")
        self._made = array("q")
        self._outcome = array("b")
        self._gaps: list[Ints] = [np.zeros((0, 3), dtype=np.int64)]
        self.causes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._due)

    def offered(self, request: Request) -> None:
        """A request was sent; nothing has become of it yet."""
        assert request.id == len(self._due), "requests are numbered in the order in which they are offered"
        due_ns = request.arrival_ns - self._start_ns
        self._due.append(due_ns)
        self.open += self._counted_ns[0] <= due_ns < self._counted_ns[1]
        self._prompt.append(request.prompt_tokens)
        self._asked.append(request.output_tokens)
        for column in (self._first, self._last, self._end):
            column.append(NEVER)
        self._made.append(0)
        self._outcome.append(CENSORED)

    def refused(self, request: Request, reason: str, now_ns: int) -> None:
        """A request was not taken: by a queue limit (rejected), or because it can never run (failed)."""
        self._close(int(request.id), REJECTED if reason in QUEUE_LIMITS else FAILED, now_ns)
        self.causes[reason] = self.causes.get(reason, 0) + 1

    def ended(self, request: Request) -> None:
        """A request got all its tokens."""
        number = int(request.id)
        self._close(number, OK, request.last_ns)
        self._first[number] = request.first_ns - self._start_ns
        self._last[number] = request.last_ns - self._start_ns
        self._made[number] = request.output_tokens

    def gap(self, gaps: Ints) -> None:
        """Gaps between tokens in order of their ends: a row (ns, between how many pairs, when) for each."""
        self._gaps.append(gaps - (0, 0, self._start_ns))

    def observed(self, unfinished: Iterable[tuple[Request, int, int, int]], now_ns: int) -> Observed:
        """All there is to see at `now_ns`.

        `unfinished` are requests with some of their tokens: when the first came, how many, when the last.
        """
        first, last, made = _column(self._first), _column(self._last), _column(self._made)
        for request, first_ns, tokens, last_ns in unfinished:
            number = int(request.id)
            first[number] = first_ns - self._start_ns
            last[number] = last_ns - self._start_ns
            made[number] = tokens
        due = _column(self._due)
        self._gaps = [np.concatenate(self._gaps)]
        ns, count, at = self._gaps[0].T
        return Observed(
            due_ns=due,
            sent_ns=due.copy(),
            first_ns=first,
            last_ns=last,
            end_ns=_column(self._end),
            outcome=np.frombuffer(self._outcome, dtype=np.int8).copy(),
            prompt_tokens=_column(self._prompt),
            asked_tokens=_column(self._asked),
            output_tokens=made,
            first_tokens=(first != NEVER).astype(np.int64),
            gaps=Gaps(ns=ns, count=count, at_ns=at),
            end_of_load_ns=now_ns - self._start_ns,
            causes=dict(self.causes),
        )

    def _close(self, number: int, outcome: int, now_ns: int) -> None:
        self._outcome[number] = outcome
        self._end[number] = now_ns - self._start_ns
        self.open -= self._counted_ns[0] <= self._due[number] < self._counted_ns[1]


def _column(values: "array[int]") -> Ints:
    return np.frombuffer(values, dtype=np.int64).copy() if values else np.zeros(0, dtype=np.int64)
