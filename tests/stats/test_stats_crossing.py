import math

import numpy as np
import pytest

from knee.stats.crossing import Seen, find_crossing

SEED = 20_260_104


def _share(rate: float, knee: float, slope: float, allowed: float) -> float:
    odds = math.log(allowed / (1 - allowed)) + slope * math.log(rate / knee)
    return 1 / (1 + math.exp(-odds))


def test_the_interval_covers_the_crossing() -> None:
    rng = np.random.default_rng(SEED)
    inside = 0
    for _ in range(120):
        knee, slope = float(rng.uniform(16, 19.5)), float(np.exp(rng.uniform(2, 5)))
        seen = []
        for rate in rng.uniform(0.85, 1.08, 4) * knee:
            trials = float(rng.integers(50, 600))
            share = rng.binomial(int(trials), _share(rate, knee, slope, 0.05)) / int(trials)
            seen.append(Seen(rate=float(rate), share=float(share), trials=trials, degrees=15))
        found = find_crossing(seen, 0.05, ceiling=20.0)
        inside += found.low <= knee <= found.high
    assert inside >= 112, f"seed {SEED}: {inside}/120"


def test_one_point_bounds_one_side() -> None:
    held = find_crossing([Seen(rate=10, share=0.0, trials=500)], 0.05, ceiling=20)
    assert held.low > 10
    broke = find_crossing([Seen(rate=10, share=0.9, trials=500)], 0.05, ceiling=20)
    assert broke.high < 10
    assert held.low <= held.estimate <= held.high


def test_more_samples_narrow_it() -> None:
    def width(trials: float) -> float:
        seen = [Seen(rate=rate, share=_share(rate, 18, 40, 0.05), trials=trials) for rate in (17, 18, 19)]
        return find_crossing(seen, 0.05, ceiling=20).half_width

    assert width(5000) < width(500) < width(50)


def test_points_that_contradict_each_other_are_told() -> None:
    seen = [Seen(rate=18, share=0.001, trials=2000), Seen(rate=18.1, share=0.5, trials=2000)]
    agreeing = [Seen(rate=18, share=0.05, trials=2000), Seen(rate=18.1, share=0.055, trials=2000)]
    assert (
        find_crossing(seen, 0.05, ceiling=20).misfit > 10 * find_crossing(agreeing, 0.05, ceiling=20).misfit
    )


def test_no_points_are_refused() -> None:
    with pytest.raises(ValueError, match="points"):
        find_crossing([], 0.05, ceiling=20)
