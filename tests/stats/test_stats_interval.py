"""Do the intervals hold what they promise? Seeded Monte Carlo on processes whose percentiles are known."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from knee.stats.batches import batch_share
from knee.stats.distributions import normal_quantile
from knee.stats.interval import order_statistic_interval, percentile_interval
from knee.stats.percentile import Floats
from knee.stats.samples import Samples

SEED = 20_260_101


def _evenly(values: Floats) -> Samples:
    return Samples(at=np.arange(len(values), dtype=float), values=values, weights=np.ones(len(values)))


def _autoregressive(rng: np.random.Generator, n: int, memory: float) -> Floats:
    noise = rng.normal(size=n)
    values = np.empty(n)
    values[0] = noise[0]
    for i in range(1, n):
        values[i] = memory * values[i - 1] + math.sqrt(1 - memory**2) * noise[i]
    return values


def _waits(rng: np.random.Generator, n: int, load: float) -> Floats:
    """Waits of an M/M/1 queue of mean service 1 in steady state: begun at a draw from their distribution."""
    steps = rng.exponential(1.0, n) - rng.exponential(1 / load, n)
    begun = rng.exponential(1 / (1 - load)) if rng.random() < load else 0.0
    path = np.concatenate([[begun], begun + np.cumsum(steps[:-1])])
    return path - np.minimum(np.minimum.accumulate(path), 0.0)


def test_order_statistics_cover_independent_samples() -> None:
    rng = np.random.default_rng(SEED)
    inside = 0
    for _ in range(400):
        low, high = order_statistic_interval(rng.exponential(1.0, 200), 0.95)
        inside += low <= -math.log(0.05) <= high
    assert inside >= 0.93 * 400, f"seed {SEED}: {inside}/400"


def test_too_few_samples_have_no_upper_bound() -> None:
    rng = np.random.default_rng(SEED)
    assert order_statistic_interval(rng.random(71), 0.99)[1] == math.inf
    assert percentile_interval(_evenly(rng.random(71)), 0.99, (0, 71))[2] == math.inf
    assert percentile_interval(_evenly(rng.random(1000)), 0.99, (0, 1000))[2] < math.inf


def test_batch_means_cover_independent_samples() -> None:
    rng = np.random.default_rng(SEED)
    inside = 0
    for _ in range(300):
        _, low, high = percentile_interval(_evenly(rng.exponential(1.0, 400)), 0.95, (0, 400))
        inside += low <= -math.log(0.05) <= high
    assert inside >= 0.92 * 300, f"seed {SEED}: {inside}/300"


def test_batch_means_cover_correlated_samples_where_order_statistics_do_not() -> None:
    rng = np.random.default_rng(SEED)
    truth = normal_quantile(0.9)
    ours = naive = 0
    for _ in range(150):
        values = _autoregressive(rng, 3000, 0.95)
        _, low, high = percentile_interval(_evenly(values), 0.9, (0, 3000))
        ours += low <= truth <= high
        low, high = order_statistic_interval(values, 0.9)
        naive += low <= truth <= high
    assert ours >= 0.9 * 150, f"seed {SEED}: {ours}/150"
    assert naive <= 0.6 * 150, f"seed {SEED}: {naive}/150"


def test_batch_means_cover_the_p95_wait_of_a_loaded_queue() -> None:
    rng = np.random.default_rng(SEED)
    load, inside, runs = 0.8, 0, 200
    truth = math.log(load / 0.05) / (1 - load)  # P(W > t) = load exp(-(1 - load) t)
    for _ in range(runs):
        _, low, high = percentile_interval(_evenly(_waits(rng, 10_000, load)), 0.95, (0, 10_000))
        inside += low <= truth <= high
    assert inside >= 0.88 * runs, f"seed {SEED}: {inside}/{runs}"


@given(st.lists(st.floats(0, 10), min_size=1, max_size=200), st.floats(0.5, 0.99))
def test_the_estimate_lies_in_its_interval(values: list[float], share: float) -> None:
    estimate, low, high = percentile_interval(_evenly(np.array(values)), share, (0, len(values)))
    assert low <= estimate <= high


def test_unfinished_samples_make_the_percentile_unbounded() -> None:
    values = np.concatenate([np.ones(900), np.full(100, np.inf)])
    estimate, _, high = percentile_interval(_evenly(values), 0.95, (0, 1000))
    assert (estimate, high) == (math.inf, math.inf)


def test_tokens_that_share_a_gap_are_one_sample() -> None:
    rng = np.random.default_rng(SEED)
    bad = (rng.random(400) < 0.1).astype(float)
    single = batch_share(_evenly(bad), (0, 400))
    heavy = batch_share(Samples(at=np.arange(400.0), values=bad, weights=np.full(400, 128.0)), (0, 400))
    assert heavy.value == single.value
    assert heavy.trials <= 400


def test_no_samples_say_nothing() -> None:
    assert batch_share(_evenly(np.array([])), (0, 1)).interval() == (0.0, 1.0)
