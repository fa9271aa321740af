"""A run as one self-contained HTML page: it opens from a disk, a mail or a CI artefact, without a network."""

from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup

from knee import __version__
from knee.core.point import Judged, Knee, Point
from knee.core.slo import LATENCIES, Objective, Slo
from knee.core.units import ns_to_s
from knee.report.points import HEADS, knee_lines, row, verdict


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """What a page shows: sweeps by name, the knee, and what binds there, in lines for a person."""

    title: str
    sweeps: tuple[tuple[str, tuple[Point, ...]], ...]
    slo: Slo | None
    knee: Knee | None = None
    verdict_lines: tuple[str, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    seed: str = ""


def render_page(page: Page) -> str:
    """The HTML text. Every value that came from outside is escaped."""
    data = {
        "objectives": [_objective(index, objective, page) for index, objective in enumerate(_drawn(page.slo))]
    }
    points = [point for _, points in page.sweeps for point in points]
    lines = knee_lines(page.knee) if page.knee else ["no knee was searched for"]
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(
        _asset("page.html")
    )
    return template.render(
        title=page.title,
        tool_version=__version__,
        provenance="simulated in virtual time" if any(point.simulated for point in points) else "measured",
        seed=page.seed,
        answer=lines[0],
        answer_lines=lines[1:],
        verdict_lines=page.verdict_lines,
        data=data,
        data_json=_embedded(data),
        heads=[*HEADS, "SLO"],
        rows=[
            _row(name if len(page.sweeps) > 1 else "", point)
            for name, points in page.sweeps
            for point in points
        ],
        settings=page.settings,
        uplot_css=Markup(_asset("uplot.min.css")),  # noqa: S704 - shipped with the package
        page_css=Markup(_asset("page.css")),  # noqa: S704 - shipped with the package
        uplot_js=Markup(_asset("uplot.min.js")),  # noqa: S704 - shipped with the package
        page_js=Markup(_asset("page.js")),  # noqa: S704 - shipped with the package
    )


def _asset(name: str) -> str:
    return (files("knee.report") / "assets" / name).read_text(encoding="utf-8")


def _embedded(data: Any) -> Markup:
    """JSON that cannot end the script element it stands in."""
    return Markup(msgspec.json.encode(data).decode().replace("<", "\\u003c"))  # noqa: S704 - `<` is escaped


def _drawn(slo: Slo | None) -> Sequence[Objective]:
    return [objective for objective in slo.objectives if objective.metric in LATENCIES] if slo else []


def _objective(index: int, objective: Objective, page: Page) -> dict[str, Any]:
    return {
        "id": f"chart-{index}",
        "title": f"{objective.metric.upper()} p{(objective.quantile or 0) * 100:g}",
        "bound": objective.bound,
        "curves": [{"name": name, "points": _curve(points, objective)} for name, points in page.sweeps],
    }


def _curve(points: Sequence[Point], objective: Objective) -> list[dict[str, float | None]]:
    """Rate, estimate and interval of each valid open-loop point that judged `objective`."""
    found: list[tuple[float, Judged]] = [
        (point.rate, judged)
        for point in points
        if not point.invalid and point.max_concurrency is None
        for judged in point.judged
        if judged.objective == objective
    ]
    return [
        {"rate": rate, "value": judged.value, "low": judged.low, "high": judged.high}
        for rate, judged in sorted(found, key=lambda pair: pair[0])
    ]


def _row(name: str, point: Point) -> dict[str, Any]:
    kind = {True: "holds", False: "breaks", None: "undecided"}[point.holds] if point.judged else ""
    said = " ".join(part for part in (name, verdict(point), *(f"({note})" for note in point.notes)) if part)
    return {"cells": row(point), "kind": kind, "verdict": said}


def run_settings(plan: dict[str, Any], points: Sequence[Point]) -> tuple[tuple[str, str], ...]:
    """What a reader needs to repeat the run: the plan's entries, and the server time it cost."""
    told = [
        (name, value if isinstance(value, str) else msgspec.json.encode(value).decode())
        for name, value in plan.items()
    ]
    spent_s = ns_to_s(sum(point.spent_ns for point in points))
    return (*told, ("server time", f"{spent_s:.1f} s over {len(points)} points"))
