"""The plain case at full speed: open loop, no shared text, and memory for all who may run.

Then nothing but seats, the token budget and time decides. Who decodes is a heap of (step of the end, row),
who waits is a range of rows, and at most one prefill is unfinished, the last one. It is the same state
machine as `skip`, which can go on from any instant.
"""

from collections.abc import Iterator
from heapq import heappop, heappush

from knee.engine.batch import ROW_BITS, ROW_MASK
from knee.engine.columns import FAR_NS, Columns
from knee.engine.config import EngineConfig
from knee.engine.engine import Engine, gauges_of
from knee.engine.skip import can_skip


def is_plain(config: EngineConfig) -> bool:
    """Whether an engine is plain as long as its memory is not short."""
    return (
        can_skip(config)
        and not config.step_cost.per_context_token_ns
        and config.max_num_queued_reqs is None
        and config.max_num_queued_tokens is None
        and not config.async_scheduling
    )


class Plain:
    """The requests of `columns` on an idle engine. Instants count from the start of the point."""

    def __init__(self, engine: Engine, columns: Columns) -> None:
        config = engine.config
        self.config = config
        self.columns = columns
        self.now_ns = 0
        self.steps = 0
        self.arrived = 0  # rows before this one have arrived
        self.begun = 0  # rows before this one have been scheduled
        self.ends = [FAR_NS << ROW_BITS]  # a heap of (steps done at the end, row), and one that never comes
        self.left = 0  # prompt tokens that the last row begun has still to compute
        self.leaving: list[int] = []  # as in `skip`, but they stay empty
        self.firsts: list[int] = []
        self.late: list[int] = []
        self.hits: list[int] = []
        self.lost: list[int] = []
        self.mixed: list[int] = []  # see `books`
        self.quiet: list[int] = []
        memory = config.num_gpu_blocks - int(config.watermark * config.num_gpu_blocks)
        blocks = (memory - 1) // config.max_num_seqs  # that each who runs may hold, and memory never binds
        knows = engine.scheduler.kv.cache is not None and engine.scheduler.kv.cache.root.children
        self.longest = -1 if knows else min(config.max_model_len, blocks * config.block_size + 1)

    def advance(self, until_ns: int) -> bool:
        """Run until the first step that ends at `until_ns` or later; False if it is not plain."""
        columns = self.columns
        columns.draw_until(until_ns)
        if columns.told or columns.longest > self.longest:
            return False
        self._run(until_ns)
        columns.draw_until(self.now_ns - 1)
        while columns.due[self.arrived] < self.now_ns:
            self.arrived += 1
        return True

    def decoding(self) -> Iterator[tuple[int, int]]:
        """The rows that decode, and after how many steps each ends."""
        for entry in self.ends:
            if entry >> ROW_BITS < FAR_NS:
                yield entry & ROW_MASK, entry >> ROW_BITS

    def gauges(self) -> dict[str, float]:
        """The engine's gauges as they stood when the last step ended."""
        size, total, prompt, output = (
            self.config.block_size, self.config.num_gpu_blocks - 1, self.columns.prompt, self.columns.output
        )  # fmt: skip
        held = sum(
            -((1 + end - self.steps - prompt[row] - output[row]) // size) for row, end in self.decoding()
        )
        if self.left:
            held -= (self.left - prompt[self.begun - 1]) // size
        running = len(self.ends) - 1 + bool(self.left)
        return gauges_of(running, self.arrived - self.begun, 1 - (total - held) / total)

    def unfinished(self) -> Iterator[tuple[int, int, int]]:
        """Rows with some of their tokens: how many, and when the last came."""
        for row, end in self.decoding():
            yield row, self.columns.output[row] - (end - self.steps), self.now_ns

    def abort(self) -> list[tuple[int, int]]:
        """All that is unfinished ends here: the rows, in order, and the tokens each has."""
        made = {row: tokens for row, tokens, _ in self.unfinished()}
        if self.left:
            made[self.begun - 1] = 0
        return sorted({**made, **dict.fromkeys(range(self.begun, self.arrived), 0)}.items())

    def drop(self, rows: int) -> None:
        """Forget the first `rows` rows, which are over; the others move up."""
        self.columns.drop(rows)
        self.arrived -= rows
        self.begun -= rows
        self.ends = [entry - rows for entry in self.ends if entry >> ROW_BITS < FAR_NS]
        self.ends.append(FAR_NS << ROW_BITS)

    def _run(self, until_ns: int) -> None:  # noqa: C901, PLR0915 - in one piece it is twice as fast
        cost, columns, heap = self.config.step_cost, self.columns, self.ends
        fixed, per_seq, per_token, anew = (
            cost.fixed_ns, cost.per_seq_ns, cost.per_prefill_token_ns, cost.per_prefill_step_ns
        )  # fmt: skip
        seats, all_tokens = self.config.max_num_seqs, self.config.max_num_batched_tokens
        due, prompt, output, last = columns.due, columns.prompt, columns.output, columns.last
        now, step, arrived, begun, left = self.now_ns, self.steps, self.arrived, self.begun, self.left
        mixed, quiet, decoding = self.mixed, self.quiet, len(heap) - 1
        next_due, next_end = due[arrived], heap[0] >> ROW_BITS
        while now < until_ns:
            while next_due <= now:
                arrived += 1
                next_due = due[arrived]
            if left or (begun < arrived and decoding < seats):
                budget, taking = all_tokens - decoding, decoding
                if left:  # the prefill that is unfinished goes on first
                    begun -= 1
                while budget and begun < arrived and taking < seats:
                    tokens = left or prompt[begun]
                    taking += 1
                    if tokens > budget:
                        left = tokens - budget
                        budget = 0
                    else:
                        left = 0
                        budget -= tokens
                        heappush(heap, (step + output[begun] << ROW_BITS) + begun)
                    begun += 1
                tokens = all_tokens - decoding - budget
                took = fixed + per_seq * taking + (anew + per_token * tokens if tokens else 0)
                now += took
                step += 1
                mixed += (took, decoding, now, begun, begun - 1 if left else begun)
                decoding = len(heap) - 1
                next_end = heap[0] >> ROW_BITS
            elif decoding:
                took = fixed + per_seq * decoding
                steps = next_end - step
                # Who arrives matters if there is a seat for them.
                within = (next_due if next_due < until_ns and decoding < seats else until_ns) - now
                if steps * took > within:
                    steps = -(-within // took)
                now += steps * took
                step += steps
                quiet += (decoding, steps, now)
            else:
                now = min(until_ns, next_due)
                continue
            if next_end <= step:
                while next_end <= step:
                    last[heappop(heap) & ROW_MASK] = now
                    next_end = heap[0] >> ROW_BITS
                decoding = len(heap) - 1
        self.now_ns, self.steps, self.arrived, self.begun, self.left = now, step, arrived, begun, left
