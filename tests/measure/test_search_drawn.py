"""A small `bench/knee_quality.py`: servers drawn at random, and their knees from very long runs."""

import math

import numpy as np
from bench.knee_quality import Trial, figures, try_one

from knee.core.point import Knee
from knee.core.slo import parse_slo

SEEDS = (7, 10, 11)
"""Cheap ones: fast servers, whose long runs are short."""


def test_the_interval_covers_the_truth_at_a_fraction_of_the_server_time() -> None:
    trials = [try_one(seed) for seed in SEEDS]
    told = [(one.seed, one.truth, one.knee.holds, one.knee.breaks) for one in trials]
    assert all(one.covers for one in trials), told
    assert all(one.half_width <= 0.031 for one in trials), told
    assert float(np.median([one.share_of_even for one in trials])) <= 0.25, told


def _trial(holds: float | None, breaks: float | None, server_s: float = 100) -> Trial:
    knee = Knee(
        slo=parse_slo("ttft p95 < 1s"),
        holds=holds,
        breaks=breaks,
        estimate=20.0,
        confidence=0.95,
        reason="",
        server_seconds=server_s,
    )
    return Trial(seed=1, truth=20.0, knee=knee, longest_s=50, bisected=22, bisection_s=400)


def test_the_figures_count_every_failure() -> None:
    trials = [_trial(19.5, 20.5), _trial(20.1, 20.5), _trial(None, None), _trial(19, 21, server_s=1e6)]
    found = {figure.figure: figure for figure in figures(trials, failed=1)}
    assert found["servers"].value == 5
    assert found["covers the truth"].value == 2 / 5
    assert found["covers the truth"].holds is False
    assert found["without an answer"].value == 2
    assert found["past the budget"].value == 1
    assert math.isclose(found["half-width, median"].value, 0.0375)
    assert math.isclose(found["bisection's error, 95th percentile"].value, 0.1)
