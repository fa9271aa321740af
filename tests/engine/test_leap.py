"""Two drives of one state machine: whatever the configuration, `leap` and `step` tell the same story."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from tests.engine.worlds import EXAMPLES, World, worlds

from knee.engine.drive import step_until
from knee.engine.engine import Engine
from knee.engine.leap import leap_until
from knee.engine.request import Request

Drive = Callable[..., int]
END = 1_000_000


def _run(world: World, drive: Drive) -> dict[str, Any]:
    engine, load, now = Engine(world.config), world.load(), 0
    engine.metrics.keep_gaps = True
    gaps: Counter[int] = Counter()
    at_cuts = []
    for until in (*world.cuts, END):
        now = drive(engine, load, now, max(now, until))
        for ns, count, _ in engine.metrics.take_gaps().tolist():
            gaps[ns] += count
        states = [(r.id, *rest) for r, *rest in engine.unfinished()]
        at_cuts.append((now, engine.gauges(), engine.scheduler.steps, states, engine.metrics.counters()))
    return {
        "at cuts": at_cuts,
        "requests": [_story(request) for request in load.all],
        "refusals": load.refusals,
        "order": load.order,
        "gaps": gaps,
        "left": len(engine.requests),
        "histograms": engine.metrics.histograms(),
        "free": engine.scheduler.kv.free,
    }


def _story(request: Request) -> tuple[object, ...]:
    return (
        request.id, request.queued_ns, request.scheduled_ns, request.first_ns, request.last_ns,
        request.finished_ns, request.preemptions, request.cached_tokens,
    )  # fmt: skip


@settings(max_examples=EXAMPLES, deadline=None)
@given(worlds())
def test_leap_is_step(world: World) -> None:
    by_step, by_leap = _run(world, step_until), _run(world, leap_until)
    for part, value in by_step.items():
        assert by_leap[part] == value, part
    assert by_step["left"] == 0
    assert by_step["free"] == world.config.num_gpu_blocks - 1
