"""Calibrated on a real server's light load, how far off is the predicted knee? On recorded runs."""

from pathlib import Path

import pytest
from bench.accuracy import SERVERS, errors

RUNS = Path(__file__).parents[1] / "data" / "real-0.32" / "accuracy"


@pytest.mark.parametrize("name", SERVERS)
def test_the_knee_that_light_load_predicts_is_within_a_tenth_of_the_measured_one(name: str) -> None:
    found = {one.figure.removeprefix(f"{name}: "): one for one in errors(name, RUNS / name.replace(" ", "-"))}
    barred = {what: one.value for what, one in found.items() if one.bar is not None}
    assert len(barred) == 4
    assert all(one.holds is not False for one in found.values()), barred
    assert barred["highest rate calibrated on, over it"] <= 0.6
    assert barred["error of the predicted knee"] <= 0.1
