"""A trace: requests as they once came, read from a file in any known format."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from knee.core.errors import InputError, UsageError
from knee.core.requests import Ints, Requests
from knee.core.units import NS_PER_S
from knee.workload.formats import Row, Rows, read_rows
from knee.workload.shapes import Segments


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """Requests in order of arrival. `at_s` counts from the first one; None where the file has no instants.

    `shared` are the segments that open each prompt, where the file says so. `notes` say what was left out or
    had to be guessed.
    """

    name: str
    format: str
    sha256: str
    prompt_tokens: Ints
    output_tokens: Ints
    at_s: NDArray[np.float64] | None = None
    shared: tuple[Segments, ...] | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    @property
    def span_s(self) -> float:
        """Seconds from the first arrival to one mean gap after the last: the mean rate is n / span."""
        if self.at_s is None or len(self) < 2:
            return 0.0
        last = float(self.at_s[-1])
        return last * len(self) / (len(self) - 1)

    @property
    def rate(self) -> float | None:
        """Mean requests/s; None without instants, or where all come at once."""
        return len(self) / self.span_s if self.span_s > 0 else None


def read_trace(path: Path, sha256: str = "") -> Trace:
    """The trace in `path`, whatever its format.

    Raises:
        InputError: the file cannot be read, is of no known format, holds no request, or is not the one whose
            `sha256` was given.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    digest = hashlib.sha256(data).hexdigest()
    if sha256 and sha256 != digest:
        raise InputError(
            f"{path} is not the trace it was", "its contents have changed since the run was planned"
        )
    return trace_of(read_rows(data, str(path)), path.name, digest)


def trace_of(rows: Rows, name: str = "", sha256: str = "") -> Trace:
    """Rows as columns, in order of arrival; rows without any token are left out and counted."""
    kept = [row for row in rows.rows if row.prompt_tokens >= 1 and row.output_tokens >= 1]
    notes = list(rows.notes)
    if len(kept) < len(rows.rows):
        notes.append(f"{len(rows.rows) - len(kept)} requests without prompt or output were left out")
    if not kept:
        raise InputError(f"{name or 'the trace'} holds no request with prompt and output tokens")
    timed = all(row.at_s is not None for row in kept)
    if timed:
        kept.sort(key=_instant)
    first = _instant(kept[0])
    return Trace(
        name=name,
        format=rows.format,
        sha256=sha256,
        prompt_tokens=np.array([row.prompt_tokens for row in kept], dtype=np.int64),
        output_tokens=np.array([row.output_tokens for row in kept], dtype=np.int64),
        at_s=np.array([_instant(row) - first for row in kept]) if timed else None,
        shared=tuple(row.shared for row in kept) if any(row.shared for row in kept) else None,
        notes=tuple(notes),
    )


def replay(trace: Trace, rate: float, chunk: int) -> Iterator[Requests]:
    """The trace at its own instants, stretched so that the mean rate is `rate`, and over again without end.

    Raises:
        UsageError: the trace has no instants to replay.
    """
    own = trace.rate
    if own is None or trace.at_s is None:
        raise UsageError(
            f"{trace.name} has no arrival times to replay", "leave out --replay: its lengths are then drawn"
        )
    return _laps(trace, np.rint(trace.at_s * (own / rate) * NS_PER_S), len(trace) / rate * NS_PER_S, chunk)


def _laps(trace: Trace, due_ns: NDArray[np.float64], lap_ns: float, chunk: int) -> Iterator[Requests]:
    lap = 0
    while True:
        for start in range(0, len(trace), chunk):
            part = slice(start, start + chunk)
            yield Requests(
                due_ns=(due_ns[part] + lap * lap_ns).astype(np.int64),
                prompt_tokens=trace.prompt_tokens[part],
                output_tokens=trace.output_tokens[part],
                shared=None if trace.shared is None else trace.shared[part],
            )
        lap += 1


def _instant(row: Row) -> float:
    return row.at_s or 0.0
