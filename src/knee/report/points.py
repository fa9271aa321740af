"""Points, sweeps and knees as text."""

from collections.abc import Sequence

from rich.table import Table

from knee.core.point import Judged, Knee, Point, Summary
from knee.core.slo import LATENCIES, Objective, Slo
from knee.core.units import NS_PER_S, format_duration
from knee.report.chart import Series, chart

SIMULATED = "simulated in virtual time"
MEASURED = "measured"


HEADS = (
    *("rate/s", "served/s", "offered", "ok", "failed", "rejected", "censored"),
    *("TTFT p50 ms", "p95", "p99", "ITL p50 ms", "p99", "E2E p95 ms"),
)


def milliseconds(value: float | None) -> str:
    """A latency for a table: four significant figures, `∞` where it is unbounded."""
    return "∞" if value is None else f"{value:.4g}"


def percentile(summary: Summary, name: str) -> str:
    """A percentile such as `p95` for a table; `few` where the samples do not carry it."""
    return "few" if name in summary.unsupported else milliseconds(getattr(summary, name))


def row(point: Point) -> list[str]:
    """The cells under HEADS."""
    return [
        f"{point.rate:.4g}" if point.max_concurrency is None else f"{point.max_concurrency} clients",
        f"{point.served_rate:.4g}",
        *(str(n) for n in (point.offered, point.ok, point.failed, point.rejected, point.censored)),
        *(percentile(point.ttft_ms, name) for name in ("p50", "p95", "p99")),
        *(percentile(point.itl_ms, name) for name in ("p50", "p99")),
        percentile(point.e2e_ms, "p95"),
    ]


def points_table(points: Sequence[Point], title: str = "") -> Table:
    """One row a point: what was asked, what was served, what requests saw, what was decided."""
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for head in HEADS:
        table.add_column(head.replace(" p", "\np", 1) if " " in head else head, justify="right")
    table.add_column("SLO")
    for point in points:
        table.add_row(*row(point), verdict(point))
    return table


def verdict(point: Point) -> str:
    """What the point says about its SLO, in a word or two."""
    if point.invalid:
        return f"invalid: {point.invalid[0]}"
    if not point.judged:
        return ""
    if point.holds is None:
        return "undecided"
    if point.holds:
        return "holds"
    broken = [str(judged.objective) for judged in point.judged if judged.holds is False]
    return "breaks: " + (", ".join(broken) or "the backlog grows")


def judged_line(judged: Judged) -> str:
    """An objective with its estimate and interval."""
    unit = "ms" if judged.objective.metric in LATENCIES else ""
    said = {True: "holds", False: "breaks", None: "undecided"}[judged.holds]
    value, low, high = (milliseconds(v) for v in (judged.value, judged.low, judged.high))
    return (
        f"{judged.objective}: {value}{unit} [{low}, {high}] at {judged.confidence:.0%}, n={judged.n}: {said}"
    )


def knee_lines(knee: Knee) -> list[str]:
    """The knee in a few lines: the interval first, then why, then what it cost."""
    ends = [f"{end:.4g}" if end is not None else "?" for end in (knee.holds, knee.breaks)]
    lines = [f"knee: [{ends[0]}, {ends[1]}] req/s at {knee.confidence:.0%} for {knee.slo}"]
    if knee.estimate is not None:
        lines[0] += f"; likeliest {knee.estimate:.4g}"
    lines.append(f"  {knee.reason}")
    if knee.saturation_rate is not None:
        lines.append(f"  saturation: the served rate no longer rises above {knee.saturation_rate:.4g} req/s")
    lines.append(f"  {knee.points} points, {format_duration(knee.server_seconds * NS_PER_S)} of server time")
    return lines


def curve(name: str, points: Sequence[Point], objective: Objective) -> Series:
    """The objective's own percentile against the rate, valid open-loop points only."""
    chosen = sorted(
        (point for point in points if not point.invalid and point.max_concurrency is None),
        key=lambda p: p.rate,
    )
    return Series(name=name, points=tuple((point.rate, estimate_of(point, objective)) for point in chosen))


def estimate_of(point: Point, objective: Objective) -> float | None:
    """The point's estimate for `objective`; None where it is unbounded or was not judged."""
    return next((judged.value for judged in point.judged if judged.objective == objective), None)


def knee_chart(sweeps: Sequence[tuple[str, Sequence[Point]]], slo: Slo, knee: Knee | None = None) -> str:
    """A chart for each latency objective of the SLO, all sweeps in it, `knee` on the axis of rates."""
    holds, breaks = (knee.holds, knee.breaks) if knee else (None, None)
    charts = [
        chart(
            [curve(name, points, objective) for name, points in sweeps],
            x_label="offered requests/s",
            y_label=f"{objective.metric.upper()} p{(objective.quantile or 0) * 100:g}, ms (log)",
            bound=objective.bound,
            knee=(holds, breaks) if holds is not None and breaks is not None else None,
        )
        for objective in slo.objectives
        if objective.metric in LATENCIES
    ]
    return "\n\n".join(charts)
