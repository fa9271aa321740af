"""The ordinary part of `skip` at full speed: in few pieces, and on names that are looked up once.

Ordinary is that decodes go on until the next change, that rows join whose whole shared text somebody holds,
or who share none, that rows end, and that the last loses its blocks. All else is left to `Skip`, such as the
step that nobody joins because others lose their blocks with it.

What is free is a local name; `kv.free` holds what was free when the cache was last told of blocks taken, and
what came back since, so that the difference is what it has to be told of.
"""

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import TYPE_CHECKING

from knee.core.requests import NEVER
from knee.engine.batch import ROW_BITS, ROW_MASK

if TYPE_CHECKING:
    from knee.engine.skip import Skip


def hurry(skip: "Skip", until_ns: int) -> bool:  # noqa: C901, PLR0912, PLR0915 - in smaller pieces it is half as fast
    """Run until a step ends at `until_ns` or later, or till what is not ordinary; True if blocks are lost."""
    kv, pool, cost, due, again, running, ends = (
        skip.kv, skip.pool, skip.config.step_cost, skip.columns.due, skip.again, skip.running, skip.ends
    )  # fmt: skip
    residues, size, seats, mixed, quiet = skip.residues, skip.size, skip.seats, skip.mixed, skip.quiet
    fixed, per_seq, join, end = cost.fixed_ns, cost.per_seq_ns, _joining(skip), _ending(skip)
    now, steps, begun, arrived, decodes = skip.now_ns, skip.steps, skip.begun, skip.arrived, len(running)
    goal, next_due, next_end, short, free = until_ns, due[arrived], ends[0] >> ROW_BITS, False, kv.free
    while now < goal:
        while next_due <= now:
            arrived += 1
            next_due = due[arrived]
        if not skip.blocked and decodes < seats and (begun < arrived or again):
            blocks = residues[steps % size]
            if short := blocks > free:
                break
            took, begun, free = join(steps, decodes, begun, arrived, free - blocks)
            steps, now, next_end = steps + 1, now + took, ends[0] >> ROW_BITS
            mixed += (took, decodes, now, begun, skip.spoken)
            decodes = len(running)
            goal = NEVER if skip.left else goal
        elif decodes:
            took, count, stop = fixed + per_seq * decodes, next_end - steps, until_ns
            first = steps % size
            if next_due < until_ns and decodes < seats and begun == arrived and not again:
                stop = next_due
            if now + count * took > stop:
                count = -((now - stop) // took)
            blocks = residues[first] if count == 1 else sum(residues[first : first + count])
            if first + count > size:
                blocks += ((first + count) // size - 1) * decodes + sum(residues[: (first + count) % size])
            while blocks > free:
                count -= 1
                blocks -= residues[(steps + count) % size]
            if not count:  # the last that runs loses its blocks
                skip.now_ns, skip.steps = now, steps
                pool.owed += kv.free - free
                kv.free = free
                skip.preempt()
                free, decodes, next_end = kv.free, len(running), ends[0] >> ROW_BITS
                if short := not skip.blocked:
                    break
                continue
            free, steps, now = free - blocks, steps + count, now + count * took
            quiet += (decodes, count, now)
        else:
            now = min(until_ns, next_due)
        if next_end <= steps:
            free, decodes = free + end(steps, now), len(running)
            next_due, next_end = due[arrived], ends[0] >> ROW_BITS
            if skip.blocked and (free >= skip.lacking or not decodes):
                skip.blocked = False
            goal = NEVER if skip.watched else goal
    skip.now_ns, skip.steps, skip.begun, skip.queued, skip.arrived = now, steps, begun, arrived, arrived
    pool.owed += kv.free - free
    kv.free = free
    return short


def _joining(skip: "Skip") -> Callable[[int, int, int, int, int], tuple[int, int, int]]:
    kv, columns, cost, again, leases = skip.kv, skip.columns, skip.config.step_cost, skip.again, skip.leases
    prompt, output, shared, pool = columns.prompt, columns.output, columns.shared, skip.pool
    whole, absent = pool.whole, pool.absent
    running, ends, residues, size = skip.running, skip.ends, skip.residues, skip.size
    fixed, per_seq, per_token, anew = (
        cost.fixed_ns, cost.per_seq_ns, cost.per_prefill_token_ns, cost.per_prefill_step_ns
    )  # fmt: skip
    seats, all_tokens, watermark, reserve_full = (
        skip.seats, skip.config.max_num_batched_tokens, kv.watermark, kv.reserve_full
    )  # fmt: skip

    def join(steps: int, decodes: int, begun: int, arrived: int, free: int) -> tuple[int, int, int]:
        """Rows join a step; what it takes, and what is new. `free` blocks are, but for the decodes'."""
        budget, taking = all_tokens - decodes, decodes
        while budget and taking < seats and (begun < arrived or again):
            if again:
                tokens = 0
            elif text := shared[begun]:
                lease = whole.get(text, absent)
                tokens = prompt[begun] - lease.tokens
            else:
                tokens = prompt[begun]
            blocks = -(-tokens // size)
            if blocks + watermark > free and (taking or blocks > free) and (tokens <= budget or reserve_full):
                skip.blocked, skip.lacking = True, blocks * reserve_full
                break
            if not 0 < tokens <= budget:  # out of the ordinary
                pool.owed += kv.free - free
                kv.free = free
                skip.steps, skip.begun, skip.queued = steps, begun, arrived
                budget, taking, _ = skip.join(budget, taking, 0)
                begun, free = skip.begun, kv.free
                if skip.blocked:
                    break
                continue
            if text:
                leases[begun] = lease
                lease.holders += 1
                skip.hits += (begun, lease.tokens)
            free, budget, taking = free - blocks, budget - tokens, taking + 1
            running[begun] = last = steps + output[begun]
            insort(ends, (last << ROW_BITS) + begun)
            residues[(steps + 1 - prompt[begun]) % size] += 1
            begun += 1
            skip.spoken = begun
        tokens = all_tokens - decodes - budget
        return fixed + per_seq * taking + (anew + per_token * tokens if tokens else 0), begun, free

    return join


def _ending(skip: "Skip") -> Callable[[int, int], int]:
    kv, pool, columns, leases, residues = skip.kv, skip.pool, skip.columns, skip.leases, skip.residues
    prompt, output, last, due = columns.prompt, columns.output, columns.last, columns.due
    running, ends, size, closed, followers = (
        skip.running, skip.ends, skip.size, columns.closed, columns.followers
    )  # fmt: skip

    def end(steps: int, now: int) -> int:
        """Rows have all their tokens: how many blocks are free that were not."""
        freed = 0
        if followers:
            ended = bisect_left(ends, steps + 1 << ROW_BITS)
            done = [entry & ROW_MASK for entry in ends[:ended]]
        while ends[0] >> ROW_BITS <= steps:
            row = ends.pop(0) & ROW_MASK
            del running[row]
            last[row] = now
            tokens = prompt[row] + output[row] - 1
            residues[(steps - tokens) % size] -= 1
            blocks = -(-tokens // size)
            if closed:  # its client sends the next one
                due.insert(-1, now)
            if row in leases:
                lease = leases.pop(row)
                if lease.holders == 1:
                    freed += pool.release(lease, blocks, tokens // size)[0]
                    continue
                lease.holders -= 1
                blocks -= lease.blocks
            freed += blocks
            pool.loose += blocks
        if closed and len(due) > len(prompt) + 1:
            columns.fill()
            skip.watch()
        if followers:
            columns.ended(done, now)
        kv.free += freed
        return freed

    return end
