"""The books of one point: a column entry for every request offered, from the instant it is offered."""

from array import array
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from knee.core.requests import CENSORED, NEVER, Gaps, Ints, Observed
from knee.core.units import NS_PER_MS

GAPS_KEPT = 1_000_000
"""Gaps kept one by one. Beyond, alike ones are merged: within 0.4% in length and a slice of time."""
FIRST_SLICE_NS = 100 * NS_PER_MS
"""The slice of time at first; it grows as far as a long run needs to stay within half of GAPS_KEPT."""
MERGE_STEP = 1.004
COLUMNS = (
    *("due_ns", "sent_ns", "first_ns", "last_ns", "end_ns", "outcome"),
    *("prompt_tokens", "asked_tokens", "output_tokens", "first_tokens"),
)


class Books:
    """Columns that grow by one entry per offered request; all instants in ns from the start of the point.

    An entry is censored until `close` says otherwise, so that at any moment
    offered = ok + failed + rejected + censored.
    """

    def __init__(self) -> None:
        self.due_ns, self.sent_ns, self.first_ns, self.last_ns, self.end_ns = (array("q") for _ in range(5))
        self.prompt_tokens, self.asked_tokens = array("q"), array("q")
        self.output_tokens, self.first_tokens = array("q"), array("q")
        self.outcome = array("b")
        self.causes: Counter[str] = Counter()
        self.said: dict[str, str] = {}
        """The first thing the server said with each cause."""
        self.notes: Counter[str] = Counter()
        self.retry_after: Counter[str] = Counter()
        self.cached_tokens = 0
        self.checked_prompt_tokens = self.off_prompt_tokens = 0
        """Prompt tokens that were to be sent in requests whose usage came back, and how far that was off."""
        self.gap_ns, self.gap_count, self.gap_at_ns = array("q"), array("q"), array("q")
        self.chunk_ns = array("q")
        self._chunk_stride = 1
        self._chunks_seen = 0
        self._slice_ns = FIRST_SLICE_NS

    def __len__(self) -> int:
        return len(self.due_ns)

    def offer(self, due_ns: int, prompt_tokens: int, asked_tokens: int) -> int:
        """Enter a request; its index."""
        for instants in (self.sent_ns, self.first_ns, self.last_ns, self.end_ns):
            instants.append(NEVER)
        self.due_ns.append(due_ns)
        self.prompt_tokens.append(prompt_tokens)
        self.asked_tokens.append(asked_tokens)
        self.output_tokens.append(0)
        self.first_tokens.append(0)
        self.outcome.append(CENSORED)
        return len(self.due_ns) - 1

    def gaps(self, chunk_ns: list[int], tokens: list[int], at_ns: list[int]) -> None:
        """Chunks of `tokens` tokens that came at `at_ns`, `chunk_ns` after the one before each."""
        if tokens.count(1) == len(tokens):
            self.gap_ns.extend(chunk_ns)
        else:
            self.gap_ns.extend([ns // count for ns, count in zip(chunk_ns, tokens, strict=True)])
        self.gap_count.extend(tokens)
        self.gap_at_ns.extend(at_ns)
        stride, seen = self._chunk_stride, self._chunks_seen
        self.chunk_ns.extend(chunk_ns[stride - 1 - seen % stride :: stride])
        self._chunks_seen = seen + len(chunk_ns)
        if len(self.gap_ns) >= GAPS_KEPT:
            self._thin_out()

    def cause(self, cause: str, said: str = "") -> None:
        """Count why a request was not answered."""
        self.causes[cause] += 1
        if said:
            self.said.setdefault(cause, said)

    def rows(self, indices: Sequence[int]) -> Ints:
        """The entries at `indices`, one a row, in the order of COLUMNS."""
        rows = [[getattr(self, name)[i] for name in COLUMNS] for i in indices]
        return np.array(rows, dtype=np.int64).reshape(-1, len(COLUMNS))

    def add_rows(self, rows: Ints) -> None:
        """Append entries in the form that `rows` gives."""
        for name, values in zip(COLUMNS, rows.T, strict=True):
            getattr(self, name).extend(values.tolist())

    def add_gaps(self, gaps: Ints, chunk_ns: Ints) -> None:
        """Append gaps: rows of (ns, count, at_ns), and raw gaps between chunks."""
        for column, values in zip((self.gap_ns, self.gap_count, self.gap_at_ns), gaps.T, strict=True):
            column.extend(values.tolist())
        self.chunk_ns.extend(chunk_ns[:: self._chunk_stride].tolist())
        if len(self.gap_ns) >= GAPS_KEPT:
            self._thin_out()

    def take_gaps(self) -> tuple[Ints, Ints]:
        """Gaps as `add_gaps` takes them, of which these books then hold none."""
        gaps = np.stack([_copy(c) for c in (self.gap_ns, self.gap_count, self.gap_at_ns)], axis=1)
        chunk_ns = _copy(self.chunk_ns)
        self.gap_ns, self.gap_count, self.gap_at_ns, self.chunk_ns = (array("q") for _ in range(4))
        return gaps, chunk_ns

    def observed(self, end_of_load_ns: int, more: Ints | None = None) -> Observed:
        """A copy of the books as they stand, with `more` entries (rows), all in order of `due_ns`."""
        return self.freeze(end_of_load_ns, more)()

    def freeze(self, end_of_load_ns: int, more: Ints | None = None) -> Callable[[], Observed]:
        """What `observed` gives, in two steps: the copy now, and the work on it when the result is called.

        So another thread can do the work while these books go on.
        """
        columns = {name: getattr(self, name)[:] for name in COLUMNS}
        gaps = [column[:] for column in (self.gap_ns, self.gap_count, self.gap_at_ns, self.chunk_ns)]
        causes = dict(self.causes)
        return lambda: _observed(columns, gaps, causes, end_of_load_ns, more)

    def _thin_out(self) -> None:
        ns, count, at = (_copy(column) for column in (self.gap_ns, self.gap_count, self.gap_at_ns))
        ns, count, at = merge_alike(ns, count, at, self._slice_ns)
        while len(ns) > GAPS_KEPT // 2:
            self._slice_ns *= 4
            ns, count, at = merge_alike(ns, count, at, self._slice_ns)
        self.gap_ns, self.gap_count, self.gap_at_ns = (array("q", c.tobytes()) for c in (ns, count, at))
        if len(self.chunk_ns) >= GAPS_KEPT // 4:
            self.chunk_ns = self.chunk_ns[1::2]
            self._chunk_stride *= 2


def merge_alike(ns: Ints, count: Ints, at_ns: Ints, slice_ns: int) -> tuple[Ints, Ints, Ints]:
    """The same weighted gaps in fewer entries: those alike in length and time become one.

    The number of gaps is unchanged and their sum within rounding; each is moved by less than 0.4% of its
    length and `slice_ns` in time.
    """
    size = (np.log(np.maximum(ns, 1)) / np.log(MERGE_STEP)).astype(np.int64)
    _, where = np.unique((at_ns // slice_ns) * (1 << 14) + size, return_inverse=True)
    counts = np.bincount(where, weights=count)
    means = np.bincount(where, weights=ns.astype(np.float64) * count) / counts
    latest = np.zeros(len(counts), dtype=np.int64)
    np.maximum.at(latest, where, at_ns)
    return np.rint(means).astype(np.int64), counts.astype(np.int64), latest


def _observed(
    columns: "dict[str, array[int]]",
    gaps: "list[array[int]]",
    causes: dict[str, int],
    end_of_load_ns: int,
    more: Ints | None,
) -> Observed:
    filled = {name: _copy(column) for name, column in columns.items()}
    if more is not None and len(more):
        filled = {
            name: np.concatenate([filled[name], values]) for name, values in zip(COLUMNS, more.T, strict=True)
        }
    if (np.diff(filled["due_ns"]) < 0).any():
        arrival = np.argsort(filled["due_ns"], kind="stable")
        filled = {name: values[arrival] for name, values in filled.items()}
    outcome = filled.pop("outcome").astype(np.int8)
    ns, count, at_ns, chunk_ns = (_copy(column) for column in gaps)
    order = np.argsort(at_ns, kind="stable")
    return Observed(
        **filled,
        outcome=outcome,
        gaps=Gaps(ns=ns[order], count=count[order], at_ns=at_ns[order], chunk_ns=chunk_ns),
        end_of_load_ns=end_of_load_ns,
        causes=causes,
    )


def _copy(column: "array[int]") -> Ints:
    return np.array(column, dtype=np.int64)
