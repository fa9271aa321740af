import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knee.core.errors import UsageError
from knee.core.requests import Ints
from knee.workload.schedule import CHUNK, schedule
from knee.workload.spec import Arrivals, Lengths, Workload

SEED = 20_260_101


def workload(arrivals: Arrivals | None = None, prompt: Lengths | None = None) -> Workload:
    return Workload(
        arrivals=arrivals or Arrivals(),
        prompt_tokens=prompt or Lengths(kind="lognormal", mean=600, cv=0.8, low=4, high=8_000),
        output_tokens=Lengths(kind="uniform", low=10, high=300),
    )


def columns(spec: Workload, rate: float, chunks: int, seed: int = SEED) -> tuple[Ints, Ints, Ints]:
    parts = list(itertools.islice(schedule(spec, rate, seed), chunks))
    assert all(len(part) == CHUNK for part in parts)
    return (
        np.concatenate([part.due_ns for part in parts]),
        np.concatenate([part.prompt_tokens for part in parts]),
        np.concatenate([part.output_tokens for part in parts]),
    )


def per_second(due_ns: Ints) -> Ints:
    counts: Ints = np.bincount(due_ns // 1_000_000_000)[:-1]
    return counts


def test_poisson_golden() -> None:
    """The same seed means the same schedule in every later version: runs can be repeated."""
    first = next(iter(schedule(workload(), 2.0, 7)))
    assert first.due_ns[:5].tolist() == GOLDEN_DUE_NS
    assert first.prompt_tokens[:5].tolist() == GOLDEN_PROMPTS
    assert first.output_tokens[:5].tolist() == GOLDEN_OUTPUTS


def test_constant_golden() -> None:
    due, _, _ = columns(workload(Arrivals(kind="constant")), 4.0, 1)
    assert due[:5].tolist() == [0, 250_000_000, 500_000_000, 750_000_000, 1_000_000_000]
    assert due[-1] == (CHUNK - 1) * 250_000_000


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_gaps_have_the_moments_asked_for(burstiness: float) -> None:
    due, _, _ = columns(workload(Arrivals(kind="gamma", burstiness=burstiness)), 10.0, 100)
    gaps = np.diff(due) / 1e9
    assert gaps.mean() == pytest.approx(0.1, rel=0.03)
    assert (gaps.std() / gaps.mean()) ** 2 == pytest.approx(1 / burstiness, rel=0.05)


def test_poisson_is_poisson() -> None:
    """Gaps are exponential (Kolmogorov-Smirnov), independent, and counts vary as much as their mean."""
    due, _, _ = columns(workload(), 50.0, 100)
    gaps = np.sort(np.diff(due) / 1e9 * 50)
    n = len(gaps)
    distance = np.abs(np.arange(1, n + 1) / n - (1 - np.exp(-gaps))).max()
    assert distance < 1.63 / math.sqrt(n)  # the 1% point of the Kolmogorov distribution
    counts = per_second(due)
    assert counts.var() / counts.mean() == pytest.approx(1.0, abs=0.1)
    free = np.diff(due).astype(np.float64)
    assert abs(np.corrcoef(free[:-1], free[1:])[0, 1]) < 3 / math.sqrt(n)


def test_poisson_is_not_rescaled_to_a_count() -> None:
    """Over many seeds the number of arrivals in a window varies; a schedule made to fit n/rate would not."""
    counts = [int((columns(workload(), 5.0, 1, seed)[0] < 20_000_000_000).sum()) for seed in range(300)]
    assert np.mean(counts) == pytest.approx(100, abs=2)
    assert np.var(counts) == pytest.approx(100, rel=0.3)


@pytest.mark.parametrize("rate", [0.001, 0.21, 0.425, 1 / 3, 33.3, 1e5])
def test_float_rates_hold(rate: float) -> None:
    due, _, _ = columns(workload(), rate, 20)
    assert len(due) / (due[-1] / 1e9) == pytest.approx(rate, rel=0.04)


@given(
    seed=st.integers(0, 2**40),
    rate=st.floats(1e-3, 1e4),
    kind=st.sampled_from(["poisson", "gamma", "constant"]),
)
@settings(max_examples=40, deadline=None)
def test_a_rate_only_stretches(seed: int, rate: float, kind: str) -> None:
    spec = workload(Arrivals(kind=kind, burstiness=0.5))  # type: ignore[arg-type]
    slow, slow_prompts, slow_outputs = columns(spec, rate, 2, seed)
    fast, fast_prompts, fast_outputs = columns(spec, 2 * rate, 2, seed)
    assert (np.abs(slow - 2 * fast) <= 1 + slow * 1e-15).all()
    assert (slow_prompts == fast_prompts).all()
    assert (slow_outputs == fast_outputs).all()
    assert (np.diff(slow) >= 0).all()


def test_lengths_do_not_move_the_arrivals() -> None:
    one, _, _ = columns(workload(), 3.0, 1)
    other, _, _ = columns(workload(prompt=Lengths(kind="empirical", values=(5, 9), weights=(1, 3))), 3.0, 1)
    assert (one == other).all()


def test_bursts_come_on_top_and_are_not_scaled() -> None:
    spec = workload(Arrivals(burst_size=50, burst_every_s=10.0))
    for rate in (2.0, 8.0):
        due, _, _ = columns(spec, rate, 4)
        assert (np.diff(due) >= 0).all()
        horizon_s = due[-1] / 1e9
        at_ten, at_twenty = (due == 10_000_000_000).sum(), (due == 20_000_000_000).sum()
        assert at_ten == at_twenty == 50
        base = len(due) - 50 * int(horizon_s // 10)
        assert base / horizon_s == pytest.approx(rate, rel=0.25)


def test_bursts_between_rare_arrivals_stay_in_chunks() -> None:
    due, _, _ = columns(workload(Arrivals(burst_size=3, burst_every_s=0.5)), 0.001, 2)
    assert len(due) == 2 * CHUNK
    assert (due[:6] == [500_000_000] * 3 + [1_000_000_000] * 3).all()


def test_lognormal_moments() -> None:
    _, prompts, _ = columns(workload(prompt=Lengths(kind="lognormal", mean=500, cv=0.5)), 1.0, 100)
    assert prompts.mean() == pytest.approx(500, rel=0.01)
    assert prompts.std() / prompts.mean() == pytest.approx(0.5, rel=0.03)


def test_empirical_and_uniform_shares() -> None:
    spec = workload(prompt=Lengths(kind="empirical", values=(10, 20, 30), weights=(1, 0, 3)))
    _, prompts, outputs = columns(spec, 1.0, 50)
    assert set(prompts.tolist()) == {10, 30}
    assert (prompts == 30).mean() == pytest.approx(0.75, abs=0.01)
    assert outputs.min() == 10
    assert outputs.max() == 300
    assert outputs.mean() == pytest.approx(155, rel=0.01)


@pytest.mark.parametrize(
    ("arrivals", "lengths", "rate", "names"),
    [
        (Arrivals(), None, 0.0, "rate"),
        (Arrivals(), None, math.inf, "rate"),
        (Arrivals(), None, math.nan, "rate"),
        (Arrivals(kind="gamma", burstiness=0), None, 1.0, "burstiness"),
        (Arrivals(burst_size=5), None, 1.0, "bursts"),
        (Arrivals(), Lengths(kind="fixed", mean=0), 1.0, "mean"),
        (Arrivals(), Lengths(kind="uniform", low=5, high=4), 1.0, "5 to 4"),
        (Arrivals(), Lengths(kind="lognormal", mean=10, cv=-1), 1.0, "variation"),
        (Arrivals(), Lengths(kind="empirical"), 1.0, "empirical"),
        (Arrivals(), Lengths(kind="empirical", values=(1, 2), weights=(1,)), 1.0, "weights"),
        (Arrivals(), Lengths(kind="empirical", values=(1, 2), weights=(0, 0)), 1.0, "weights"),
    ],
)
def test_what_cannot_be_is_refused_at_once(
    arrivals: Arrivals, lengths: Lengths | None, rate: float, names: str
) -> None:
    with pytest.raises(UsageError, match=names):
        schedule(workload(arrivals, lengths), rate, 1)


GOLDEN_DUE_NS = [598670520, 632769588, 1711747511, 3182683876, 4229783712]
GOLDEN_PROMPTS = [1256, 854, 4021, 450, 1158]
GOLDEN_OUTPUTS = [193, 151, 19, 207, 197]
