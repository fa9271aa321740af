"""Who runs and who waits, as row numbers, and the sums by which decoding touches none of them."""

from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

from knee.core.requests import NEVER
from knee.engine.columns import FAR_NS, Columns
from knee.engine.engine import Engine, gauges_of
from knee.engine.prefix_cache import Lease, Node, PrefixCache

if TYPE_CHECKING:
    from knee.engine.plain import Plain

Told = TypeVar("Told")
ROW_BITS = 30
ROW_MASK = (1 << ROW_BITS) - 1
"""A billion rows, far more than memory holds; with the step before it, a number is still small and fast."""


Redo = tuple[int, int, Node | None]
"""What a preempted row had: tokens made, when the last one came, and what is left in the cache."""


class Batch:
    """The requests of `columns` on an idle engine. Instants count from the start of the point."""

    __slots__ = (
        "again",
        "arrived",
        "begun",
        "blocked",
        "caching",
        "columns",
        "config",
        "context",
        "context_counts",
        "ends",
        "firsts",
        "hits",
        "kv",
        "lacking",
        "last_row",
        "late",
        "leases",
        "leaving",
        "left",
        "longest",
        "lost",
        "metrics",
        "mixed",
        "most",
        "now_ns",
        "pool",
        "queued",
        "queued_tokens",
        "quiet",
        "redo",
        "refusals",
        "residues",
        "running",
        "seats",
        "size",
        "spoken",
        "spoken_tokens",
        "steps",
        "target",
        "watched",
    )  # fmt: skip

    def __init__(self, engine: Engine, columns: Columns) -> None:
        config = engine.config
        self.config = config
        self.columns = columns
        self.kv = engine.scheduler.kv
        self.pool = self.kv.cache or PrefixCache(self.kv.total, config.block_size)
        self.size = config.block_size
        self.seats, self.caching = config.max_num_seqs, config.enable_prefix_caching
        self.metrics = engine.metrics
        self.most = self.kv.total * config.block_size + 1  # tokens of a request for which there are blocks
        self.longest = min(self.most, config.max_model_len)
        self.now_ns = 0
        self.steps = 0
        # Rows wait in order: those that were preempted, the next one last, and [begun, queued). With async
        # scheduling, [queued, arrived) came too late for the next step.
        self.again: list[int] = []
        self.begun = self.queued = self.arrived = 0
        self.refusals = 0  # how many of [begun, arrived) were refused
        self.spoken = 0  # the rows before this one have a token, or were refused
        self.leaving: list[int] = []  # with async scheduling: ended too late for the next step
        self.running: dict[int, int] = {}  # rows that decode, and how many steps are done when each ends
        self.ends = [FAR_NS << ROW_BITS]  # the same as (steps, row) in order
        self.left = 0  # prompt tokens that the last row that runs has still to compute
        self.last_row = NEVER
        self.target = 0  # tokens that row computes in all
        self.residues = [0] * config.block_size  # how many decodes need a block in steps of that residue
        self.context = 0  # tokens of context of those who decode, less one a step for each
        self.blocked = False  # the head of the queue lacks blocks,
        self.lacking = 0  # and will at least until so many are free
        self.redo: dict[int, Redo] = {}  # of preempted rows that are not back where they were
        self.leases: dict[int, Lease] = {}  # of rows with shared text
        self.queued_tokens = 0  # prompt tokens of those without, if there is a limit to them
        self.spoken_tokens = 0  # prompt tokens of those who get theirs with this step
        limits = (config.max_num_queued_reqs, config.max_num_queued_tokens)
        self.context_counts = config.step_cost.per_context_token_ns > 0
        self.watched = config.async_scheduling or self.context_counts or limits != (None, None)
        # What has happened since the books were made up, in flat lists; see `books`.
        self.mixed: list[int] = []
        self.quiet: list[int] = []
        self.firsts: list[int] = []
        self.late: list[int] = []
        self.hits: list[int] = []
        self.lost: list[int] = []

    def take_over(self, plain: "Plain") -> None:
        """Go on from where `plain` has come."""
        size, columns = self.size, plain.columns
        self.now_ns, self.steps, self.left = plain.now_ns, plain.steps, plain.left
        self.mixed, self.quiet = plain.mixed, plain.quiet
        self.begun, self.spoken, self.queued = plain.begun, plain.begun - bool(plain.left), plain.arrived
        self.arrived = plain.arrived
        self.ends[:] = sorted(plain.ends)
        for row, end in sorted(plain.decoding()):
            self.running[row] = end
            tokens = columns.prompt[row] + columns.output[row] - 1 - (end - self.steps)
            self.context += tokens - self.steps
            self.residues[(self.steps - tokens) % size] += 1
            self._hold(tokens)
        if self.left:
            self.last_row, self.target = plain.begun - 1, columns.prompt[plain.begun - 1]
            self._hold(self.target - self.left)

    def gauges(self) -> dict[str, float]:
        """The engine's gauges as they stood when the last step ended."""
        return gauges_of(len(self.running) + bool(self.left), self.behind(), self.kv.usage)

    def behind(self) -> int:
        """How many have arrived and do not run."""
        return len(self.again) + self.arrived - self.begun - self.refusals

    def unfinished(self) -> Iterator[tuple[int, int, int]]:
        """Rows with some of their tokens: how many, and when the last came."""
        for row, end in self.running.items():
            yield row, self.columns.output[row] - (end - self.steps), self.now_ns
        for row, (made, last_ns, _) in self.redo.items():
            if made:
                yield row, made, last_ns

    def abort(self) -> list[tuple[int, int]]:
        """All that is unfinished ends here: the rows, in order, and the tokens each has."""
        fresh = (row for row in range(self.begun, self.arrived) if row not in self.columns.refused)
        rows = sorted((*self.running, *self.again, *fresh, *([self.last_row] if self.left else ())))
        for row in rows:
            if row in self.running:
                self.release(row, self.columns.prompt[row] + self.made(row) - 1)
            elif self.left and row == self.last_row:
                self.release(row, self.target - self.left)
        self.catch_up()
        return [(row, self.made(row)) for row in rows]

    def made(self, row: int) -> int:
        """Tokens that an unfinished row has."""
        if row in self.running:
            return self.columns.output[row] - (self.running[row] - self.steps)
        return self.redo[row][0] if row in self.redo else 0

    def drop(self, rows: int) -> None:
        """Forget the first `rows` rows, which are over; the others move up."""
        self.columns.drop(rows)
        self.begun, self.queued, self.arrived = self.begun - rows, self.queued - rows, self.arrived - rows
        self.spoken, self.last_row = max(0, self.spoken - rows), self.last_row - rows
        self.again = [row - rows for row in self.again]
        self.leaving = [row - rows for row in self.leaving]
        self.running = {row - rows: end for row, end in self.running.items()}
        self.ends[:-1] = [entry - rows for entry in self.ends[:-1]]
        self.redo, self.leases = _moved(self.redo, rows), _moved(self.leases, rows)

    def arrive(self, until_ns: int) -> None:
        """Take in the rows that arrive by `until_ns`, each at its own instant."""
        columns, row = self.columns, self.arrived
        if columns.drawn_ns <= until_ns:
            columns.draw_until(until_ns)
            self.watch()
        due = columns.due
        if not self.watched:
            self.queued = self.arrived = bisect_right(due, until_ns, row)
            return
        while due[row] <= until_ns:
            self._take(row, due[row])
            row += 1
            self.arrived = row

    def watch(self) -> None:
        """Look at each row that comes, once one was drawn that is too long for the engine."""
        if self.columns.longest > self.longest:
            self.watched = True

    def _take(self, row: int, at_ns: int) -> None:
        """Queue a row, unless it is refused; with async scheduling a busy engine sees it a step later."""
        config, tokens = self.config, self.columns.prompt[row] + self.columns.output[row]
        unfinished = len(self.running) + bool(self.left) + self.behind()
        reason = ""
        if tokens > config.max_model_len:
            reason = "max_model_len"
        elif tokens > self.most:
            reason = "unservable"
        elif config.max_num_queued_reqs is not None and unfinished >= config.max_num_queued_reqs:
            reason = "max_num_queued_reqs"
        elif config.max_num_queued_tokens is not None and self.queued_tokens >= config.max_num_queued_tokens:
            reason = "max_num_queued_tokens"
        if reason:
            if reason in self.metrics.rejected:
                self.metrics.rejected[reason] += 1
            self.columns.refuse(row, reason, at_ns)
            self.queued += self.queued == row
            if self.begun == row:
                self.begun = row + 1
            else:
                self.refusals += 1
            return
        self.queued_tokens += self.columns.prompt[row]
        if not (config.async_scheduling and unfinished):
            self.queued = row + 1

    def begin(self) -> None:
        """The next row that was not scheduled before is, now."""
        self.begun += 1
        while self.refusals and self.begun in self.columns.refused:
            self.begun += 1
            self.refusals -= 1

    def growth(self, steps: int) -> int:
        """Blocks that those who decode take in the next `steps` steps."""
        size, residues = self.size, self.residues
        start = self.steps % size
        end = start + steps
        if end <= size:
            return sum(residues[start:end])
        rounds, end = divmod(end, size)
        return sum(residues[start:]) + (rounds - 1) * len(self.running) + sum(residues[:end])

    def catch_up(self) -> None:
        """Let those who came and ended while a step was planned ahead come and go."""
        prompt, output = self.columns.prompt, self.columns.output
        for row in self.leaving:
            self.release(row, prompt[row] + output[row] - 1)
        self.leaving.clear()
        self.queued = self.arrived
        self.blocked = False

    def release(self, row: int, tokens: int) -> None:
        """Give back the blocks of `tokens` tokens."""
        lease = self.leases.pop(row, self.pool.nothing)
        self.kv.free += self.pool.release(lease, -(-tokens // self.size), tokens // self.size)[0]

    def _hold(self, tokens: int) -> None:
        blocks = -(-tokens // self.size)
        self.kv.free -= blocks
        self.pool.owed += blocks


def _moved(told: dict[int, Told], rows: int) -> dict[int, Told]:
    return {row - rows: value for row, value in told.items() if row >= rows}
