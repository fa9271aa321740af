"""A sweep: search steps, or given rates, against one target; every point is kept as soon as it is there."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from knee.core.point import Knee, Point
from knee.core.run import MANIFEST, POINTS, SNAPSHOTS, append_lines, write_atomically
from knee.core.slo import Slo
from knee.core.units import NS_PER_S
from knee.measure.search.budget import Step
from knee.measure.search.steps import Search
from knee.measure.target import Measured, Offer, Target
from knee.measure.watching import watch_point
from knee.workload.spec import Workload

SETTLE_LIMIT_NS = 120 * NS_PER_S

MakePoint = Callable[[Measured, Offer, Slo], Point]
"""Turns what a target measured into a point; a live target's also says whether the point is valid."""


def _say_nothing(*_: object) -> None:
    pass


class Recorder(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of each point: how it is made, where it is kept, who is told.

    `tell` hears of a step before it is measured, `told` of the point that came of it.
    """

    make_point: MakePoint
    run: Path | None = None
    tell: Callable[[Step], None] = _say_nothing
    told: Callable[[Step, Point], None] = _say_nothing


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """Points in the order in which they were measured, and the knee where one was searched for.

    `ended` says how it ended; `why` says more where the target was lost.
    """

    points: tuple[Point, ...]
    knee: Knee | None = None
    ended: Literal["complete", "interrupted", "target lost"] = "complete"
    why: str = ""


def search_knee(
    target: Target, search: Search, recorder: Recorder, kept: Sequence[tuple[Measured, Point]] = ()
) -> Sweep:
    """Measure what `search` asks for until it is over, the target is lost, or Ctrl-C.

    Between points the target is left to become idle. Each point is appended to the run directory when it is
    finished. `kept` are points of a run that is resumed: the search hears of them as it did then.
    """
    points: list[Point] = []
    for measured, point in kept:
        step = search.next_step()
        if step is None:
            break
        search.add(msgspec.structs.replace(step, offer=offer_of(point, step.offer)), measured, point)
        points.append(point)
    while (step := search.next_step()) is not None:
        measured, point = _measure(target, step, search.slo, recorder, points)
        search.add(step, measured, point)
        if (ended := _ended(target, point, points)) is not None:
            return msgspec.structs.replace(ended, knee=search.knee())
    return Sweep(points=tuple(points), knee=search.knee())


def offer_of(point: Point, like: Offer) -> Offer:
    """The offer that `point` came from, as far as it was judged; the rest as in `like`."""
    return msgspec.structs.replace(
        like,
        rate=point.rate,
        seed=point.seed,
        warmup_ns=point.window_start_ns,
        window_ns=max(1, point.window_end_ns - point.window_start_ns),
        max_concurrency=point.max_concurrency,
    )


def sweep_offers(target: Target, offers: Iterable[Offer], slo: Slo, recorder: Recorder) -> Sweep:
    """Measure the given offers in order, as `search_knee` does; no knee is searched for.

    Each is taken when the one before it is done.
    """
    points: list[Point] = []
    for step in _steps(offers, slo):
        _, point = _measure(target, step, slo, recorder, points)
        if (ended := _ended(target, point, points)) is not None:
            return ended
    return Sweep(points=tuple(points))


def finish(run: Path, sweep: Sweep, **more: Any) -> None:
    """Write the run's manifest: how it ended, the knee, and `more`."""
    told = {"ended": sweep.ended, "why": sweep.why, "points": len(sweep.points), "knee": sweep.knee}
    write_atomically(run / MANIFEST, {**told, **more})


def _steps(offers: Iterable[Offer], slo: Slo) -> Iterator[Step]:
    for offer in offers:
        watch = watch_point(offer, slo, 1.0, early=False)
        yield Step(phase="long", offer=offer, watch=watch, why="a rate that was asked for")


def _measure(
    target: Target, step: Step, slo: Slo, recorder: Recorder, points: list[Point]
) -> tuple[Measured, Point]:
    recorder.tell(step)
    measured = target.measure(step.offer, step.watch)
    point = recorder.make_point(measured, step.offer, slo)
    if recorder.run is not None:
        keep_point(recorder.run, len(points), point, measured)
    points.append(point)
    recorder.told(step, point)
    return measured, point


def keep_point(run: Path, number: int, point: Point, measured: Measured) -> None:
    """Append the point, and the snapshots taken during it, to the run directory."""
    append_lines(run / POINTS, [point])
    append_lines(run / SNAPSHOTS, [{"point": number, **msgspec.to_builtins(s)} for s in measured.snapshots])


def _ended(target: Target, point: Point, points: Sequence[Point]) -> Sweep | None:
    """The sweep, where it cannot go on after `point`; else wait until the target is idle."""
    if point.stopped == "interrupted":
        return Sweep(points=tuple(points), ended="interrupted")
    if point.stopped == "target lost":
        causes = ", ".join(point.causes) or "no answer"
        return Sweep(points=tuple(points), ended="target lost", why=f"it no longer answers: {causes}")
    if not target.settle(SETTLE_LIMIT_NS):
        limit_s = SETTLE_LIMIT_NS // NS_PER_S
        why = f"no answer, or not idle within {limit_s} s after a point: it died, hangs, or has other load"
        return Sweep(points=tuple(points), ended="target lost", why=why)
    return None


def plan_of(
    command: str, target: Target, workload: Workload, slo: Slo, seed: int, **more: Any
) -> dict[str, Any]:
    """The plan that a run directory begins with; it holds no secret."""
    return {
        "command": command,
        "target": msgspec.to_builtins(target.describe()),
        "workload": msgspec.to_builtins(workload),
        "slo": msgspec.to_builtins(slo),
        "seed": seed,
        **more,
    }
