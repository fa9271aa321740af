"""Does the interval of the knee cover the truth, and at what cost? On simulated servers drawn at random."""

import math
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Literal

import msgspec
import numpy as np

from bench._drawn import Hidden, Server, draw_server, true_knee
from bench.figure import Figure
from knee.core.point import Knee
from knee.measure.point import make_point
from knee.measure.search.budget import Budget
from knee.measure.search.steps import Search
from knee.measure.simulated import SimulatedTarget
from knee.measure.target import Offer

SERVERS = 200
BUDGET_S = 14_400.0


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One search on one server: its answer and its cost, beside the truth and a bisection."""

    seed: int
    truth: float
    knee: Knee
    longest_s: float
    bisected: float
    bisection_s: float

    @property
    def covers(self) -> bool:
        """Whether the truth lies in the interval."""
        holds, breaks = self.knee.holds, self.knee.breaks
        return holds is not None and breaks is not None and holds <= self.truth <= breaks

    @property
    def half_width(self) -> float:
        """Half of the interval over its middle; infinite without one."""
        holds, breaks = self.knee.holds, self.knee.breaks
        return (breaks - holds) / (breaks + holds) if holds is not None and breaks else math.inf

    @property
    def share_of_even(self) -> float:
        """Server time over that of ten evenly spaced points, each as long as the longest of the search."""
        return self.knee.server_seconds / (10 * self.longest_s) if self.longest_s else math.inf


def try_one(seed: int) -> Trial:
    """Search the server that `seed` draws, and find the truth."""
    server = draw_server(seed)
    search = Search(server.workload, server.slo, seed=seed, budget=Budget(server_s=BUDGET_S))
    target = Hidden(server.config)
    longest_s = 0.0
    while (step := search.next_step()) is not None:
        measured = target.measure(step.offer, step.watch)
        if step.offer.max_concurrency is None:
            longest_s = max(longest_s, measured.spent_ns / 1e9)
        search.add(step, measured, make_point(measured, step.offer, server.slo, simulated=True))
    knee = search.knee()
    truth = true_knee(server, knee.estimate or 1.0).knee
    ceiling = knee.saturation_rate or 2 * truth
    bisected, bisection_s = bisect(server, ceiling, longest_s, seed)
    return Trial(
        seed=seed, truth=truth, knee=knee, longest_s=longest_s, bisected=bisected, bisection_s=bisection_s
    )


def bisect(server: Server, ceiling: float, seconds: float, seed: int) -> tuple[float, float]:
    """Plain bisection with points of `seconds` down to a bracket of 6 %: its answer and its server time.

    As other tools do it: each rate is measured once, and the percentile that was seen decides.
    """
    low, high, spent_s = 0.0, ceiling * 1.1, 0.0
    for number in range(8):
        if low and (high - low) / (high + low) <= 0.03:
            break
        rate = (low + high) / 2
        drain_s = max(objective.bound for objective in server.slo.objectives) / 1000 + 1
        offer = Offer(
            workload=server.workload,
            rate=rate,
            seed=seed * 100 + number,
            warmup_ns=round(seconds * 0.2e9),
            window_ns=round(seconds * 0.8e9),
            drain_ns=round(drain_s * 1e9),
        )
        measured = SimulatedTarget(server.config, sampled=False).measure(offer)
        spent_s += measured.spent_ns / 1e9
        judged = make_point(measured, offer, server.slo).judged
        held = all(one.value is not None and one.value < one.objective.bound for one in judged)
        low, high = (rate, high) if held else (low, rate)
    return (low + high) / 2, spent_s


def figures(trials: Sequence[Trial], failed: int) -> Iterator[Figure]:
    """What the trials show."""
    tried = len(trials) + failed
    answered = [one for one in trials if math.isfinite(one.half_width)]

    def figure(name: str, value: float, unit: str, bar: float | None = None, *, low: bool = True) -> Figure:
        better: Literal["lower", "higher"] = "lower" if low else "higher"
        return Figure(bench="knee_quality", figure=name, value=value, unit=unit, bar=bar, better=better)

    yield figure("servers", tried, "servers", 200, low=False)
    yield figure("covers the truth", sum(one.covers for one in trials) / tried, "share", 0.95, low=False)
    yield figure("half-width, median", float(np.median([one.half_width for one in trials])), "share", 0.03)
    yield figure("without an answer", tried - len(answered), "searches", 0)
    late = sum(one.knee.server_seconds > BUDGET_S for one in trials)
    yield figure("past the budget", late, "searches", 0)
    even = float(np.median([one.share_of_even for one in trials]))
    yield figure("server time over an even 10-point sweep, median", even, "share", 0.25)
    plain = [one.bisection_s / (10 * one.longest_s) for one in trials]
    yield figure("bisection's server time over that sweep, median", float(np.median(plain)), "share")
    off = [abs(one.bisected / one.truth - 1) for one in trials]
    ours = [abs((one.knee.estimate or math.inf) / one.truth - 1) for one in trials]
    yield figure("bisection's error, 95th percentile", float(np.quantile(off, 0.95)), "share")
    yield figure("the search's error, 95th percentile", float(np.quantile(ours, 0.95)), "share")


def run() -> Iterator[Figure]:
    """The figures over SERVERS servers; fewer with KNEE_BENCH_SERVERS, and then the first bar is missed."""
    seeds = range(1, int(os.environ.get("KNEE_BENCH_SERVERS", str(SERVERS))) + 1)
    trials = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for seed, one in zip(seeds, pool.map(_told, seeds), strict=True):
            if isinstance(one, Trial):
                trials.append(one)
            if isinstance(one, str) or not one.covers:
                sys.stderr.write(f"knee_quality: server {seed}: {one}\n")
    yield from figures(trials, len(seeds) - len(trials))


def _told(seed: int) -> Trial | str:
    """A trial, or why there is none: the truth itself was not found. That is counted, never dropped."""
    try:
        return try_one(seed)
    except ValueError as error:
        return str(error)
