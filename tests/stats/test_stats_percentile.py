import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from knee.stats.distributions import binomial_cdf, normal_cdf, normal_quantile, student_quantile, wilson
from knee.stats.percentile import Sorted, minimum_samples, quantile

values = st.lists(st.floats(-1e6, 1e6) | st.just(math.inf), min_size=1, max_size=60)
shares = st.floats(0.01, 0.99)


@given(values, shares)
def test_a_quantile_was_seen_and_splits_the_samples(samples: list[float], share: float) -> None:
    found = quantile(np.array(samples), share)
    assert found in samples
    at_or_below = sum(value <= found for value in samples)
    below = sum(value < found for value in samples)
    assert at_or_below >= share * len(samples) - 1e-6
    assert below < share * len(samples) + 1e-6


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 5)), min_size=1, max_size=30), shares)
def test_a_weight_is_the_sample_repeated(pairs: list[tuple[float, int]], share: float) -> None:
    repeated = [value for value, count in pairs for _ in range(count)]
    weighted = quantile(
        np.array([value for value, _ in pairs]), share, np.array([float(count) for _, count in pairs])
    )
    assert weighted == quantile(np.array(repeated), share)


@given(values, st.integers(1, 20), shares)
def test_an_unfinished_sample_never_lowers_a_percentile(
    samples: list[float], lost: int, share: float
) -> None:
    assert quantile(np.array([*samples, *[math.inf] * lost]), share) >= quantile(np.array(samples), share)


def test_more_unfinished_than_the_percentile_leaves_is_unbounded() -> None:
    samples = Sorted(np.array([1.0] * 94 + [math.inf] * 6))
    assert samples.quantile(0.94) == 1.0
    assert samples.quantile(0.95) == math.inf
    assert samples.share_above(1.0) == pytest.approx(0.06)


def test_no_samples_have_no_percentile() -> None:
    assert math.isnan(quantile(np.array([]), 0.5))


@pytest.mark.parametrize(("share", "needed"), [(0.5, 5), (0.9, 29), (0.95, 59), (0.99, 299)])
def test_samples_that_a_percentile_needs(share: float, needed: int) -> None:
    assert minimum_samples(share) == needed
    assert share**needed <= 0.05 < share ** (needed - 1)


@pytest.mark.parametrize(
    ("probability", "degrees", "table"),
    [(0.975, 4, 2.776), (0.975, 7, 2.365), (0.975, 15, 2.131), (0.995, 7, 3.499), (0.95, 31, 1.696)],
)
def test_student_quantiles_agree_with_tables(probability: float, degrees: int, table: float) -> None:
    assert student_quantile(probability, degrees) == pytest.approx(table, rel=0.004)


def test_student_becomes_normal() -> None:
    assert student_quantile(0.975, math.inf) == normal_quantile(0.975) == pytest.approx(1.959964, abs=1e-6)
    assert normal_cdf(1.959964) == pytest.approx(0.975, abs=1e-6)


@given(st.integers(1, 80), st.floats(0.01, 0.99), st.data())
def test_binomial_tail_is_the_sum_of_its_terms(trials: int, share: float, data: st.DataObject) -> None:
    successes = data.draw(st.integers(-1, trials + 1))
    terms = [
        math.comb(trials, k) * share**k * (1 - share) ** (trials - k)
        for k in range(max(0, min(successes, trials) + 1))
    ]
    assert binomial_cdf(successes, trials, share) == pytest.approx(math.fsum(terms), abs=1e-9)


def test_wilson_keeps_an_upper_bound_at_zero_and_contains_the_share() -> None:
    low, high = wilson(0.0, 100, 1.96)
    assert low == 0
    assert high == pytest.approx(0.037, abs=1e-3)
    assert wilson(0.3, 0, 1.96) == (0.0, 1.0)
