"""A rate that changes over time: a stretch of the schedule's own time onto the clock's."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from knee.core.errors import UsageError
from knee.workload.spec import Stage

Floats = NDArray[np.float64]
Warp = Callable[[Floats], Floats]


def warp(stages: tuple[Stage, ...]) -> Warp:
    """The instant in seconds at which, in the mean, a given number of seconds' worth of arrivals has come.

    Arrivals at rate 1, put through this, come at the rate of the stages (the inverse of its integral: a
    process stays what it is, Poisson stays Poisson; Cinlar, Introduction to Stochastic Processes, 1975).

    Raises:
        UsageError: a stage is negative, endless, or no stage has a rate.
    """
    if not stages:
        return lambda due: due
    for stage in stages:
        finite = all(math.isfinite(v) and v >= 0 for v in (stage.seconds, stage.start, stage.end))
        if not finite or stage.seconds == 0:
            raise UsageError(f"a stage of {stage.seconds:g} s from {stage.start:g} to {stage.end:g}", _HINT)
    seconds = np.array([stage.seconds for stage in stages])
    start, end = (np.array([getattr(stage, side) for stage in stages]) for side in ("start", "end"))
    if not (start + end).any():
        raise UsageError("stages without any load", _HINT)
    begins = np.concatenate([[0.0], np.cumsum(seconds)])
    counts = np.concatenate([[0.0], np.cumsum(seconds * (start + end) / 2)])
    slope = np.append((end - start) / seconds, 0.0)
    first = np.append(start, end[-1])

    def to_clock(due: Floats) -> Floats:
        stage = np.searchsorted(counts, due, side="right") - 1
        more = due - counts[stage]
        # more = first t + slope t^2 / 2, solved for t in the form that stays exact where the slope is small
        root = np.sqrt(np.maximum(first[stage] ** 2 + 2 * slope[stage] * more, 0.0))
        with np.errstate(divide="ignore", invalid="ignore"):
            inside = 2 * more / (first[stage] + root)
        at_once = (more == 0) | ((root == 0) & (slope[stage] > 0))  # too little to tell from nothing
        return begins[stage] + np.where(at_once, 0.0, inside)

    return to_clock


_HINT = "write stages like 30s:0.1-1,60s:1, shares of the rate"
