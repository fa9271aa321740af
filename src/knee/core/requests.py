"""What is offered and what was seen: columns with one entry per request, in order of arrival."""

from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Outcome = Literal["ok", "failed", "rejected", "censored"]

OUTCOMES: tuple[Outcome, ...] = ("ok", "failed", "rejected", "censored")
OK, FAILED, REJECTED, CENSORED = range(4)

NEVER = -1
"""In a column of instants: this did not happen."""


class Requests(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of the schedule.

    `due_ns` counts from the start of the point. `shared`, where prompts share leading text, holds per request
    the segments `(segment_id, tokens)` that open its prompt: equal leading segments are equal text; what
    remains of the prompt is fresh. `follows`, where there are conversations, holds the index (from the start
    of the point) of the request whose end this one waits for, or NEVER; `due_ns` then counts from that end.
    """

    due_ns: Ints
    prompt_tokens: Ints
    output_tokens: Ints
    shared: tuple[tuple[tuple[int, int], ...], ...] | None = None
    follows: Ints | None = None

    def __len__(self) -> int:
        return len(self.due_ns)


class Gaps(msgspec.Struct, frozen=True, kw_only=True):
    """Weighted samples of the gap between output tokens, in order of their ends.

    `ns[i]` was seen between `count[i]` pairs of neighbouring tokens whose later token came at `at_ns[i]`.
    A chunk of k tokens after a gap of G counts as k gaps of G/k. `chunk_ns` holds raw gaps between chunks
    where there were chunks (a simulated engine has none).
    """

    ns: Ints
    count: Ints
    at_ns: Ints
    chunk_ns: Ints | None = None


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """What one point's traffic saw. All instants in ns from the start of the point, NEVER where absent.

    Every offered request has an entry: `len(due_ns)` = ok + failed + rejected + censored. `first_ns` is the
    arrival of the first content, `first_tokens` the tokens it carried, `last_ns` that of the last content.
    `asked_tokens` is the output length asked for, `output_tokens` what came.
    """

    due_ns: Ints
    sent_ns: Ints
    first_ns: Ints
    last_ns: Ints
    end_ns: Ints
    outcome: NDArray[np.int8]
    prompt_tokens: Ints
    asked_tokens: Ints
    output_tokens: Ints
    first_tokens: Ints
    gaps: Gaps
    end_of_load_ns: int
    causes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.due_ns)


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request as a line of `records.jsonl`. Instants in ns from the start of its point."""

    point: int
    index: int
    due_ns: int
    outcome: Outcome
    sent_ns: int = NEVER
    first_ns: int = NEVER
    last_ns: int = NEVER
    end_ns: int = NEVER
    prompt_tokens: int = 0
    asked_tokens: int = 0
    output_tokens: int = 0
    first_tokens: int = 1
    cause: str = ""
    gap_ns: tuple[int, ...] = ()
    gap_tokens: tuple[int, ...] = ()
    worker: int = 0


def column(values: Any) -> Ints:
    """`values` as an int64 column."""
    return np.asarray(values, dtype=np.int64)
