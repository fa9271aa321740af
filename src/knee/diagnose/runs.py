"""The points of a run as a source: the one where the SLO broke, with what the client saw there."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from knee.core.errors import NoAnswer
from knee.core.point import Point
from knee.core.run import PLAN, POINTS, open_run, read_lines
from knee.core.slo import Slo
from knee.core.snapshot import Window
from knee.diagnose.diagnose import diagnose
from knee.diagnose.facts import Facts
from knee.diagnose.verdict import Diagnosis

LIGHT = 0.3
"""A point at this share of the binding rate, or less, shows the gap between tokens of a request alone."""


def is_run(path: Path) -> bool:
    """Whether `path` is a run directory."""
    return (path / PLAN).is_file()


def diagnose_points(points: Sequence[Point], flags: Mapping[str, str], slo: Slo | None = None) -> Diagnosis:
    """The verdict on a sweep: on the lowest rate that broke, else on the highest.

    Raises:
        NoAnswer: no point holds the server's metrics.
    """
    return diagnose(*window_of(points, flags, slo))


def read_run(path: Path) -> tuple[Window, Facts]:
    """The window and the facts of the point to diagnose in the run directory `path`.

    Raises:
        InputError: it is no run.
        NoAnswer: no point of it holds the server's metrics.
    """
    plan = open_run(path)
    return window_of(list(read_lines(path / POINTS, Point)), _flags(plan), _slo(plan))


def window_of(points: Sequence[Point], flags: Mapping[str, str], slo: Slo | None) -> tuple[Window, Facts]:
    """The window and the facts of the point to diagnose among `points`; see `diagnose_points`."""
    usable = [point for point in points if point.window is not None]
    if not usable:
        raise NoAnswer("no point holds the server's metrics", "was /metrics reachable in that run?")
    point = binding_point(usable)
    assert point.window is not None
    objectives = Slo(tuple(judged.objective for judged in point.judged)) if point.judged else slo
    facts = Facts(flags=flags, slo=objectives, point=point, light_itl_s=_light_itl_s(points, point))
    return point.window, facts


def binding_point(points: Sequence[Point]) -> Point:
    """The point at which to ask what binds: the lowest rate that broke, else the highest of all."""
    open_loop = [point for point in points if point.max_concurrency is None] or list(points)
    broke = [point for point in open_loop if point.holds is False and not point.invalid]
    return min(broke, key=lambda p: p.rate) if broke else max(open_loop, key=lambda p: p.rate)


def _light_itl_s(points: Sequence[Point], binding: Point) -> float | None:
    """The median gap between tokens where requests hardly met; None where no such point was measured."""
    light = [
        point
        for point in points
        if point.itl_ms.p50 is not None
        and (
            point.max_concurrency == 1
            or (point.max_concurrency is None and point.rate <= LIGHT * binding.rate)
        )
    ]
    return min((point.itl_ms.p50 / 1000 for point in light if point.itl_ms.p50), default=None)


def _flags(plan: dict[str, Any]) -> dict[str, str]:
    target = plan.get("target")
    flags = target.get("flags") if isinstance(target, dict) else None
    return {str(k): str(v) for k, v in flags.items()} if isinstance(flags, dict) else {}


def _slo(plan: dict[str, Any]) -> Slo | None:
    try:
        slo = msgspec.convert(plan["slo"], Slo)
    except (KeyError, msgspec.ValidationError):
        return None
    return slo if slo.objectives else None
