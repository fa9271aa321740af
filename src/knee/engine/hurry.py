"""The ordinary part of `skip` at full speed: in one piece and on local names.

Ordinary is that decodes go on until the next change and have the blocks they need, and that rows join whose
whole shared text somebody holds, or who share none. Whatever else comes up is left to `Skip`.
"""

from heapq import heappush
from typing import TYPE_CHECKING

from knee.engine.batch import ROW_BITS

if TYPE_CHECKING:
    from knee.engine.skip import Skip


def hurry(skip: "Skip", until_ns: int) -> None:  # noqa: C901, PLR0912, PLR0915 - in pieces it is half as fast
    """Run until the first step that ends at `until_ns` or later, or until something out of the ordinary."""
    kv, columns, cost, redo, leases = skip.kv, skip.columns, skip.config.step_cost, skip.redo, skip.leases
    due, prompt, output, shared = columns.due, columns.prompt, columns.output, columns.shared
    waiting, running, ends, residues = skip.waiting, skip.running, skip.ends, skip.residues
    fixed, per_seq, per_token = cost.fixed_ns, cost.per_seq_ns, cost.per_prefill_token_ns
    size, seats, all_tokens, pool = skip.size, skip.seats, skip.config.max_num_batched_tokens, skip.pool
    now, steps, decodes, whole = skip.now_ns, skip.steps, len(running), pool.whole
    mixed, quiet, next_due, next_end = skip.mixed, skip.quiet, due[skip.arrived], ends[0] >> ROW_BITS
    while now < until_ns and not skip.left and not skip.watched:
        if next_due <= now:
            skip.arrive(now)
            next_due = due[skip.arrived]
        if waiting and not skip.blocked and decodes < seats:
            taken, budget, taking = residues[steps % size], all_tokens - decodes, decodes
            if taken > kv.free:
                break
            while waiting and budget and taking < seats:
                row = waiting[0]
                lease = whole.get(shared[row])
                tokens = 0 if lease is None or row in redo else prompt[row] - lease.tokens
                if lease is None or not 0 < tokens <= budget:
                    pool.owed, kv.free, skip.steps, taken = pool.owed + taken, kv.free - taken, steps, 0
                    budget, taking, _ = skip.admit(budget, taking, 0)
                    break
                blocks, kept = -(-tokens // size), kv.watermark if taking else 0
                if blocks + taken + kept > kv.free:
                    skip.blocked, skip.lacking = True, (blocks + kept) * kv.reserve_full
                    break
                leases[waiting.popleft()] = lease
                lease.holders += 1
                if lease.tokens:
                    skip.cached[row] = lease.tokens
                skip.begun += 1
                taken, budget, taking = taken + blocks, budget - tokens, taking + 1
                running[row] = steps + output[row]
                heappush(ends, (steps + output[row] << ROW_BITS) + row)
                residues[(steps + 1 - prompt[row]) % size] += 1
            took = fixed + per_seq * taking + per_token * (all_tokens - decodes - budget)
            steps, now, next_end = steps + 1, now + took, ends[0] >> ROW_BITS
            mixed += (took, decodes, now, skip.begun, skip.silent)
        elif decodes:
            within = (next_due if next_due < until_ns and decodes < seats and not waiting else until_ns) - now
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
            skip.now_ns, skip.steps = now, steps
            skip.end()
            next_due, next_end = due[skip.arrived], ends[0] >> ROW_BITS
        decodes = len(running)
    skip.now_ns, skip.steps = now, steps
