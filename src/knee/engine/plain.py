"""The plain case at full speed: open loop, first come first served, and memory enough for all who run.

Then nothing but seats, the token budget and time decides. A request is a row number, who decodes is a heap
of (step of the end, row), who waits is a range of rows, and at most one prefill is unfinished, the last one.
It is the same state machine as `scheduler`, and what it makes happen is the same, exactly; where it might not
be, `NotPlain` sends the caller to the general drive.
"""

from collections.abc import Iterator
from heapq import heappop, heappush

import numpy as np

from knee.core.requests import NEVER, Ints, Requests, column
from knee.engine.config import EngineConfig, FrontEnd

ROW_BITS = 40
ROW_MASK = (1 << ROW_BITS) - 1
FAR = 1 << 62


class NotPlain(Exception):  # noqa: N818 - no error: a case for the general drive
    """Something else than seats and tokens may bind."""


def is_plain(config: EngineConfig) -> bool:
    """Whether an engine is plain as long as its memory is not short."""
    return (
        config.scheduling_policy == "fcfs"
        and not config.long_prefill_token_threshold
        and not config.step_cost.per_context_token_ns
        and config.max_num_queued_reqs is None
        and config.max_num_queued_tokens is None
        and not config.async_scheduling
        and config.front_end == FrontEnd()
    )


class Plain:
    """One open-loop point; instants count from its start, and the columns grow with the schedule."""

    def __init__(self, config: EngineConfig, schedule: Iterator[Requests]) -> None:
        self.config = config
        self._schedule = schedule
        self._drawn: list[Requests] = []
        self.due: list[int] = []
        self.prompt: list[int] = []
        self.output: list[int] = []
        self.blocks: list[int] = []  # each request's blocks at its end
        self.last: list[int] = []
        self.now_ns = 0
        self.steps = 0
        self.offered = 0  # rows before this one have arrived
        self.begun = 0  # rows before this one have been scheduled
        self.decodes = [FAR << ROW_BITS]  # a heap of (steps done at the end, row), and one that never ends
        self.left = 0  # prompt tokens that the last row begun has still to compute
        self.committed = 0  # blocks of all that run, at their ends
        self.memory = config.num_gpu_blocks - int(config.watermark * config.num_gpu_blocks)
        # See `told`; these two are flat, and emptied at the end of each `advance`.
        self._mixed: list[int] = []
        self._quiet: list[int] = []
        self._told: list[tuple[Ints, Ints]] = [(column([]).reshape(-1, 5), column([]).reshape(-1, 4))]

    def advance(self, until_ns: int) -> None:
        """Run until the first step that ends at `until_ns` or later.

        Raises:
            NotPlain: memory might become short.
        """
        while not self.due or self.due[-1] <= until_ns:
            self._draw()
        if self.now_ns < until_ns:
            self._run(until_ns)
        while self.due[-1] < self.now_ns:
            self._draw()
        while self.due[self.offered] < self.now_ns:
            self.offered += 1
        self._told.append((column(self._mixed).reshape(-1, 5), column(self._quiet).reshape(-1, 4)))
        self._mixed.clear()
        self._quiet.clear()

    def columns(self) -> tuple[Ints, Ints, Ints]:
        """Due, prompt and output of every request drawn."""
        if len(self._drawn) > 1:
            self._drawn = [
                Requests(
                    due_ns=np.concatenate([part.due_ns for part in self._drawn]),
                    prompt_tokens=np.concatenate([part.prompt_tokens for part in self._drawn]),
                    output_tokens=np.concatenate([part.output_tokens for part in self._drawn]),
                )
            ]
        drawn = self._drawn[0]
        return drawn.due_ns, drawn.prompt_tokens, drawn.output_tokens

    def told(self) -> tuple[Ints, Ints]:
        """A row for each step with prefill in it, and one for each stretch of like steps without.

        (ns, decodes, end, requests begun so far, tokens left of the last one's prefill), and (ns a step,
        decodes, steps, end of the last).
        """
        mixed, quiet = zip(*self._told, strict=True)
        self._told = [(np.concatenate(mixed), np.concatenate(quiet))]
        return self._told[0]

    def _draw(self) -> None:
        drawn = next(self._schedule)
        longest = int((drawn.prompt_tokens + drawn.output_tokens).max())
        size = self.config.block_size
        if drawn.shared is not None or drawn.follows is not None:
            raise NotPlain
        if longest > self.config.max_model_len or -(-(longest - 1) // size) >= self.memory:
            raise NotPlain
        self._drawn.append(drawn)
        self.due += drawn.due_ns.tolist()
        self.prompt += drawn.prompt_tokens.tolist()
        self.output += drawn.output_tokens.tolist()
        self.blocks += (-((1 - drawn.prompt_tokens - drawn.output_tokens) // size)).tolist()
        self.last += [NEVER] * len(drawn)

    def _run(self, until_ns: int) -> None:  # noqa: C901, PLR0912, PLR0915 - in one piece it is 20 times as fast
        config, cost = self.config, self.config.step_cost
        fixed, per_seq, per_token = cost.fixed_ns, cost.per_seq_ns, cost.per_prefill_token_ns
        seats, all_tokens, memory = config.max_num_seqs, config.max_num_batched_tokens, self.memory
        due, prompt, output, blocks = self.due, self.prompt, self.output, self.blocks
        last, heap, mixed, quiet = self.last, self.decodes, self._mixed, self._quiet
        now, step, arrived, begun = self.now_ns, self.steps, self.offered, self.begun
        left, committed, decoding = self.left, self.committed, len(heap) - 1
        next_due, next_end = due[arrived], heap[0] >> ROW_BITS
        while now < until_ns:
            while next_due <= now:
                arrived += 1
                next_due = due[arrived]
            if left or (begun < arrived and decoding < seats):
                budget, taking = all_tokens - decoding, decoding
                if left:  # the prefill that is unfinished goes on first
                    begun -= 1
                    committed -= blocks[begun]
                while budget and begun < arrived and taking < seats:
                    tokens = left or prompt[begun]
                    committed += blocks[begun]
                    taking += 1
                    if tokens > budget:
                        left = tokens - budget
                        budget = 0
                    else:
                        left = 0
                        budget -= tokens
                        heappush(heap, (step + output[begun] << ROW_BITS) + begun)
                    begun += 1
                if committed >= memory:
                    raise NotPlain
                took = fixed + per_seq * taking + per_token * (all_tokens - decoding - budget)
                now += took
                step += 1
                mixed += (took, decoding, now, begun, left)
                decoding = len(heap) - 1
            elif decoding:
                took = fixed + per_seq * decoding
                steps = next_end - step
                # Who arrives matters if there is a seat for them.
                within = (next_due if next_due < until_ns and decoding < seats else until_ns) - now
                if steps * took > within:
                    steps = -(-within // took)
                now += steps * took
                step += steps
                quiet += (took, decoding, steps, now)
            else:
                now = min(until_ns, next_due)
                continue
            next_end = heap[0] >> ROW_BITS
            if next_end <= step:
                while next_end <= step:
                    row = heappop(heap) & ROW_MASK
                    last[row] = now
                    committed -= blocks[row]
                    next_end = heap[0] >> ROW_BITS
                decoding = len(heap) - 1
        self.now_ns, self.steps, self.offered, self.begun = now, step, arrived, begun
        self.left, self.committed = left, committed
