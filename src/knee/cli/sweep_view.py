"""What a sweep says while it runs and when it ends."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from knee.cli.app import log
from knee.core.slo import Slo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Group

    from knee.core.point import Point
    from knee.diagnose.verdict import Diagnosis
    from knee.measure.client.live import LiveTarget
    from knee.measure.search.budget import Budget, Step
    from knee.measure.sweep import Sweep
    from knee.measure.target import Offer


class SweepResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep prints as JSON."""

    sweep: "Sweep"
    diagnosis: "Diagnosis | None"
    run: str


def plan_line(budget: "Budget", clients: int, offers: "Sequence[Offer]") -> str:
    """What a sweep is going to do, and what it may take of the server's time."""
    from knee.core.units import NS_PER_S, format_duration
    from knee.measure.search.timing import cost_s

    if offers:
        return f"plan: {len(offers)} rates, {format_duration(sum(map(cost_s, offers)) * NS_PER_S)} at most"
    return (
        f"plan: one request at a time, a burst of {clients} clients, then open-loop points near the knee "
        f"until it is known to ±{budget.precision * 100:.3g} %; at most {budget.points} points and "
        f"{format_duration(budget.server_s * NS_PER_S)} of server time"
    )


def tell(step: "Step") -> None:
    """Say what is measured next, on stderr."""
    from knee.core.units import NS_PER_S, format_duration

    offer = step.offer
    load_ = f"{offer.rate:.4g} req/s" if offer.max_concurrency is None else f"{offer.max_concurrency} clients"
    longest = format_duration(offer.warmup_ns + offer.window_ns + offer.drain_ns)
    left = f"; {format_duration(step.left_s * NS_PER_S)} left" if math.isfinite(step.left_s) else ""
    log(f"{step.phase}: {load_}, {longest} at most ({step.why}){left}")


def told(step: "Step", point: "Point") -> None:
    """Say what came of it, on stderr."""
    from knee.core.units import format_duration
    from knee.report.points import percentile, verdict

    seen = ", ".join(
        f"{name} {percentile(summary, share)} ms"
        for name, summary, share in (
            ("TTFT p95", point.ttft_ms, "p95"),
            ("ITL p99", point.itl_ms, "p99"),
        )
    )
    said = verdict(point) if step.offer.max_concurrency is None else ""
    log(f"  {point.ok} of {point.offered} ok, {seen}; took {format_duration(point.spent_ns)} {said}")


def write_page(
    run: Path, found: "Sweep", diagnosis: "Diagnosis | None", target: "LiveTarget", slo: Slo
) -> None:
    """Leave the run as a page, `report.html`, in its directory."""
    from knee.core.run import open_run
    from knee.diagnose.text import verdict_lines
    from knee.report.page import Page, render_page, run_settings

    plan = open_run(run)
    page = Page(
        title=f"knee sweep of {target.describe().name}",
        sweeps=(("measured", found.points),),
        slo=slo,
        knee=found.knee,
        verdict_lines=tuple(verdict_lines(diagnosis)) if diagnosis else (),
        settings=run_settings(plan, found.points),
        seed=str(plan["seed"]),
    )
    (run / "report.html").write_text(render_page(page), encoding="utf-8")


def render_sweep(result: SweepResult, slo: Slo) -> "Group":
    """The table, the curves, the knee and what binds there."""
    from rich.console import Group
    from rich.text import Text

    from knee.diagnose.text import verdict_lines
    from knee.report.points import knee_chart, knee_lines, points_table

    found = result.sweep
    open_loop = [point for point in found.points if point.max_concurrency is None]
    lines = knee_lines(found.knee) if found.knee else []
    lines += verdict_lines(result.diagnosis) if result.diagnosis else []
    chart = Text(knee_chart([("measured", open_loop)], slo, found.knee))
    return Group(points_table(open_loop), "", chart, "", *map(Text, lines), Text(f"run: {result.run}"))
