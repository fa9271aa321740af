"""What a point has seen, and what its engine counts, made from what a drive noted when somebody asks."""

from bisect import bisect_left

import numpy as np

from knee.core.requests import CENSORED, FAILED, NEVER, OK, REJECTED, Gaps, Ints, Observed, column
from knee.engine.metrics import REJECTIONS, Metrics
from knee.engine.plain import Plain
from knee.engine.skip import Skip

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
        self._over = np.zeros(0, dtype=bool)  # they ended, and have been counted
        self._begun = self._silent = 0
        self._hits = 0  # tokens found in the cache by rows that are still known
        self._begun_row = self._spoken_row = 0  # the rows before these were scheduled, and had a first token
        self._ended_before = 0  # of the rows that `open` counts, those before this one have ended
        self._gaps: list[tuple[Ints, Ints, Ints]] = [(NONE, NONE, NONE)]

    def enter(self) -> None:
        """Enter what has happened since the last call."""
        drive = self.drive
        mixed, late = column(drive.mixed).reshape(-1, 5), column(drive.late).reshape(-1, 2)
        quiet = _spread(column(drive.quiet).reshape(-1, 5))
        for told in (drive.mixed, drive.quiet, drive.late):
            told.clear()
        never = np.full(drive.arrived - len(self._first), NEVER, dtype=np.int64)
        self._scheduled = np.concatenate((self._scheduled, never))
        self._first = np.concatenate((self._first, never))
        self._over = np.concatenate((self._over, never > 0))
        took, _, at, begun, silent = mixed.T
        spoken = begun - (silent > 0)
        late_at = at[late[:, 1]]
        late = np.stack((late_at - late[:, 0], late_at)).T
        scheduled = np.repeat(at - took, np.diff(begun, prepend=self._begun))
        rows = self._next_rows(self._begun_row, len(scheduled))
        self._scheduled[rows] = scheduled
        self._begun_row = int(rows[-1]) + 1 if len(rows) else self._begun_row
        self._count_lookups(rows)
        first = np.repeat(at, np.diff(spoken, prepend=self._begun - self._silent))
        rows = self._next_rows(self._spoken_row, len(first))
        self._first[rows] = first
        self._spoken_row = int(rows[-1]) + 1 if len(rows) else self._spoken_row
        self._begun, self._silent = drive.begun, drive.silent
        self._count_steps(mixed, quiet, late, rows)
        last = column(drive.columns.last[: drive.arrived])
        ended = np.flatnonzero((last != NEVER) & ~self._over)
        self._count_ends(ended, last[ended], column(drive.columns.output)[ended], "length")
        if self._kept:
            self._gaps.append(_gaps(mixed, quiet, late))
        else:
            self._forget()

    def close(self) -> None:
        """Enter the end of the point, at which what is unfinished is aborted."""
        self.enter()
        rows, made = column(self.drive.abort()).reshape(-1, 2).T
        self._count_ends(rows, np.full(len(rows), self.drive.now_ns), made, "abort")

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

    def _next_rows(self, start: int, n: int) -> Ints:
        """The next `n` rows from `start` on that were not refused."""
        refused = self.drive.columns.refused
        if not refused:
            return np.arange(start, start + n)
        taken = np.ones(len(self._first), dtype=bool)
        taken[list(refused)] = False
        return np.flatnonzero(taken[start:])[:n] + start

    def _count_lookups(self, rows: Ints) -> None:
        drive, metrics = self.drive, self._metrics
        if drive.config.enable_prefix_caching:
            hits, known = sum(drive.cached.values()), self._hits
            metrics.cache_queries += int(column(drive.columns.prompt)[rows].sum())
            metrics.cache_hits += hits - known
            self._hits = hits

    def _count_steps(self, mixed: Ints, quiet: Ints, late: Ints, spoken: Ints) -> None:
        """Count steps, and the rows that had their first token with them."""
        metrics, columns = self._metrics, self.drive.columns
        prompt, first = column(columns.prompt)[spoken], self._first[spoken]
        took, decodes, at = mixed[:, 0], mixed[:, 1], mixed[:, 2]
        tokens = decodes.copy()
        np.add.at(tokens, np.searchsorted(at, first), 1 + prompt)
        np.add.at(tokens, np.searchsorted(at, late[:, 1]), 1)
        metrics.inter_token.observe_all(took, decodes)
        metrics.inter_token.observe_all(quiet[:, 0], quiet[:, 1] * quiet[:, 2])
        metrics.inter_token.observe_all(late[:, 0])
        metrics.iteration_tokens.observe_all(tokens[tokens > 0])
        metrics.iteration_tokens.observe_all(quiet[:, 1], quiet[:, 2])
        metrics.first_token.observe_all(first - column(columns.due)[spoken] + self._handled_ns)
        metrics.prompt_tokens += int(prompt.sum())
        if self.drive.cached:
            metrics.cached_tokens += int(_filled(self.drive.cached, len(self._first))[spoken].sum())
        metrics.generated += int(decodes.sum() + (quiet[:, 1] * quiet[:, 2]).sum()) + len(spoken) + len(late)

    def _count_ends(self, rows: Ints, end: Ints, made: Ints, reason: str) -> None:
        drive, columns = self.drive, self.drive.columns
        self._over[rows] = True
        due, prompt, asked = (column(part)[rows] for part in (columns.due, columns.prompt, columns.output))
        preempted, cached = (_filled(told, len(self._over))[rows] for told in (drive.preempted, drive.cached))
        self._metrics.finished[reason] += len(rows)
        self._metrics.ended_all(
            np.stack(
                (
                    due - self._handled_ns,
                    due,
                    self._scheduled[rows],
                    self._first[rows],
                    end,
                    end,
                    prompt,
                    made,
                    asked,
                    preempted,
                    cached,
                )
            )
        )

    def _forget(self) -> None:
        """Forget the rows before the first that goes on."""
        over = self._over.copy()
        over[list(self.drive.columns.refused)] = True
        over[self.drive.leaving] = False
        rows = len(over) if over.all() else int(over.argmin())
        if rows < DROP_AT:
            return
        self.drive.drop(rows)
        self._hits = sum(self.drive.cached.values())
        self._scheduled, self._first, self._over = (
            part[rows:] for part in (self._scheduled, self._first, self._over)
        )
        self._begun_row -= rows
        self._spoken_row -= rows


def _filled(told: dict[int, int], rows: int) -> Ints:
    """A column from what is told of some rows; the others have 0."""
    whole = np.zeros(rows, dtype=np.int64)
    whole[list(told)] = list(told.values())
    return whole


def _spread(quiet: Ints) -> Ints:
    """(ns a step, decodes, steps, end of the last) from stretches of which each step may be `longer`."""
    first, longer, decodes, steps, end = quiet.T
    if not longer.any():
        return np.stack((first, decodes, steps, end)).T
    i = np.arange(steps.sum()) - np.repeat(np.cumsum(steps) - steps, steps)
    first, longer, decodes, end, n = (np.repeat(part, steps) for part in (first, longer, decodes, end, steps))
    left = n - 1 - i
    after = left * (first + longer * i) + longer * (left * (left + 1) // 2)
    return np.stack((first + longer * i, decodes, np.ones_like(i), end - after)).T


def _gaps(mixed: Ints, quiet: Ints, late: Ints) -> tuple[Ints, Ints, Ints]:
    """Two entries for a stretch of several steps: only its last step may end past a boundary."""
    took, decodes, steps, at = quiet.T
    ns = np.concatenate((mixed[:, 0], took, took, late[:, 0]))
    counts = np.concatenate((mixed[:, 1], decodes * (steps - 1), decodes, np.ones_like(late[:, 0])))
    ends = np.concatenate((mixed[:, 2], at - took, at, late[:, 1]))
    order = np.argsort(ends, kind="stable")
    order = order[counts[order] > 0]
    return ns[order], counts[order], ends[order]
