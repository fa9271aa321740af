"""Verdicts on objectives: decided where what was seen decides, open where it does not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from knee.core.slo import parse_slo
from knee.engine.config import REFERENCE
from knee.measure.judge import score
from knee.measure.samples import Stretch
from knee.measure.simulated import SimulatedTarget
from knee.measure.target import Offer
from knee.stats.batches import batch_mean
from knee.stats.samples import Samples
from knee.workload.spec import Lengths, Workload

S = 1_000_000_000
WORKLOAD = Workload(
    prompt_tokens=Lengths(kind="fixed", mean=1000), output_tokens=Lengths(kind="fixed", mean=200)
)


def _verdict(slo: str, rate: float, seed: int, window_s: int) -> bool | None:
    offer = Offer(
        workload=WORKLOAD, rate=rate, seed=seed, warmup_ns=10 * S, window_ns=window_s * S, drain_ns=31 * S
    )
    measured = SimulatedTarget(REFERENCE, sampled=False).measure(offer)
    objectives = parse_slo(slo)
    stretch = Stretch(start_ns=10 * S, end_ns=(10 + window_s) * S)
    return score(measured.observed, objectives.objectives[0], objectives, stretch).holds(0.95)


@pytest.mark.parametrize("slo", ["ttft p95 < 1s", "ttft p95 < 30s", "ttft p99 < 300ms"])
def test_a_point_far_inside_its_bounds_holds(slo: str) -> None:
    """Half of the knee for two minutes: p99 TTFT is a third of the tightest of the bounds."""
    assert [_verdict(slo, 10, seed, 120) for seed in range(5)] == [True] * 5


@pytest.mark.parametrize("slo", ["ttft p95 < 1s", "ttft p95 < 30s"])
def test_a_queue_that_still_fills_is_not_called_good(slo: str) -> None:
    """Above the capacity of 20.4 req/s every wait grows for ever, though none is near 30 s yet."""
    assert True not in [_verdict(slo, 21.5, seed, 120) for seed in range(5)]


@given(
    st.lists(st.floats(0, 1), min_size=32, max_size=200),
    st.sampled_from([0.9, 0.95, 0.998]),
)
def test_a_batch_mean_lies_below_its_upper_end(values: list[float], confidence: float) -> None:
    seen = Samples(
        at=np.arange(len(values), dtype=np.float64),
        values=np.array(values),
        weights=np.ones(len(values)),
    )
    found = batch_mean(seen, (0.0, float(len(values))))
    assert found.value == pytest.approx(np.mean(values))
    assert found.high(confidence) >= found.value


def test_the_upper_end_of_a_batch_mean_covers_the_mean() -> None:
    """Of correlated samples (an AR(1) sequence of mean 0.5), in 95 % of windows on either side."""
    rng = np.random.default_rng(8)
    missed = 0
    for _ in range(200):
        noise = rng.normal(0, 0.05, 600)
        values = np.empty(600)
        values[0] = noise[0] / np.sqrt(1 - 0.81)
        for i in range(1, 600):
            values[i] = 0.9 * values[i - 1] + noise[i]
        seen = Samples(at=np.arange(600.0), values=values + 0.5, weights=np.ones(600))
        missed += batch_mean(seen, (0.0, 600.0)).high(0.95) < 0.5
    assert missed <= 12  # 5 are expected


def test_too_few_samples_bound_nothing() -> None:
    seen = Samples(at=np.arange(20.0), values=np.zeros(20), weights=np.ones(20))
    assert batch_mean(seen, (0.0, 20.0)).high(0.95) == np.inf
