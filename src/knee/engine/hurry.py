"""The ordinary part of `skip` at full speed: in one piece and on local names.

Ordinary is that decodes go on until the next change and have the blocks they need, that rows join whose whole
shared text somebody holds, or who share none, and that rows end. Whatever else comes up is left to `Skip`.
"""

from bisect import insort
from typing import TYPE_CHECKING

from knee.engine.batch import ROW_BITS, ROW_MASK

if TYPE_CHECKING:
    from knee.engine.skip import Skip


def hurry(skip: "Skip", until_ns: int) -> None:  # noqa: C901, PLR0912, PLR0915 - in pieces it is half as fast
    """Run until the first step that ends at `until_ns` or later, or until something out of the ordinary."""
    kv, columns, cost, again, leases = skip.kv, skip.columns, skip.config.step_cost, skip.again, skip.leases
    due, prompt, output, shared = columns.due, columns.prompt, columns.output, columns.shared
    running, ends, residues, size, pool = skip.running, skip.ends, skip.residues, skip.size, skip.pool
    fixed, per_seq, per_token = cost.fixed_ns, cost.per_seq_ns, cost.per_prefill_token_ns
    seats, all_tokens, whole = skip.seats, skip.config.max_num_batched_tokens, pool.whole
    now, steps, decodes, begun, arrived = skip.now_ns, skip.steps, len(running), skip.begun, skip.arrived
    mixed, quiet, next_due, next_end = skip.mixed, skip.quiet, due[arrived], -ends[-1] >> ROW_BITS
    while now < until_ns and not skip.left and not skip.watched:
        while next_due <= now:
            arrived += 1
            next_due = due[arrived]
        if decodes < seats and not skip.blocked and (begun < arrived or again):
            taken, budget, taking = residues[steps % size], all_tokens - decodes, decodes
            if taken > kv.free:
                break
            while budget and taking < seats and (begun < arrived or again):
                text = shared[begun]
                lease = whole.get(text)
                tokens = 0 if lease is None or again else prompt[begun] - lease.tokens
                if lease is None or not 0 < tokens <= budget:
                    pool.owed, kv.free, skip.steps, taken = pool.owed + taken, kv.free - taken, steps, 0
                    skip.begun = begun
                    skip.queued = skip.arrived = arrived
                    budget, taking, _ = skip.admit(budget, taking, 0)
                    begun = skip.begun
                    break
                blocks, kept = -(-tokens // size), kv.watermark if taking else 0
                if blocks + taken + kept > kv.free:
                    skip.blocked, skip.lacking = True, (blocks + kept) * kv.reserve_full
                    break
                if text:
                    leases[begun] = lease
                    lease.holders += 1
                    skip.hits += (begun, lease.tokens)
                taken, budget, taking = taken + blocks, budget - tokens, taking + 1
                running[begun] = end = steps + output[begun]
                insort(ends, -((end << ROW_BITS) + begun))
                residues[(steps + 1 - prompt[begun]) % size] += 1
                begun += 1
                skip.spoken = begun
            took = fixed + per_seq * taking + per_token * (all_tokens - decodes - budget)
            steps, now, next_end = steps + 1, now + took, -ends[-1] >> ROW_BITS
            mixed += (took, decodes, now, begun, skip.spoken)
        elif decodes:
            within = (next_due if next_due < until_ns and decodes < seats and begun == arrived and not again else until_ns) - now
            took, first = fixed + per_seq * decodes, steps % size
            count = min(next_end - steps, -(-within // took))
            taken = sum(residues[first : first + count])
            if first + count > size:
                taken += ((first + count) // size - 1) * decodes + sum(residues[: (first + count) % size])
            if taken > kv.free:
                break
            steps, now = steps + count, now + count * took
            quiet += (took, 0, decodes, count, now)
        else:
            taken, now = 0, min(until_ns, next_due)
        kv.free, pool.owed = kv.free - taken, pool.owed + taken
        if next_end <= steps:
            skip.now_ns, skip.steps, skip.begun = now, steps, begun
            skip.queued = skip.arrived = arrived
            skip.end()
            arrived = skip.arrived
            next_due, next_end = due[arrived], -ends[-1] >> ROW_BITS
        decodes = len(running)
    skip.now_ns, skip.steps, skip.begun = now, steps, begun
    skip.queued = skip.arrived = arrived
