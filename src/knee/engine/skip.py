"""Drive an engine through virtual time from change to change: first come, first served.

Between two changes of the batch every step is alike, but for the context that grows by a token a sequence, so
a stretch of steps has a closed form. A request is a row number. Who decodes is known by the step with which
it ends, so that a stretch of decoding touches no request at all, and at most one prefill is unfinished, that
of the last row that runs: rows run, lose their blocks and come back in their order. What happens is what
`scheduler` and `engine` make happen step by step, exactly.
"""

from bisect import bisect_left, insort
from math import isqrt

from knee.core.requests import NEVER
from knee.engine.batch import ROW_BITS, ROW_MASK, Batch, Redo
from knee.engine.config import EngineConfig
from knee.engine.hurry import hurry

NEW: Redo = 0, NEVER, None


def can_skip(config: EngineConfig) -> bool:
    """Whether rows keep their order, decodes never wait for tokens, and clients have each token at once."""
    return (
        config.scheduling_policy == "fcfs"
        and not config.long_prefill_token_threshold
        and not config.front_end.per_token_ns
    )


class Skip(Batch):
    """The requests of `columns` on an idle engine. Instants count from the start of the point."""

    def advance(self, until_ns: int) -> None:
        """Run until the first step that ends at `until_ns` or later."""
        columns, running, ends = self.columns, self.running, self.ends
        columns.draw_until(until_ns)
        self.watch()
        while self.now_ns < until_ns:
            short = not self.watched and not self.left and hurry(self, until_ns)
            if self.now_ns >= until_ns:
                break
            if columns.due[self.arrived] <= self.now_ns:
                self.arrive(self.now_ns)
            waits = self.begun < self.queued or bool(self.again)
            joins = waits and not self.blocked and len(running) < self.seats
            moves = short or self.left or joins or self.leaving or self.queued < self.arrived
            if moves or (running and not self._decode(until_ns)):
                self._step(short)
            elif not running:
                self.now_ns = min(until_ns, columns.due[self.arrived])
                continue
            if self.watched:
                self.arrive(self.now_ns - 1)
                self.queued_tokens -= self.spoken_tokens
            self.spoken_tokens = 0
            if ends[0] >> ROW_BITS <= self.steps:
                self.end()
        self.arrive(self.now_ns - 1)

    def _decode(self, until_ns: int) -> bool:
        """Let as many steps run as change nothing but by decoding; False if there is none."""
        kv, cost, now_ns = self.kv, self.config.step_cost, self.now_ns
        done, decodes = self.steps, len(self.running)
        steps = (self.ends[0] >> ROW_BITS) - done
        if decodes < self.seats and self.begun == self.queued and not self.again:
            until_ns = min(until_ns, self.columns.due[self.arrived])
        longer_ns = cost.per_context_token_ns * decodes
        first_ns = cost.fixed_ns + cost.per_seq_ns * decodes
        if longer_ns:
            first_ns += cost.per_context_token_ns * (self.context + decodes * (done + 1))
            steps = min(steps, steps_within(first_ns, longer_ns, until_ns - now_ns))
        elif steps * first_ns > until_ns - now_ns:
            steps = -(-(until_ns - now_ns) // first_ns)
        growth = self.growth(steps)
        if growth > kv.free:
            steps = self._steps_that_fit(steps)
            if not steps:
                return False
            growth = self.growth(steps)
        kv.free -= growth
        self.pool.owed += growth
        self.steps = done + steps
        self.now_ns = now_ns + steps * first_ns + longer_ns * (steps * (steps - 1) // 2)
        self.quiet += (decodes, steps, self.now_ns)
        if longer_ns:
            self.firsts.append(first_ns)
        return True

    def _steps_that_fit(self, most: int) -> int:
        """The largest number of decoding steps, up to `most`, for which there are blocks."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.growth(middle) > self.kv.free:
                high = middle - 1
            else:
                low = middle
        return low

    def _step(self, lost: bool = False) -> None:
        """One step that is planned: with prefill in it, or for which there are, or were, too few blocks."""
        kv, steps, config = self.kv, self.steps, self.config
        decodes = len(self.running)
        growth, chunk, context = self.residues[steps % self.size], 0, 0
        if self.left:
            chunk = min(self.left, config.max_num_batched_tokens - decodes)
            growth += self._chunk_growth(chunk)
        lost = lost or growth > kv.free
        while growth > kv.free:  # the last that runs loses its blocks
            self.preempt()
            decodes, chunk, growth = len(self.running), 0, self.residues[steps % self.size]
        kv.free -= growth
        self.pool.owed += growth
        taking, budget = decodes, config.max_num_batched_tokens - decodes - chunk
        if self.context_counts:
            context = self.context + decodes * (steps + 1)
        if chunk:
            taking += 1
            context += self._compute(chunk)
        if not taking or not (lost or (self.blocked and kv.free < self.lacking)):
            self.blocked = False
            budget, taking, context = self._admit(budget, taking, context)
        if self.leaving or self.queued < self.arrived:
            self.catch_up()
            if not taking:
                self._step()
                return
        prefill = config.max_num_batched_tokens - decodes - budget
        took_ns = config.step_cost.step_ns(taking, prefill, context)
        self.now_ns = now_ns = self.now_ns + took_ns
        self.steps = steps + 1
        self.mixed += (took_ns, decodes, now_ns, self.begun, self.spoken)

    def _chunk_growth(self, chunk: int) -> int:
        have = self.target - self.left
        return -(-(have + chunk) // self.size) + (-have // self.size)

    def _compute(self, chunk: int) -> int:
        """Go on with the unfinished prefill; its context."""
        row, have = self.last_row, self.target - self.left
        self.left -= chunk
        if row in self.leases:
            self.pool.extend(self.leases[row], have // self.size, (have + chunk) // self.size)
        if not self.left:
            self._begin_to_decode(row)
        return have + chunk

    def _admit(self, budget: int, taking: int, context: int) -> tuple[int, int, int]:
        """Let waiting rows join while `budget` tokens, seats and blocks last; what becomes of the sums."""
        while budget and (self.again or self.begun < self.queued) and not self.blocked:
            if taking >= self.seats - len(self.leaving):
                break
            budget, taking, context = self.join(budget, taking, context)
        return budget, taking, context

    def join(self, budget: int, taking: int, context: int) -> tuple[int, int, int]:
        """Let the first row that waits join, unless it lacks blocks; what becomes of the sums."""
        kv, size, pool, again, columns = self.kv, self.size, self.pool, self.again, self.columns
        row, made, last_ns, own = self.begun, 0, NEVER, None
        if again:
            row = again[-1]
            made, last_ns, own = self.redo[row]
        text, target = columns.shared[row], columns.prompt[row] + made
        cached, idle = pool.hit(text, own, (target - 1) // size)
        have = cached * size
        after = min(have + budget, target)
        filled = -(-after // size)
        needed = (-(-target // size) if kv.reserve_full else filled) - cached + idle
        if taking or self.leaving:
            needed += kv.watermark
        if needed > kv.free:
            # Who holds text of it may leave, and others lose it; it never needs fewer free blocks.
            self.blocked, self.lacking = True, needed * kv.reserve_full
            return budget, taking, context
        if again:
            again.pop()
        else:
            self.begin()
            if cached:
                self.hits += (row, have)
        if text:
            lease = self.leases[row] = pool.acquire(text, own, cached)
            pool.extend(lease, cached, after // size)
        elif own is not None:
            pool.acquire(text, own, cached)
        kv.free -= filled - cached + idle
        pool.owed += filled - cached
        if after < target:
            self.last_row, self.target, self.left = row, target, target - after
            if made:
                self.redo[row] = made, last_ns, None
        else:
            self._begin_to_decode(row)
        return budget + have - after, taking + 1, context + after

    def _begin_to_decode(self, row: int) -> None:
        """Its prefill is complete: with this step it gets its first token, or the next one."""
        columns = self.columns
        output = columns.output[row]
        end = self.steps + output
        made, last_ns, _ = self.redo.pop(row, NEW)
        if made:
            end -= made
            self.late += (last_ns, len(self.mixed) // 5)
        else:
            self.spoken = self.begun
            self.spoken_tokens += columns.prompt[row]
        self.running[row] = end
        insort(self.ends, (end << ROW_BITS) + row)
        offset = columns.prompt[row] + output - 1 - end
        self.context += offset
        self.residues[-offset % self.size] += 1

    def preempt(self) -> None:
        """The last row that runs loses its seat and its blocks; it starts over when it is its turn again."""
        columns = self.columns
        if self.left:
            row, target, tokens = self.last_row, self.target, self.target - self.left
            made, last_ns, _ = self.redo.get(row, NEW)
            self.left = 0
        else:
            row, end = self.running.popitem()
            made, last_ns = columns.output[row] - (end - self.steps), self.now_ns
            target = columns.prompt[row] + made
            tokens = target - 1
            self.context -= tokens - self.steps
            self.residues[(self.steps - tokens) % self.size] -= 1
            del self.ends[bisect_left(self.ends, (end << ROW_BITS) + row)]
        lease, blocks = self.leases.pop(row, self.pool.nothing), -(-tokens // self.size)
        freed, own = self.pool.release(lease, blocks, tokens // self.size, self.caching)
        self.kv.free += freed
        self.redo[row] = made, last_ns, own
        self.again.append(row)
        self.lost.append(row)
        # It cannot come back before what it gave is free, unless its text is held twice.
        self.blocked = self.kv.reserve_full and not lease.copying
        self.lacking = freed - blocks - (-target // self.size)

    def end(self) -> None:
        """Rows have all their tokens: their seats and blocks are free, with async scheduling a step later."""
        columns, running, ends, steps, size = self.columns, self.running, self.ends, self.steps, self.size
        kv, pool, leases, ahead = self.kv, self.pool, self.leases, self.config.async_scheduling
        done: list[int] = []
        while ends[0] >> ROW_BITS <= steps:
            row = ends.pop(0) & ROW_MASK
            del running[row]
            tokens = columns.prompt[row] + columns.output[row] - 1
            self.residues[(steps - tokens) % size] -= 1
            columns.last[row] = self.now_ns
            done.append(row)
            if self.watched:
                self.context -= tokens - steps
                if ahead:
                    self.leaving.append(row)
                    continue
            lease = leases.pop(row, pool.nothing)
            if lease.holders > 1:
                lease.holders -= 1
                blocks = -(-tokens // size) - lease.blocks
                kv.free += blocks
                pool.loose += blocks
            else:
                kv.free += pool.release(lease, -(-tokens // size), tokens // size)[0]
        if self.blocked and (kv.free >= self.lacking or not running):
            self.blocked = False
        if ahead and not (running or self.left or self.behind()):
            self.catch_up()
        columns.ended(done, self.now_ns)
        self.watch()


def steps_within(first_ns: int, longer_ns: int, within_ns: int) -> int:
    """The least number of steps that take `within_ns` or longer, each `longer_ns` longer than the last."""
    # m steps take m * first + longer * m (m - 1) / 2.
    b = 2 * first_ns - longer_ns
    steps = max(1, (isqrt(b * b + 8 * longer_ns * within_ns) - b) // (2 * longer_ns))
    while steps * (2 * first_ns + longer_ns * (steps - 1)) < 2 * within_ns:
        steps += 1
    return steps
