"""A sweep: search steps, or given rates, against one target; every point is kept as soon as it is there."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from knee.core.errors import TargetLost
from knee.core.point import Knee, Point
from knee.core.run import MANIFEST, POINTS, SNAPSHOTS, append_lines, write_atomically
from knee.core.slo import Slo
from knee.core.units import NS_PER_S
from knee.measure.search import Search, Step
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
    """Points in the order in which they were measured, and the knee where one was searched for."""

    points: tuple[Point, ...]
    knee: Knee | None = None


class Interrupted(Exception):  # noqa: N818 - it is no error: the points so far are in `sweep`
    """Ctrl-C during a point. `sweep` holds what was finished; the run directory has it too."""

    def __init__(self, sweep: Sweep) -> None:
        super().__init__("interrupted")
        self.sweep = sweep


def search_knee(target: Target, search: Search, recorder: Recorder) -> Sweep:
    """Measure what `search` asks for until it is over.

    Between points the target is left to become idle. Each point is appended to the run directory when it is
    finished.

    Raises:
        TargetLost: the target failed, or did not become idle; the points so far are kept.
        Interrupted: Ctrl-C; the points so far are kept.
    """
    points: list[Point] = []
    while (step := search.next_step()) is not None:
        measured, point = _measure(target, step, search.slo, recorder, points)
        search.add(step, measured, point)
        _go_on(target, point, Sweep(points=tuple(points), knee=search.knee()))
    return Sweep(points=tuple(points), knee=search.knee())


def sweep_offers(target: Target, offers: Sequence[Offer], slo: Slo, recorder: Recorder) -> Sweep:
    """Measure the given offers in order; no knee is searched for.

    Raises:
        TargetLost, Interrupted: as `search_knee`.
    """
    points: list[Point] = []
    for step in _steps(offers, slo):
        _, point = _measure(target, step, slo, recorder, points)
        _go_on(target, point, Sweep(points=tuple(points)))
    return Sweep(points=tuple(points))


def finish(run: Path, sweep: Sweep, **more: Any) -> None:
    """Write the run's manifest: how it ended, the knee, and `more`."""
    ended = next((p.stopped for p in sweep.points if p.stopped in {"interrupted", "target lost"}), "complete")
    write_atomically(
        run / MANIFEST, {"ended": ended, "points": len(sweep.points), "knee": sweep.knee, **more}
    )


def _steps(offers: Sequence[Offer], slo: Slo) -> Iterator[Step]:
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


def _go_on(target: Target, point: Point, sweep: Sweep) -> None:
    """Raise where the sweep cannot go on after `point`; else wait until the target is idle."""
    name = target.describe().name
    if point.stopped == "interrupted":
        raise Interrupted(sweep)
    if point.stopped == "target lost":
        raise TargetLost(
            f"{name} was lost after {len(sweep.points)} points: {', '.join(point.causes) or 'no answer'}",
            "look at its log; the finished points are kept",
        )
    if not target.settle(SETTLE_LIMIT_NS):
        raise TargetLost(
            f"{name} did not become idle within {SETTLE_LIMIT_NS // NS_PER_S} s after a point",
            "something else sends requests to it, or it hangs; the finished points are kept",
        )


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
