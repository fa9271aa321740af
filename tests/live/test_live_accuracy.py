"""Calibrated on light load, how far off is a real server's predicted knee? Some twelve minutes a server."""

from pathlib import Path

import pytest
from bench.accuracy import SERVERS, errors, measure

pytestmark = pytest.mark.live

STILL = 1.2
"""Where the server's own knee moves by more from search to search, its machine misses the bar by itself."""


@pytest.mark.parametrize("name", SERVERS)
def test_the_knee_that_light_load_predicts_is_within_a_tenth_of_the_measured_one(
    name: str, vllm_home: Path, tmp_path: Path
) -> None:
    measure(vllm_home, SERVERS[name], tmp_path)
    found = {one.figure.removeprefix(f"{name}: "): one for one in errors(name, tmp_path)}
    missed = {what: one.value for what, one in found.items() if one.holds is False}
    moved = found["measured knees, highest over lowest"].value
    if missed and moved > STILL:
        pytest.skip(f"the server's knee moved {moved} times, which tells nothing of {missed}")
    assert missed == {}
