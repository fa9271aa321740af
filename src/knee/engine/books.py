"""What a point has seen, and what its engine counts, made from what a drive noted when somebody asks."""

from bisect import bisect_left

import numpy as np

from knee.core.requests import CENSORED, FAILED, NEVER, OK, REJECTED, Gaps, Ints, Observed, column
from knee.engine.metrics import REJECTIONS, Metrics
from knee.engine.plain import Plain
from knee.engine.skip import Skip
from knee.engine.told import Told

NONE = column([])
DROP_AT = 1 << 14
"""So many rows that are over are forgotten at once, where rows are not kept."""


class Books:
    """The books of a point: what is entered is in `metrics`, and, if it is `kept`, can be `observed`."""

    def __init__(self, drive: Skip | Plain, metrics: Metrics, kept: bool = True) -> None:
        self.drive = drive
        self._metrics = metrics
        self._kept = kept
        # vLLM's clock for TTFT starts when a server of the front end gets to the request.
        self._handled_ns = drive.config.front_end.per_request_ns
        self._scheduled = self._first = NONE  # of the rows that have arrived
        self._cached = self._lost = NONE  # tokens found in the cache; how often preempted
        self._over = np.zeros(0, dtype=bool)  # they ended, and have been counted
        self._begun = self._spoken = 0  # the rows before these were scheduled, and had a first token
        self._ended_before = 0  # of the rows that `open` counts, those before this one have ended
        self._gaps: list[tuple[Ints, Ints, Ints]] = [(NONE, NONE, NONE)]

    def enter(self) -> None:
        """Enter what has happened since the last call."""
        drive, told = self.drive, Told(self.drive)
        self._grow(drive.arrived)
        np.add.at(self._lost, told.lost, 1)
        self._metrics.preemptions += len(told.lost)
        rows, tokens = told.hits.T
        self._cached[rows] = tokens
        took, _, at, begun, spoken = told.mixed.T
        rows, started = self._next_rows(self._begun, begun, at - took)
        self._scheduled[rows] = started
        if drive.config.enable_prefix_caching:
            self._metrics.cache_queries += int(told.prompt[rows].sum())
            self._metrics.cache_hits += int(tokens.sum())
        rows, first = self._next_rows(self._spoken, spoken, at)
        self._first[rows] = first
        if len(told.mixed):
            self._begun, self._spoken = int(begun[-1]), int(spoken[-1])
        self._count_steps(told, rows)
        ended = np.flatnonzero((told.last != NEVER) & ~self._over)
        self._count_ends(told, ended, told.last[ended], told.output[ended], "length")
        if self._kept:
            self._gaps.append(_gaps(told))
        else:
            self._forget()

    def close(self) -> None:
        """Enter the end of the point, at which what is unfinished is aborted."""
        self.enter()
        rows, made = column(self.drive.abort()).reshape(-1, 2).T
        self._count_ends(Told(self.drive), rows, np.full(len(rows), self.drive.now_ns), made, "abort")

    def open(self, from_ns: int, until_ns: int) -> int:
        """How many requests due in [from_ns, until_ns) go on."""
        columns, offered = self.drive.columns, self._offered()
        low, high = (bisect_left(columns.came, at, 0, offered) for at in (from_ns, until_ns))
        low = max(low, self._ended_before)
        while low < high and columns.last[low] != NEVER:
            low += 1
        self._ended_before = low
        refused = sum(low <= row < high for row in columns.refused)
        return columns.last[low:high].count(NEVER) - refused

    def observed(self) -> Observed:
        """All there is to see now."""
        self.enter()
        drive, columns, n = self.drive, self.drive.columns, self._offered()
        came, last, asked = (column(part[:n]) for part in (columns.came, columns.last, columns.output))
        first = np.concatenate((self._first, np.full(n - len(self._first), NEVER, dtype=np.int64)))
        end = last.copy()
        outcome = np.where(end == NEVER, CENSORED, OK).astype(np.int8)
        made = np.where(end == NEVER, 0, asked)
        for row, tokens, last_ns in drive.unfinished():
            made[row], last[row] = tokens, last_ns
        causes: dict[str, int] = {}
        for row, (reason, at_ns) in columns.refused.items():
            outcome[row] = REJECTED if reason in REJECTIONS else FAILED
            end[row] = at_ns
            causes[reason] = causes.get(reason, 0) + 1
        ns, count, at = (np.concatenate(part) for part in zip(*self._gaps, strict=True))
        self._gaps = [(ns, count, at)]
        return Observed(
            due_ns=came,
            sent_ns=came.copy(),
            first_ns=first,
            last_ns=last,
            end_ns=end,
            outcome=outcome,
            prompt_tokens=column(columns.prompt[:n]),
            asked_tokens=asked,
            output_tokens=made,
            first_tokens=(first != NEVER).astype(np.int64),
            gaps=Gaps(ns=ns, count=count, at_ns=at),
            end_of_load_ns=drive.now_ns,
            causes=causes,
        )

    def _offered(self) -> int:
        """How many rows have come; those after the arrived ones are still in the front end."""
        return max(self.drive.arrived, bisect_left(self.drive.columns.came, self.drive.now_ns))

    def _grow(self, rows: int) -> None:
        """Have `rows` rows."""
        more = rows - len(self._first)
        never, none = np.full(more, NEVER, dtype=np.int64), np.zeros(more, dtype=np.int64)
        self._scheduled, self._first, self._cached, self._lost, self._over = (
            np.concatenate(parts)
            for parts in (
                (self._scheduled, never), (self._first, never), (self._cached, none), (self._lost, none),
                (self._over, none > 0),
            )
        )  # fmt: skip

    def _next_rows(self, start: int, ends: Ints, at: Ints) -> tuple[Ints, Ints]:
        """The rows from `start` on that were not refused, and when: those before `ends[i]` at `at[i]`."""
        at = np.repeat(at, np.diff(ends, prepend=start))
        rows, refused = np.arange(start, start + len(at)), self.drive.columns.refused
        if refused:
            taken = ~np.isin(rows, list(refused))
            return rows[taken], at[taken]
        return rows, at

    def _count_steps(self, told: Told, spoken: Ints) -> None:
        """Count steps, and the rows that had their first token with them."""
        metrics, quiet, late = self._metrics, told.quiet, told.late
        prompt, first = told.prompt[spoken], self._first[spoken]
        took, decodes, at = told.mixed[:, 0], told.mixed[:, 1], told.mixed[:, 2]
        tokens = decodes.copy()
        np.add.at(tokens, np.searchsorted(at, first), 1 + prompt)
        np.add.at(tokens, np.searchsorted(at, late[:, 1]), 1)
        metrics.inter_token.observe_all(took, decodes)
        metrics.inter_token.observe_all(quiet[:, 0], quiet[:, 1] * quiet[:, 2])
        metrics.inter_token.observe_all(late[:, 0])
        metrics.iteration_tokens.observe_all(tokens[tokens > 0])
        metrics.iteration_tokens.observe_all(quiet[:, 1], quiet[:, 2])
        metrics.first_token.observe_all(first - told.due[spoken] + self._handled_ns)
        metrics.prompt_tokens += int(prompt.sum())
        metrics.cached_tokens += int(self._cached[spoken].sum())
        metrics.generated += int(decodes.sum() + (quiet[:, 1] * quiet[:, 2]).sum()) + len(spoken) + len(late)

    def _count_ends(self, told: Told, rows: Ints, end: Ints, made: Ints, reason: str) -> None:
        self._over[rows] = True
        due = told.due[rows]
        self._metrics.finished[reason] += len(rows)
        self._metrics.ended_all(
            (
                due - self._handled_ns, due, self._scheduled[rows], self._first[rows], end, end,
                told.prompt[rows], made, told.output[rows], self._lost[rows], self._cached[rows],
            )
        )  # fmt: skip

    def _forget(self) -> None:
        """Forget the rows before the first that goes on."""
        over = self._over.copy()
        over[list(self.drive.columns.refused)] = True
        over[self.drive.leaving] = False
        rows = len(over) if over.all() else int(over.argmin())
        if rows < DROP_AT:
            return
        self.drive.drop(rows)
        self._scheduled, self._first, self._cached, self._lost, self._over = (
            part[rows:] for part in (self._scheduled, self._first, self._cached, self._lost, self._over)
        )
        self._begun, self._spoken = max(0, self._begun - rows), max(0, self._spoken - rows)


def _gaps(told: Told) -> tuple[Ints, Ints, Ints]:
    """Two entries for a stretch of several steps: only its last step may end past a boundary."""
    mixed, late = told.mixed, told.late
    took, decodes, steps, at = told.quiet.T
    ns = np.concatenate((mixed[:, 0], took, took, late[:, 0]))
    counts = np.concatenate((mixed[:, 1], decodes * (steps - 1), decodes, np.ones_like(late[:, 0])))
    ends = np.concatenate((mixed[:, 2], at - took, at, late[:, 1]))
    order = np.argsort(ends, kind="stable")
    order = order[counts[order] > 0]
    return ns[order], counts[order], ends[order]
