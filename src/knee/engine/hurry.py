"""The ordinary part of `skip` at full speed: in one piece and on local names.

Ordinary is that decodes go on until the next change and have the blocks they need, that rows join whose whole
shared text somebody holds, or who share none, and that rows end. Whatever else comes up is left to `Skip`.
"""

from bisect import insort
from typing import TYPE_CHECKING

from knee.core.requests import NEVER
from knee.engine.batch import ROW_BITS, ROW_MASK
from knee.engine.columns import FAR_NS

if TYPE_CHECKING:
    from knee.engine.skip import Skip


def hurry(skip: "Skip", until_ns: int) -> bool:  # noqa: C901, PLR0912, PLR0915 - in pieces it is half as fast
    """Run until the first step that ends at `until_ns` or later, or until something out of the ordinary.

    Whether that is that somebody loses blocks with the next step, and may be back with the one after it.
    """
    kv, columns, cost, again, leases = skip.kv, skip.columns, skip.config.step_cost, skip.again, skip.leases
    due, prompt, output, shared, last = columns.due, columns.prompt, columns.output, columns.shared, columns.last
    running, ends, residues, size, pool = skip.running, skip.ends, skip.residues, skip.size, skip.pool
    fixed, per_seq, per_token = cost.fixed_ns, cost.per_seq_ns, cost.per_prefill_token_ns
    seats, all_tokens, whole, hits = skip.seats, skip.config.max_num_batched_tokens, pool.whole, skip.hits
    goal, now, steps, begun, arrived, spoken = (
        until_ns, skip.now_ns, skip.steps, skip.begun, skip.arrived, skip.spoken
    )  # fmt: skip
    mixed, quiet, next_due, next_end = skip.mixed, skip.quiet, due[arrived], ends[0] >> ROW_BITS
    free, owed, decodes, closed, short = kv.free, 0, len(running), columns.closed, False
    while now < goal:
        while next_due <= now:
            arrived += 1
            next_due = due[arrived]
        if not skip.blocked and decodes < seats and (begun < arrived or again):
            blocks, budget, taking = residues[steps % size], all_tokens - decodes, decodes
            if short := blocks > free:
                break
            free, owed = free - blocks, owed + blocks
            while budget and taking < seats and (begun < arrived or again):
                tokens = 0  # means: out of the ordinary
                if not again:
                    tokens, text = prompt[begun], shared[begun]
                    if text:
                        lease = whole.get(text)
                        tokens = 0 if lease is None else tokens - lease.tokens
                if not 0 < tokens <= budget:
                    kv.free, pool.owed, skip.steps, owed = free, pool.owed + owed, steps, 0
                    skip.begun, skip.spoken, skip.queued, skip.arrived = begun, spoken, arrived, arrived
                    budget, taking, _ = skip.join(budget, taking, 0)
                    begun, spoken, free = skip.begun, skip.spoken, kv.free
                    if skip.blocked:
                        break
                    if skip.left:
                        goal = NEVER
                    continue
                blocks, kept = -(-tokens // size), kv.watermark if taking else 0
                if blocks + kept > free:
                    skip.blocked, skip.lacking = True, (blocks + kept) * kv.reserve_full
                    break
                if text:
                    leases[begun] = lease
                    lease.holders += 1
                    hits += (begun, lease.tokens)
                free, owed, budget, taking = free - blocks, owed + blocks, budget - tokens, taking + 1
                running[begun] = end = steps + output[begun]
                insort(ends, (end << ROW_BITS) + begun)
                residues[(steps + 1 - prompt[begun]) % size] += 1
                begun = spoken = begun + 1
            took = fixed + per_seq * taking + per_token * (all_tokens - decodes - budget)
            steps, now, next_end = steps + 1, now + took, ends[0] >> ROW_BITS
            mixed += (took, decodes, now, begun, spoken)
            decodes = len(running)
        elif decodes:
            took, count, first = fixed + per_seq * decodes, next_end - steps, steps % size
            within = until_ns - now
            if next_due < until_ns and decodes < seats and begun == arrived and not again:
                within = next_due - now
            if count * took > within:
                count = -(-within // took)
            blocks = residues[first] if count == 1 else sum(residues[first : first + count])
            if first + count > size:
                blocks += ((first + count) // size - 1) * decodes + sum(residues[: (first + count) % size])
            if blocks > free:
                while blocks > free:
                    count -= 1
                    blocks -= residues[(steps + count) % size]
                if not count:  # the last that runs loses its blocks
                    skip.now_ns, skip.steps, kv.free = now, steps, free
                    skip.preempt()
                    free, decodes, next_end = kv.free, len(running), ends[0] >> ROW_BITS
                    if short := not skip.blocked:
                        break
                    continue
            free, owed, steps, now = free - blocks, owed + blocks, steps + count, now + count * took
            quiet += (took, 0, decodes, count, now)
        else:
            now = min(until_ns, next_due)
        if next_end <= steps:
            done = []
            while next_end <= steps:
                row = ends.pop(0) & ROW_MASK
                next_end = ends[0] >> ROW_BITS
                del running[row]
                done.append(row)
                last[row] = now
                tokens = prompt[row] + output[row] - 1
                residues[(steps - tokens) % size] -= 1
                blocks = -(-tokens // size)
                if row in leases:
                    lease = leases.pop(row)
                    if lease.holders == 1:
                        free += pool.release(lease, blocks, tokens // size)[0]
                        continue
                    lease.holders -= 1
                    blocks -= lease.blocks
                free += blocks
                pool.loose += blocks
            decodes = len(running)
            if skip.blocked and (free >= skip.lacking or not decodes):
                skip.blocked = False
            if closed and arrived + len(done) <= len(prompt):
                due[arrived:] = [now] * len(done) + [FAR_NS]
                arrived += len(done)
            elif columns.waits:
                columns.ended(done, now)
                next_due = due[arrived]
                skip.watch()
                if skip.watched:
                    goal = NEVER
    skip.now_ns, skip.steps, skip.begun, skip.spoken = now, steps, begun, spoken
    skip.queued = skip.arrived = arrived
    kv.free, pool.owed = free, pool.owed + owed
    return short
