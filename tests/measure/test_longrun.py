"""The long-run knee does not depend on where one began to look for it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knee.core.slo import parse_slo
from knee.measure.model.longrun import expit, logit, long_run_knee
from knee.stats.batches import Share

SLO = parse_slo("ttft p95 < 1s, itl p99 < 50ms")
KNEE = 7.0


def _share(value: float) -> Share:
    return Share(value=value, trials=20_000, degrees=100, samples=100_000)


@given(
    st.floats(math.log(0.5), math.log(200)),
    st.floats(math.log(0.5), math.log(200)),
    st.floats(-0.6, 0.6),
    st.floats(0.01, 2.0),
)
def test_any_guess_leads_to_it(log_slope: float, other: float, away: float, later: float) -> None:
    """Log odds that rise at any slope with the log of the rate; the second objective breaks later."""

    def shares(rate: float) -> tuple[Share, ...]:
        odds = logit(0.01) + math.exp(log_slope) * math.log(rate / KNEE)
        loose = logit(0.05) + math.exp(other) * (math.log(rate / KNEE) - later)
        return _share(expit(loose)), _share(expit(odds))

    found = long_run_knee(shares, SLO, KNEE * math.exp(away))
    assert found.knee == pytest.approx(KNEE, rel=0.05)
    assert found.binding == 1


@given(st.floats(math.log(0.5), math.log(200)), st.sampled_from((1.0, 1.001, 0.95)))
def test_the_error_follows_from_the_slope_even_where_the_guess_is_the_knee(
    log_slope: float, guess: float
) -> None:
    """A search refits its model and begins at the knee it knows."""

    def shares(rate: float) -> tuple[Share, ...]:
        return (_share(expit(logit(0.05) + math.exp(log_slope) * math.log(rate / KNEE))),)

    found = long_run_knee(shares, parse_slo("ttft p95 < 1s"), KNEE * guess)
    assert found.slopes[0] == pytest.approx(math.exp(log_slope), rel=0.05)
    assert found.error == pytest.approx(1 / math.sqrt(20_000 * 0.05 * 0.95) / math.exp(log_slope), rel=0.2)


def test_an_objective_that_is_hardly_ever_broken_does_not_hide_the_knee() -> None:
    """Server 80 of `bench/_drawn.py`: nine gaps in 100,000 break a bound of which one in a hundred may."""

    def shares(rate: float) -> tuple[Share, ...]:
        odds = logit(0.05) + 17 * math.log(rate / KNEE)
        return _share(expit(odds)), _share(9e-5)

    found = long_run_knee(shares, SLO, 0.98 * KNEE)
    assert found.knee == pytest.approx(KNEE, rel=0.01)
    assert found.binding == 0


def test_a_knee_that_is_nowhere_near_is_not_found() -> None:
    with pytest.raises(ValueError, match="no knee near"):
        long_run_knee(lambda _: (_share(0.0), _share(0.0)), SLO, KNEE)
