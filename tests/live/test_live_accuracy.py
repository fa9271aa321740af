"""Calibrated on light load, how far off is a real server's predicted knee? Up to half an hour each."""

from pathlib import Path

import pytest
from bench.accuracy import SERVERS, errors, measure

pytestmark = pytest.mark.live


@pytest.mark.parametrize("name", SERVERS)
def test_the_knee_that_light_load_predicts_is_within_a_tenth_of_the_measured_one(
    name: str, vllm_home: Path, tmp_path: Path
) -> None:
    measure(vllm_home, SERVERS[name], tmp_path)
    missed = [one for one in errors(name, tmp_path) if one.holds is False]
    assert missed == []
