"""A run directory as a source: the point where the SLO broke, with what the client saw there."""

from pathlib import Path
from typing import Any

from knee.core.errors import InputError
from knee.core.point import Point
from knee.core.run import PLAN, POINTS, open_run, read_lines
from knee.core.slo import Slo, parse_slo
from knee.core.snapshot import Window
from knee.diagnose.facts import Facts


def is_run(path: Path) -> bool:
    """Whether `path` is a run directory."""
    return (path / PLAN).is_file()


def read_run(path: Path) -> tuple[Window, Facts]:
    """The window and the facts of the point to diagnose: the lowest rate that broke, else the highest.

    Raises:
        InputError: it is no run, or no point of it holds the server's metrics.
    """
    plan = open_run(path)
    points = [point for point in read_lines(path / POINTS, Point) if point.window is not None]
    if not points:
        raise InputError(
            f"{path} holds no point with the server's metrics", "was /metrics reachable in that run?"
        )
    point = binding_point(points)
    assert point.window is not None
    slo = Slo(tuple(judged.objective for judged in point.judged)) if point.judged else _slo(plan)
    return point.window, Facts(flags=_flags(plan), slo=slo, point=point)


def binding_point(points: list[Point]) -> Point:
    """The point at which to ask what binds: the lowest rate that broke, else the highest of all."""
    broke = [point for point in points if point.holds is False]
    return min(broke, key=lambda p: p.rate) if broke else max(points, key=lambda p: p.rate)


def _flags(plan: dict[str, Any]) -> dict[str, str]:
    target = plan.get("target")
    flags = target.get("flags") if isinstance(target, dict) else None
    return {str(k): str(v) for k, v in flags.items()} if isinstance(flags, dict) else {}


def _slo(plan: dict[str, Any]) -> Slo | None:
    text = plan.get("slo")
    return parse_slo(text) if isinstance(text, str) and text else None
