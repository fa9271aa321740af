"""Plan steps without a look at each decode.

Possible as long as every decode gets its token and, first come first served, only the last running requests
lose their blocks. What comes out is what `Scheduler.schedule` plans.
"""

from knee.engine.request import Request
from knee.engine.scheduler import Scheduler
from knee.engine.step import Step

Chunk = tuple[Request, int]


def schedule_quietly(scheduler: Scheduler) -> Step | None:
    """Plan the next step; None if that takes a look at each decode."""
    config, kv = scheduler.config, scheduler.kv
    chunks = _chunks(scheduler)
    if chunks is None:
        return None
    step = Step()
    needed = scheduler.residues[scheduler.steps % config.block_size]
    if needed + _growth(scheduler, chunks) > kv.free:
        if config.scheduling_policy != "fcfs" or config.long_prefill_token_threshold:
            return None
        needed = _make_room(scheduler, step, chunks)
    step.decodes = len(scheduler.running) - len(scheduler.prefilling)
    step.context_tokens = scheduler.decode_context + step.decodes * (scheduler.steps + 1)
    if needed:
        kv.take(needed)
    budget = config.max_num_batched_tokens - step.decodes
    for request, tokens in chunks:
        kv.grow(request, request.computed, request.computed + tokens)
        step.planned[request] = tokens
        budget -= tokens
    if scheduler.waiting and not step.preempted:
        scheduler.admit(step, budget)
    if step.planned:
        scheduler.advance(step)
    return step


def decode_growth(scheduler: Scheduler, steps: int) -> int:
    """Blocks that those who decode take in the next `steps` steps."""
    size, residues = scheduler.config.block_size, scheduler.residues
    rounds, rest = divmod(steps, size)
    blocks = rounds * (len(scheduler.running) - len(scheduler.prefilling))
    if rest:
        start = scheduler.steps % size
        blocks += sum(residues[start : start + rest])
        if start + rest > size:
            blocks += sum(residues[: start + rest - size])
    return blocks


def _chunks(scheduler: Scheduler) -> list[Chunk] | None:
    """What each unfinished prefill computes next; None if a decode behind it may come off worse."""
    if not scheduler.prefilling:
        return []
    limit = scheduler.config.long_prefill_token_threshold
    decodes = len(scheduler.running) - len(scheduler.prefilling)
    budget = scheduler.config.max_num_batched_tokens - decodes
    chunks = []
    for request in scheduler.prefilling.values():
        tokens = request.target - request.computed
        if limit and tokens > limit:
            tokens = limit
        if tokens > budget:
            if limit:
                return None
            tokens = budget
        budget -= tokens
        chunks.append((request, tokens))
    return chunks


def _growth(scheduler: Scheduler, chunks: list[Chunk]) -> int:
    """Blocks that the chunks take."""
    blocks_for = scheduler.kv.blocks_for
    return sum(
        blocks_for(request.computed + tokens) - blocks_for(request.computed) for request, tokens in chunks
    )


def _make_room(scheduler: Scheduler, step: Step, chunks: list[Chunk]) -> int:
    """Preempt the last that run until the others have what they need; what their decodes need of it."""
    slot = scheduler.steps % scheduler.config.block_size
    while True:
        needed = scheduler.residues[slot]
        if needed + _growth(scheduler, chunks) <= scheduler.kv.free:
            return needed
        victim = next(reversed(scheduler.running.values()))
        if chunks and chunks[-1][0] is victim:
            chunks.pop()
        scheduler.preempt(victim, step)
