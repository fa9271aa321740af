"""How the client itself fared, in numbers and in words."""

from collections.abc import Sequence

import numpy as np

from knee.core.requests import Ints
from knee.core.units import NS_PER_MS
from knee.measure.client.books import Books
from knee.measure.target import ClientHealth

MANY = 12


def health_of(books: Books, loop_lag_ns: Sequence[Ints], dispatch_lag_ns: Sequence[Ints]) -> ClientHealth:
    """Health from the books and the lags of each worker; the worst worker's percentiles count."""
    prompt_tokens = sum(books.prompt_tokens)
    return ClientHealth(
        loop_lag_p99_ms=_worst_p99_ms(loop_lag_ns),
        dispatch_lag_p99_ms=_worst_p99_ms(dispatch_lag_ns),
        cached_share=books.cached_tokens / prompt_tokens if prompt_tokens else None,
        prompt_error_share=prompt_error(books),
        workers=len(loop_lag_ns),
        notes=notes_of(books),
    )


def prompt_error(books: Books) -> float | None:
    """How far the server's count of prompt tokens was off, as a share of those that were to be sent."""
    return books.off_prompt_tokens / books.checked_prompt_tokens if books.checked_prompt_tokens else None


def notes_of(books: Books) -> tuple[str, ...]:
    """What was said with failures, what was odd, and how long refusals asked to wait."""
    said = [f"{cause}: {words}" for cause, words in list(books.said.items())[:MANY]]
    odd = [f"{note} ({times} times)" for note, times in books.notes.most_common(MANY)]
    waits = [
        f"refused with Retry-After {after} ({times} times)"
        for after, times in books.retry_after.most_common(MANY)
    ]
    return (*said, *odd, *waits)


def _worst_p99_ms(lags_ns: Sequence[Ints]) -> float | None:
    found = [float(np.percentile(lags, 99)) / NS_PER_MS for lags in lags_ns if len(lags)]
    return max(found, default=None)
