"""Drive an engine from change to change where `skip` cannot: by priority, or with a prefill threshold.

Between two changes of the batch every step is alike, but for the context that grows by a token a sequence,
so a stretch of steps has a closed form. What happens is what `drive.step_until` makes happen, exactly.
"""

from knee.engine.drive import Load, offer
from knee.engine.engine import Engine
from knee.engine.quiet import decode_growth, schedule_quietly
from knee.engine.scheduler import Scheduler
from knee.engine.skip import steps_within
from knee.engine.step import Step

FAR_NS = 1 << 62


def leap_until(engine: Engine, load: Load, now_ns: int, until_ns: int) -> int:
    """Run `engine` under `load` from `now_ns`; the end of the first step not before `until_ns`.

    A request that comes at the instant at which a step ends finds it ended.
    """
    upcoming = load.upcoming
    while now_ns < until_ns:
        if upcoming and upcoming[0].arrival_ns <= now_ns:
            offer(engine, load, now_ns)
        if not engine.requests:
            now_ns = min(until_ns, upcoming[0].arrival_ns) if upcoming else until_ns
            continue
        steps = quiet_steps(engine, min(until_ns, _next_change_ns(engine, load)) - now_ns)
        now_ns = engine.decode(steps, now_ns) if steps else engine.begin(_plan(engine), now_ns)
        if upcoming and upcoming[0].arrival_ns < now_ns:
            offer(engine, load, now_ns - 1)
        done = engine.settle(now_ns)
        if done:
            load.ended(done)
    return now_ns


def _plan(engine: Engine) -> Step:
    """The next step, quietly if the last one gave every decode its token."""
    return engine.scheduler.plan(None if engine.uneven else schedule_quietly(engine.scheduler))


def quiet_steps(engine: Engine, within_ns: int) -> int:
    """How many steps, up to the first that ends `within_ns` or later, change nothing but by decoding.

    The last of them may be one with which requests end. 0 if the next step must be planned.
    """
    scheduler = engine.scheduler
    if scheduler.prefilling or engine.uneven or not scheduler.ending:
        return 0
    if scheduler.incoming or scheduler.leaving:
        return 0
    seats = engine.config.max_num_seqs - len(scheduler.running)
    if seats and scheduler.waiting and scheduler.waiting.head() is not scheduler.blocked:
        return 0
    steps = scheduler.ending[0] - scheduler.steps
    if steps > 1:
        steps = min(steps, _steps_within(engine, within_ns))
    if decode_growth(scheduler, steps) > scheduler.kv.free:
        return _steps_that_fit(scheduler, steps)
    return steps


def _next_change_ns(engine: Engine, load: Load) -> int:
    """When the next arrival may join the batch; later ones wait for someone to end anyway."""
    scheduler = engine.scheduler
    if not load.upcoming or len(scheduler.running) >= engine.config.max_num_seqs:
        return FAR_NS
    if scheduler.waiting and engine.config.scheduling_policy == "fcfs":
        return FAR_NS
    return load.upcoming[0].arrival_ns


def _steps_within(engine: Engine, within_ns: int) -> int:
    """The least number of decoding steps that take `within_ns` or longer."""
    scheduler, cost = engine.scheduler, engine.config.step_cost
    decodes = len(scheduler.running)
    first_ns = cost.step_ns(decodes, 0, scheduler.decode_context + decodes * (scheduler.steps + 1))
    longer_ns = cost.per_context_token_ns * decodes
    if not longer_ns:
        return -(-within_ns // first_ns)
    return steps_within(first_ns, longer_ns, within_ns)


def _steps_that_fit(scheduler: Scheduler, most: int) -> int:
    """The largest number of decoding steps, up to `most`, for which there are blocks."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if decode_growth(scheduler, middle) > scheduler.kv.free:
            high = middle - 1
        else:
            low = middle
    return low
