import math

import numpy as np
import pytest

from knee.stats.compare import BETWEEN_RUNS, Measurement, compare, from_interval, pooled

SEED = 20_260_103


def _measured(value: float, error: float = 0.005) -> Measurement:
    return Measurement(value=value, error=error)


@pytest.mark.parametrize(
    ("candidate", "verdict"),
    [(100, "unchanged"), (102, "unchanged"), (120, "regressed"), (80, "improved"), (104, "inconclusive")],
)
def test_verdicts_of_a_latency(candidate: float, verdict: str) -> None:
    assert compare(_measured(100, 0.01), _measured(candidate, 0.01), margin=0.05).verdict == verdict


def test_for_a_rate_higher_is_better() -> None:
    assert compare(_measured(20), _measured(24), margin=0.05, higher_is_better=True).verdict == "improved"
    assert compare(_measured(24), _measured(20), margin=0.05, higher_is_better=True).verdict == "regressed"


def test_noise_is_never_called_unchanged_or_regressed() -> None:
    assert compare(_measured(100, 0.2), _measured(103, 0.2), margin=0.05).verdict == "inconclusive"
    assert compare(_measured(100, 0.2), _measured(120, 0.2), margin=0.05).verdict == "inconclusive"
    assert compare(_measured(100, math.inf), _measured(120), margin=0.05).verdict == "inconclusive"


def test_more_comparisons_ask_for_more_proof() -> None:
    one = compare(_measured(100, 0.03), _measured(110, 0.03), margin=0.05)
    many = compare(_measured(100, 0.03), _measured(110, 0.03), margin=0.05, comparisons=20)
    assert one.verdict == "regressed"
    assert many.verdict == "inconclusive"
    assert many.high > one.high


def test_a_single_run_carries_the_noise_between_runs() -> None:
    assert pooled([_measured(100, 0.0)]).error == pytest.approx(BETWEEN_RUNS)
    spread = pooled([_measured(90, 0.001), _measured(110, 0.001)])
    assert spread.error > 0.1


def test_an_interval_becomes_the_error_of_its_wider_side() -> None:
    found = from_interval(100, 95, 120)
    assert found.error == pytest.approx(math.log(1.2) / 1.96, rel=1e-3)
    assert from_interval(100, 95, math.inf).error == math.inf


def test_false_alarms_are_rare_and_real_changes_are_seen() -> None:
    rng = np.random.default_rng(SEED)
    alarms = seen = 0
    for _ in range(400):
        runs = [Measurement(value=100 * math.exp(rng.normal(0, 0.02)), error=0.005) for _ in range(6)]
        slower = [Measurement(value=run.value * 1.15, error=run.error) for run in runs[3:]]
        alarms += compare(pooled(runs[:3]), pooled(runs[3:]), margin=0.05).verdict == "regressed"
        seen += compare(pooled(runs[:3]), pooled(slower), margin=0.05).verdict == "regressed"
    assert alarms <= 4, f"seed {SEED}: {alarms}/400"
    assert seen >= 360, f"seed {SEED}: {seen}/400"
