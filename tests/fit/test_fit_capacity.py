import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knee.core.errors import UsageError
from knee.fit.answer import FitAnswer, judge
from knee.fit.capacity import apply_rule, capacity_of, usable_tokens
from knee.fit.log import read_log
from knee.fit.startup import EngineKv, StartupReport
from knee.fit.text import answer_lines


def server(*engines: EngineKv, **more: object) -> StartupReport:
    return StartupReport(status="ready", engines=engines, **more)  # type: ignore[arg-type]


DOCUMENT = EngineKv(name="0", kv_tokens=327_680, concurrency=10.0, max_model_len=32_768)


def test_the_documents_example() -> None:
    """327,680 tokens and a p95 of 6,000: about 54 requests; 256 is far too many."""
    found = capacity_of(server(DOCUMENT, max_num_seqs=256), 6000)
    assert found is not None
    assert (found.requests, found.recommended, found.verdict) == (54, 49, "too many")


@pytest.mark.parametrize(
    ("cap", "verdict"),
    [(49, "fits"), (50, "no margin"), (54, "no margin"), (55, "too many"), (None, "too many")],
)
def test_verdicts_around_the_bound(cap: int | None, verdict: str) -> None:
    assert apply_rule(327_680, 6000, cap).verdict == verdict


@given(
    st.integers(0, 10**8), st.floats(1, 10**6), st.floats(0, 0.9), st.one_of(st.none(), st.integers(1, 2048))
)
def test_the_rule_holds_for_what_it_recommends(
    tokens: int, each: float, margin: float, cap: int | None
) -> None:
    found = apply_rule(tokens, each, cap, margin=margin)
    assert (
        found.requests * found.tokens_per_request <= tokens < (found.requests + 1) * found.tokens_per_request
    )
    assert 0 <= found.recommended <= found.requests
    assert found.recommended * each <= tokens * (1 - margin) + 1
    if found.recommended:
        assert apply_rule(tokens, each, found.recommended, margin=margin).verdict == "fits"


@pytest.mark.parametrize(
    ("each", "margin"),
    [(0, 0.1), (-5, 0.1), (float("nan"), 0.1), (float("inf"), 0.1), (100, 1.0), (100, -0.1)],
)
def test_senseless_numbers_are_refused(each: float, margin: float) -> None:
    with pytest.raises(UsageError):
        apply_rule(1000, each, 10, margin=margin)


def test_the_smallest_engine_binds() -> None:
    small = EngineKv(name="DP1", kv_tokens=70_000, concurrency=17.09, max_model_len=4096)
    large = EngineKv(name="DP0", kv_tokens=90_000, concurrency=21.97, max_model_len=4096)
    found = capacity_of(server(large, small, max_num_seqs=16), 4000)
    assert found is not None
    assert found.kv_tokens == 70_000
    assert "the smallest (DP1) binds" in found.notes[-1]


def test_the_product_is_taken_for_hybrid_models_only_before_0_21() -> None:
    hybrid = EngineKv(name="0", kv_tokens=290_864, concurrency=33.04, max_model_len=32_768)
    assert usable_tokens(hybrid, "0.19.0")[0] == 1_082_654
    assert usable_tokens(hybrid, "0.21.0")[0] == 290_864
    assert usable_tokens(EngineKv(name="0", concurrency=2.0, max_model_len=4096))[0] == 8192
    assert usable_tokens(EngineKv(name="0"))[0] is None


def test_requests_longer_than_the_cache_or_the_context_are_said() -> None:
    """vllm issue 39734: 76,640 tokens of cache, max_model_len 262,144: a request of 100,000 blocks all."""
    tight = EngineKv(name="0", kv_tokens=76_640, concurrency=0.29, max_model_len=262_144)
    found = capacity_of(server(tight, max_num_seqs=256, version="0.22.0"), 100_000)
    assert found is not None
    assert (found.requests, found.verdict) == (0, "too many")
    assert any("it waits forever" in note for note in found.notes)
    over = capacity_of(server(DOCUMENT, max_num_seqs=2), 40_000)
    assert over is not None
    assert any("those are refused" in note for note in over.notes)


def test_a_report_without_capacity_gives_none() -> None:
    assert capacity_of(StartupReport(status="unfinished"), 6000) is None


LOG = (
    "INFO 06-01 09:22:28 [api_utils.py:286] non-default args: {'max_num_seqs': 256}\n"
    "INFO 06-01 09:22:30 [kv_cache_utils.py:2327] GPU KV cache size: 327,680 tokens, Maximum concurrency for "
    "32,768 tokens per request: 10.00x\n"
)


def answer_log(stream: io.BytesIO, p95: float | None = None, max_num_seqs: int | None = None) -> FitAnswer:
    return judge(read_log(stream), p95, max_num_seqs=max_num_seqs)


def test_the_answer_shows_arithmetic_verdict_and_flag() -> None:
    answer = answer_log(io.BytesIO(LOG.encode()), 6000)
    text = "\n".join(answer_lines(answer))
    assert answer.fits is False
    assert "327,680 KV tokens / 6,000 tokens a request (p95) = 54.61 -> 54 requests" in text
    assert "327,680 x 0.9 / 6,000 = 49.15 -> 49 with 10% margin" in text
    assert "max_num_seqs 256 > 49" in text
    assert "flag            --max-num-seqs 49" in text


def test_without_a_length_the_break_even_is_told() -> None:
    answer = answer_log(io.BytesIO(LOG.encode()))
    assert answer.fits
    assert "256 fits while p95 tokens per request stay at or below 1,152" in answer.verdict
    assert capacity_of(server(DOCUMENT, max_num_seqs=256), 1152).verdict == "fits"  # type: ignore[union-attr]
    assert capacity_of(server(DOCUMENT, max_num_seqs=256), 1153).verdict != "fits"  # type: ignore[union-attr]


def test_an_unknown_cap_is_not_guessed() -> None:
    log = LOG.splitlines(keepends=True)[1]
    answer = answer_log(io.BytesIO(log.encode()), 600)
    assert answer.fits is None
    assert answer.flag == "--max-num-seqs 491"
    assert answer_log(io.BytesIO(log.encode()), 600, max_num_seqs=400).fits
