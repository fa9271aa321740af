"""Two runs against each other: the same load, the same objectives, two servers or two versions of one."""

import math
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from knee.core.errors import InputError
from knee.core.lock import read_lock
from knee.core.point import Judged, Knee, Point
from knee.core.run import POINTS, open_run, read_lines, read_manifest
from knee.core.slo import LATENCIES, Objective, Slo
from knee.stats.compare import Difference, Measurement, Verdict, compare, from_interval, pooled

SAME_RATE = 0.005
"""Rates that differ by less than this are one level."""


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One run as far as it is compared."""

    name: str
    slo: Slo
    workload: Any
    points: tuple[Point, ...]
    knee: Knee | None = None
    rates_given: bool = True


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One figure on both sides; `difference` is None where one side lacks it, and `why` says so."""

    what: str
    rate: float | None
    baseline: float | None
    candidate: float | None
    verdict: Verdict
    difference: Difference | None = None
    why: str = ""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict over everything compared."""

    baseline: str
    candidate: str
    verdict: Verdict
    margin: float
    compared: tuple[Compared, ...]


def read_side(path: Path) -> Side:
    """A run directory of `knee bench` or `knee sweep`, or a `knee.lock` with the knee of one.

    Raises:
        InputError: it is neither, it holds no finished valid point, or it was made without objectives.
    """
    if path.is_file():
        lock = read_lock(path)
        return Side(
            name=str(path), slo=lock.slo, workload=lock.workload, points=(), knee=lock.knee, rates_given=False
        )
    plan = open_run(path)
    offer = plan.get("offer") or {}
    slo = msgspec.convert(plan.get("slo"), Slo | None)
    if slo is None or not slo.objectives:
        raise InputError(f"{path} was measured without an SLO", "measure with --slo: it says what to compare")
    points = tuple(point for point in read_lines(path / POINTS, Point) if point.max_concurrency is None)
    manifest = read_manifest(path) or {}
    knee = msgspec.convert(manifest.get("knee"), Knee | None)
    usable = tuple(point for point in points if not point.invalid)
    if not usable and knee is None:
        raise InputError(f"{path} holds no valid open-loop point", "measure it again")
    return Side(
        name=str(path),
        slo=slo,
        workload=plan.get("workload", offer.get("workload")),
        points=usable,
        knee=knee,
        rates_given=knee is None,
    )


def compare_runs(baseline: Side, candidate: Side, margin: float = 0.05) -> Comparison:
    """Every level of the baseline, and the knees where both searched for one.

    A level that the candidate lacks counts as regressed: what was not measured did not hold. The points of a
    search lie where each search put them, so of two searches only the knees are compared.

    Raises:
        InputError: SLO or workload differ, or one side is a search and the other is not.
    """
    if baseline.slo != candidate.slo:
        raise InputError(
            f"the SLOs differ: {baseline.slo} and {candidate.slo}", "compare runs of one SLO and one workload"
        )
    if baseline.workload != candidate.workload:
        raise InputError("the workloads differ", "compare runs of one SLO and one workload")
    if baseline.rates_given != candidate.rates_given:
        raise InputError("one run searched for its knee, the other did not", "compare two of a kind")
    if baseline.knee is not None and candidate.knee is not None:
        found = [_knees(baseline.knee, candidate.knee, margin)]
    else:
        found = _levels(baseline, candidate, margin)
    return Comparison(
        baseline=baseline.name,
        candidate=candidate.name,
        verdict=overall([one.verdict for one in found]),
        margin=margin,
        compared=tuple(found),
    )


def overall(verdicts: Sequence[Verdict]) -> Verdict:
    """Regressed as soon as one figure is; otherwise no better known than the least known of them."""
    if "regressed" in verdicts:
        return "regressed"
    if "inconclusive" in verdicts or not verdicts:
        return "inconclusive"
    return "improved" if "improved" in verdicts else "unchanged"


def _knees(one: Knee, other: Knee, margin: float) -> Compared:
    row = Compared(
        what="knee",
        rate=None,
        baseline=one.estimate,
        candidate=other.estimate,
        verdict="inconclusive",
    )
    before, after = _knee(one), _knee(other)
    if before is None:
        return replace(row, why=f"the baseline has no knee: {one.reason}")
    if after is None:
        return replace(row, verdict="regressed", why=f"the candidate has no knee: {other.reason}")
    found = compare(before, after, margin=margin, higher_is_better=True)
    return replace(row, verdict=found.verdict, difference=found)


def _knee(knee: Knee) -> Measurement | None:
    if knee.estimate is None or knee.holds is None or knee.breaks is None:
        return None
    return pooled([from_interval(knee.estimate, knee.holds, knee.breaks, knee.confidence)])


def _levels(baseline: Side, candidate: Side, margin: float) -> list[Compared]:
    theirs = _by_rate(candidate.points)
    pairs = [
        (points, next((other for r, other in theirs if abs(math.log(r / rate)) < SAME_RATE), []), objective)
        for rate, points in _by_rate(baseline.points)
        for objective in baseline.slo.objectives
    ]
    return [_level(ours, other, objective, (margin, len(pairs))) for ours, other, objective in pairs]


def _level(
    points: Sequence[Point], others: Sequence[Point], objective: Objective, terms: tuple[float, int]
) -> Compared:
    """One objective at one rate; `terms` are the margin and the number of comparisons in all."""
    before, after = _measured(points, objective), _measured(others, objective)
    row = Compared(
        what=str(objective).split(" < ")[0].split(" > ")[0],
        rate=points[0].rate,
        baseline=before.value if before else None,
        candidate=after.value if after else None,
        verdict="regressed",
    )
    if not others:
        return replace(row, why="the candidate has no valid point at this rate")
    if before is None and after is None:
        return replace(row, verdict="inconclusive", why="unbounded on both sides")
    if after is None:
        return replace(row, why="unbounded in the candidate only")
    if before is None:
        return replace(row, verdict="improved", why="unbounded in the baseline only")
    higher = objective.metric == "goodput"
    found = compare(before, after, margin=terms[0], comparisons=terms[1], higher_is_better=higher)
    return replace(row, verdict=found.verdict, difference=found)


def _measured(points: Sequence[Point], objective: Objective) -> Measurement | None:
    """The objective's value over repeated points; None where any of them is unbounded."""
    judged = [one for point in points for one in point.judged if one.objective == objective]
    runs = [_one(one) for one in judged]
    kept = [run for run in runs if run is not None]
    return pooled(kept) if kept and len(kept) == len(runs) else None


def _one(judged: Judged) -> Measurement | None:
    if judged.value is None:
        return None
    # A share of zero has no logarithm: half an event in all samples stands for it.
    least = 1e-9 if judged.objective.metric in LATENCIES else 0.5 / max(1, judged.n)
    value = max(judged.value, least)
    low, high = (max(end, least) if end is not None else math.inf for end in (judged.low, judged.high))
    return from_interval(value, low if math.isfinite(low) else value, high, judged.confidence)


def _by_rate(points: Sequence[Point]) -> list[tuple[float, list[Point]]]:
    """Points grouped into levels, lowest rate first."""
    ordered = sorted(points, key=lambda point: point.rate)
    grouped = groupby(ordered, key=lambda point: round(math.log(point.rate) / SAME_RATE))
    return [(found[0].rate, found) for found in (list(group) for _, group in grouped)]
