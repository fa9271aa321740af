"""Calibrated on a real server's light load, how far off is the predicted knee? On recorded runs."""

import json
from pathlib import Path

import pytest
from bench.accuracy import PACES, SERVERS, at_mean_pace, errors

RUNS = Path(__file__).parents[1] / "data" / "real-0.32" / "accuracy"


@pytest.mark.parametrize("name", SERVERS)
def test_the_knee_that_light_load_predicts_is_within_a_tenth_of_the_measured_one(name: str) -> None:
    found = {one.figure.removeprefix(f"{name}: "): one for one in errors(name, RUNS / name.replace(" ", "-"))}
    barred = {what: one.value for what, one in found.items() if one.bar is not None}
    assert len(barred) == 4
    assert all(one.holds is not False for one in found.values()), barred
    assert barred["highest rate calibrated on, over it"] <= 0.6
    assert barred["error of the predicted knee"] <= 0.1


def test_a_knee_found_at_a_slow_moment_is_lower_than_at_the_mean_pace(tmp_path: Path) -> None:
    knees = {"search-0": 10.0, "search-1": 12.0}
    assert at_mean_pace(tmp_path, knees) == [10.0, 12.0]
    (tmp_path / PACES).write_text(json.dumps({"search-0": 1.2, "search-1": 0.8}))
    assert at_mean_pace(tmp_path, knees) == pytest.approx([12.0, 9.6])
