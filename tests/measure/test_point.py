import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from knee.core.requests import CENSORED, FAILED, NEVER, OK, REJECTED, Gaps, Observed, column
from knee.core.slo import parse_slo
from knee.measure.point import make_point, summarize
from knee.measure.target import Measured, Offer, Stop
from knee.workload.spec import Lengths, Workload

MS, S = 1_000_000, 1_000_000_000
WORKLOAD = Workload(
    prompt_tokens=Lengths(kind="fixed", mean=100), output_tokens=Lengths(kind="fixed", mean=11)
)


def _observed(
    outcomes: list[int],
    *,
    ttft_ms: float = 50,
    gap_ms: float = 10,
    spacing_ms: float = 100,
    got: int = 11,
    gap_tokens: int = 1,
) -> Observed:
    """Requests at even spacing; failed ones ended after `got` tokens, censored ones never began."""
    n = len(outcomes)
    outcome = np.array(outcomes, dtype=np.int8)
    due = (np.arange(n) * spacing_ms * MS).astype(np.int64)
    begun = (outcome == OK) | (outcome == FAILED)
    first = np.where(begun, due + round(ttft_ms * MS), NEVER)
    tokens = np.where(outcome == OK, 11, np.where(outcome == FAILED, got, 0))
    last = np.where(begun, first + ((tokens - 1) * gap_ms * MS).astype(np.int64), NEVER)
    at = [f + round((k + 1) * gap_ms * MS) for f, t in zip(first, tokens, strict=True) for k in range(t - 1)]
    at_ns = column(sorted(at))
    return Observed(
        due_ns=due,
        sent_ns=due + MS,
        first_ns=first,
        last_ns=last,
        end_ns=np.where(outcome == CENSORED, n * spacing_ms * MS + 10 * S, np.maximum(last, due)).astype(
            np.int64
        ),
        outcome=outcome,
        prompt_tokens=np.full(n, 100),
        asked_tokens=np.full(n, 11),
        output_tokens=tokens,
        first_tokens=np.ones(n, dtype=np.int64),
        gaps=Gaps(ns=np.full(len(at), round(gap_ms * MS)), count=np.full(len(at), gap_tokens), at_ns=at_ns),
        end_of_load_ns=round(n * spacing_ms * MS),
    )


def _offer(n: int, warmup_s: float = 0) -> Offer:
    return Offer(
        workload=WORKLOAD,
        rate=10,
        seed=1,
        warmup_ns=round(warmup_s * S),
        window_ns=round(n * 0.1 * S - warmup_s * S),
        drain_ns=10 * S,
    )


def _measured(observed: Observed, stopped: Stop = "") -> Measured:
    return Measured(observed=observed, spent_ns=30 * S, stopped=stopped)


@given(st.lists(st.sampled_from([OK, FAILED, REJECTED, CENSORED]), min_size=1, max_size=80), st.floats(0, 2))
def test_the_books_balance(outcomes: list[int], warmup_s: float) -> None:
    point = make_point(
        _measured(_observed(outcomes)), _offer(len(outcomes), min(warmup_s, 0.1 * len(outcomes)))
    )
    assert point.offered == point.ok + point.failed + point.rejected + point.censored
    assert point.ttft_ms.n == point.offered
    assert point.ttft_ms.n_infinite == point.offered - point.ok


def test_figures_of_a_quiet_point() -> None:
    point = make_point(_measured(_observed([OK] * 300)), _offer(300, warmup_s=5))
    assert point.offered == 250
    assert point.attained_rate == pytest.approx(10, rel=0.01)
    assert point.served_rate == pytest.approx(10, rel=0.01)
    assert point.output_tokens_per_s == pytest.approx(110, rel=0.01)
    assert point.ttft_ms.p95 == 50
    assert point.itl_ms.p95 == 10
    assert point.itl_ms.p99 == 10
    assert point.tpot_ms.p50 == 10
    assert point.e2e_ms.p50 == 150
    assert point.send_lag_ms.p50 == 1
    assert point.ttft_ms.p99 is None
    assert point.ttft_ms.unsupported == ("p99",)
    assert point.judged == ()
    assert point.holds is None


def test_failures_are_infinitely_slow_and_never_vanish() -> None:
    # The truth of a known benchmark trap: 20 % failures make everything from p81 up unbounded.
    outcomes = ([OK] * 8 + [FAILED, REJECTED]) * 80
    point = make_point(_measured(_observed(outcomes, got=3)), _offer(800))
    assert point.ttft_ms.p50 == 50
    assert point.ttft_ms.p90 is None
    assert point.ttft_ms.unsupported == ()
    assert point.ttft_ms.n_infinite == 160
    # 8 x 10 gaps and 2 of the failed one were seen; 8 + 10 tokens never came.
    assert point.itl_ms.n_infinite == 80 * 18
    assert point.itl_ms.n == 80 * 100
    assert point.itl_ms.p90 is None


def test_verdicts_of_an_slo() -> None:
    slo = parse_slo("ttft p95 < 60ms, itl p99 < 5ms, errors < 1%, goodput > 99%")
    point = make_point(_measured(_observed([OK] * 600)), _offer(600), slo)
    ttft, itl, errors, goodput = point.judged
    assert (ttft.holds, ttft.value) == (True, 50)
    assert (itl.holds, itl.value) == (False, 10)
    assert (errors.holds, errors.value) == (True, 0)
    assert (goodput.holds, goodput.value) == (False, 0)  # the gaps break its bound for every request
    assert point.holds is False


def test_too_few_requests_decide_nothing() -> None:
    point = make_point(_measured(_observed([OK] * 20)), _offer(20), parse_slo("ttft p95 < 60ms"))
    assert point.holds is None
    assert point.judged[0].high is None


def test_a_lost_share_close_to_the_bound_stays_undecided() -> None:
    outcomes = ([OK] * 19 + [REJECTED]) * 20
    point = make_point(_measured(_observed(outcomes)), _offer(400), parse_slo("rejected < 5%"))
    assert point.judged[0].value == 0.05
    assert point.holds is None


def test_a_point_stopped_early_does_not_call_running_requests_lost() -> None:
    outcomes = [OK] * 390 + [CENSORED] * 10
    slo = parse_slo("ttft p95 < 2s")
    stopped = make_point(_measured(_observed(outcomes), "clearly holds"), _offer(600), slo)
    assert stopped.window_end_ns == 38 * S  # two seconds before the stop at 40 s
    assert (stopped.offered, stopped.censored, stopped.ttft_ms.n_infinite) == (380, 0, 0)
    whole = make_point(_measured(_observed(outcomes)), _offer(400), slo)
    assert whole.ttft_ms.n_infinite == 10


def test_waits_beyond_the_bound_at_an_early_stop_are_violations() -> None:
    outcomes = [OK, CENSORED] * 200
    point = make_point(
        _measured(_observed(outcomes), "clearly breaks"), _offer(600), parse_slo("ttft p95 < 2s")
    )
    assert point.offered == 380
    assert point.censored == 190
    assert point.holds is False


def test_a_drift_is_noted() -> None:
    observed = _observed([OK] * 400)
    slower = observed.first_ns + (np.arange(400) * MS)
    grown = Observed(
        **{name: getattr(observed, name) for name in observed.__struct_fields__} | {"first_ns": slower}
    )
    assert "rises" in make_point(_measured(grown), _offer(400)).notes[0]
    assert make_point(_measured(observed), _offer(400)).notes == ()


def test_an_empty_window_gives_a_point_without_figures() -> None:
    point = make_point(_measured(_observed([OK])), _offer(1, warmup_s=0.1))
    assert point.offered == 0
    assert point.ttft_ms.p50 is None


def test_a_summary_names_what_it_cannot_support() -> None:
    found = summarize(np.arange(71.0))
    assert found.p99 is None
    assert found.unsupported == ("p99",)
    assert found.p95 == 67
