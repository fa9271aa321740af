"""Public reports with their values → the reading they turned out to have, or abstention."""

import pytest
from tests.diagnose.worlds import ITL, STEPS, TOKENS, TTFT, histogram, world

from knee.core.point import Point, Summary
from knee.core.slo import parse_slo
from knee.diagnose.diagnose import diagnose
from knee.diagnose.facts import Facts
from knee.diagnose.verdict import Diagnosis
from knee.engine.config import REFERENCE
from knee.measure.simulated import SimulatedTarget
from knee.measure.target import Offer
from knee.metrics.window import mean
from knee.workload.spec import Lengths, Workload


def found(d: Diagnosis) -> set[str]:
    return {finding.name for finding in d.findings}


IDLE = {"generation_tokens": 0.0, "prompt_tokens": 0.0}


def test_case_1_a_prompt_longer_than_the_cache_blocks_all() -> None:
    """vllm#39734: 76,640 KV tokens, max_model_len 262,144; a 100k prompt: R0 W1 KV 0% 0 tok/s until abort."""
    facts = Facts(flags={"max_model_len": "262144", "kv_cache_size_tokens": "76640"})
    d = diagnose(world([0] * 4, [1] * 4, [0.0] * 4, counters=IDLE), facts)
    assert (d.limit, d.answer, d.confidence) == ("unservable", "bound", "high")
    assert d.move is not None
    assert (d.move.flag, d.move.current, d.move.to) == ("max_model_len", "262144", "76640")


@pytest.mark.parametrize("limit", ["76640", "32768"])
def test_case_1_a_context_that_fits_is_never_unservable(limit: str) -> None:
    facts = Facts(flags={"max_model_len": limit, "kv_cache_size_tokens": "76640"})
    assert diagnose(world([0] * 4, [1] * 4, [0.0] * 4, counters=IDLE), facts).limit == "stalled"


def test_case_2_nothing_happens_for_nine_minutes_and_health_is_200() -> None:
    """vllm#45414: R0 W5-6, KV 0.0%, 9+ min → a stall, not load."""
    d = diagnose(world([0] * 55, [5] * 30 + [6] * 25, [0.0] * 55, counters=IDLE))
    assert (d.limit, d.confidence) == ("stalled", "high")
    assert d.move is None


def test_case_4_preempted_and_resumed_every_step() -> None:
    """vllm#25538: only one chunk's blocks are checked: preempt and resume for ever, nothing comes out."""
    counters = {
        "generation_tokens": 0.0,
        "prompt_tokens": 0.0,
        "num_preemptions": 4000.0,
        "request_success{stop}": 0.0,
    }
    d = diagnose(world([1, 0, 1, 1], [1, 2, 1, 1], [0.97, 0.2, 0.99, 0.98], counters=counters))
    assert d.limit == "stalled"
    assert "preempted and resumed" in d.why


def test_case_5_over_admission_is_a_trade() -> None:
    """vllm#44594: 299,584 KV tokens, cap 128, 1,065 preemptions; fewer at the price of TTFT 6.6 → 11.2 s."""
    d = diagnose(
        world(
            [90, 95, 92], [40, 60, 80], [0.99, 0.97, 1.0],
            counters={"num_preemptions": 1065.0, "request_success{length}": 1000.0},
            histograms={
                "request_prompt_tokens": histogram([1000.0] * 10, TOKENS),
                "request_generation_tokens": histogram([2000.0] * 10, TOKENS),
            },
            info={"kv_cache_size_tokens": "299584"},
        ),
        Facts(flags={"max_num_seqs": "128"}),
    )  # fmt: skip
    assert d.limit == "kv_memory"
    assert d.move is not None
    assert (d.move.flag, d.move.to) == ("max_num_seqs", "99")
    assert "time to first token" in d.move.price


R18 = world([18], [33], [0.877], counters=None)


def test_case_7_several_lines_not_one() -> None:
    """vllm#43295: R18 W43 95.9%, R21 W23 95.9%, R18 W33 87.7% (mid-refill), R20 W23 98.4% → the cache."""
    d = diagnose(
        world(
            [18, 21, 18, 20],
            [43, 23, 33, 23],
            [0.959, 0.959, 0.877, 0.984],
            counters={"prompt_tokens": 120_690.0},
        )
    )
    assert (d.limit, d.confidence) == ("kv_memory", "high")
    assert d.move is not None
    assert d.move.flag in ("kv_cache_dtype", "gpu_memory_utilization", "tensor_parallel_size")
    assert "preemptions" not in found(d)


def test_case_7_the_line_in_the_middle_of_a_refill_alone_decides_nothing() -> None:
    d = diagnose(R18)
    assert (d.limit, d.answer) == (None, "cannot tell")
    assert "one more window" in d.decide


def test_case_8_a_cap_that_memory_cannot_carry() -> None:
    """Tandemn#11: cap 256, 77,088 KV tokens, R~72 W~184, 480 preemptions → cap 70 to 80 (77,088 / ~1,050)."""
    d = diagnose(
        world(
            [72, 71, 73], [184, 180, 188], [0.99, 0.98, 0.99],
            counters={"num_preemptions": 480.0, "request_success{length}": 900.0},
            histograms={
                "request_prompt_tokens": histogram([800.0] * 10, TOKENS),
                "request_generation_tokens": histogram([250.0] * 10, TOKENS),
            },
        ),
        Facts(flags={"max_num_seqs": "256", "kv_cache_size_tokens": "77088"}),
    )  # fmt: skip
    assert (d.limit, d.confidence) == ("kv_memory", "high")
    assert d.move is not None
    assert (d.move.flag, d.move.current) == ("max_num_seqs", "256")
    assert 70 <= int(d.move.to) <= 80


def test_case_10_near_the_top_with_spikes_of_waiting() -> None:
    """vllm#23444: near 100% KV, waiting spikes, throughput dies."""
    d = diagnose(world([40, 38, 41, 22], [0, 30, 80, 120], [0.97, 0.99, 0.995, 0.99]))
    assert d.limit == "kv_memory"
    assert any("preemption" in name for name in d.watch)


def test_case_11_time_to_full_from_the_slope() -> None:
    """vllm#18115: R8, KV 91.2 → 95.8%, steady, collapses at 100%: warn before."""
    usage = [0.912 + 0.0046 * i for i in range(11)]
    d = diagnose(world([8] * 11, [0] * 11, usage, counters={"generation_tokens": 24_000.0}))
    assert d.limit == "none"
    warned = next(finding for finding in d.findings if finding.name == "kv_full_in")
    assert warned.weight == "warning"
    assert warned.value == pytest.approx(91, rel=0.15)  # 4.2 points left at 0.46 points in ten seconds


def test_case_13_refused_at_a_sixth_of_the_cache() -> None:
    """llm-d#1500: 1000/250 tokens, requests dropped at 16.2% KV → the rate, not the cache."""
    d = diagnose(
        world([30, 31, 29], [20, 40, 30], [0.162] * 3,
              counters={"admission_rejections{max_num_queued_reqs}": 50.0, "request_success{length}": 500.0}),
    )  # fmt: skip
    assert d.limit == "shedding"
    assert "kv_memory" not in {binding.limit for binding in d.further}
    assert any("no sign of load" in e.reason for e in d.evidence)


def test_case_14_one_sequence_at_a_time() -> None:
    """max_num_seqs=1: R1 W1-2; the second waits as long as the first runs; 4 slots cost 3% of the cache."""
    d = diagnose(world([1] * 6, [1, 2, 1, 2, 1, 2], [0.008] * 6), Facts(flags={"max_num_seqs": "1"}))
    assert (d.limit, d.confidence) == ("sequence_cap", "high")
    assert d.move is not None
    assert (d.move.flag, d.move.current) == ("max_num_seqs", "1")
    assert int(d.move.to) in range(2, 5)


def test_case_16_a_larger_batch_has_longer_gaps() -> None:
    """vllm#17598: 16 req/s, cap 16 → 32: ITL 8.2 → 9.4 ms, as expected; judge by TTFT."""
    d = diagnose(
        world(
            [16] * 5,
            [20, 30, 25, 35, 30],
            [0.2] * 5,
            histograms={"inter_token_latency_seconds": histogram([0.0082] * 50, ITL)},
        ),
        Facts(flags={"max_num_seqs": "16"}),
    )
    assert d.limit == "sequence_cap"
    assert d.move is not None
    assert 32 <= int(d.move.to) <= 64
    assert "gap between tokens grows" in d.move.price
    assert "time to first token" in d.move.price
    assert any(name.startswith("inter_token_latency") for name in d.watch)


def test_case_17_low_cache_low_running_many_pending() -> None:
    """vllm#13508: cap 64, budget 4096, low KV, low R, high pending → not KV, not sequences; abstain."""
    facts = Facts(flags={"max_num_seqs": "64", "max_num_batched_tokens": "4096"})
    d = diagnose(
        world([6, 7, 6], [80, 90, 100], [0.1, 0.1, 0.1], counters={"generation_tokens": 500.0}), facts
    )
    assert (d.limit, d.answer) == (None, "cannot tell")
    assert "kv_memory" not in d.candidates
    assert "sequence_cap" not in d.candidates
    assert "token_budget" in d.candidates
    assert "histograms" in d.decide


def test_case_17_with_queue_and_prefill_metrics_it_is_the_budget() -> None:
    facts = Facts(flags={"max_num_seqs": "64", "max_num_batched_tokens": "4096"})
    d = diagnose(
        world(
            [6, 7, 6], [80, 90, 100], [0.1] * 3,
            counters={"generation_tokens": 500.0, "prompt_tokens": 100_000.0, "request_success{stop}": 30.0},
            histograms={
                "iteration_tokens": histogram([4096.0] * 30 + [6.0] * 10, STEPS),
                "request_queue_time_seconds": histogram([20.0] * 30),
                "time_to_first_token_seconds": histogram([24.0] * 30, TTFT),
            },
        ),
        facts,
    )  # fmt: skip
    assert d.limit == "token_budget"
    assert d.move is not None
    assert (d.move.flag, d.move.current, d.move.to) == ("max_num_batched_tokens", "4096", "8192")


def test_case_19_a_long_prompt_beside_a_stream() -> None:
    """65,535-token prompt: the other stream falls from 272.6 to 6.62 tok/s; pool 1.376M tokens → chunks."""
    d = diagnose(
        world(
            [2, 2, 1], [0, 0, 0], [0.05, 0.05, 0.01],
            counters={"prompt_tokens": 65_535.0, "generation_tokens": 3000.0},
            histograms={
                "inter_token_latency_seconds": histogram([1 / 272.6] * 900 + [1 / 6.62] * 100, ITL),
                "time_to_first_token_seconds": histogram([16.5], TTFT),
                "request_queue_time_seconds": histogram([0.0]),
                "request_prefill_time_seconds": histogram([16.4]),
            },
            info={"kv_cache_size_tokens": "1376000"},
        ),
        Facts(flags={"max_num_batched_tokens": "8192"}),
    )  # fmt: skip
    assert d.limit == "prefill_interference"
    assert d.move is not None
    assert d.move.flag == "max_num_batched_tokens"
    assert int(d.move.to) < 8192


def test_case_20_a_budget_of_seconds() -> None:
    """Budget 8192 at 2,400 tok/s = 3.4 s a step; decode at 0.2 tok/s for 110 s, then 26 to 29."""
    d = diagnose(
        world(
            [3] * 11, [0] * 11, [0.1] * 11,
            counters={"prompt_tokens": 264_000.0, "generation_tokens": 900.0},
            histograms={
                "inter_token_latency_seconds": histogram([1 / 27] * 900 + [3.4] * 64, ITL),
                "iteration_tokens": histogram([8192.0] * 32 + [3.0] * 300, STEPS),
            },
        ),
        Facts(flags={"max_num_batched_tokens": "8192"}),
    )  # fmt: skip
    assert (d.limit, d.confidence) == ("prefill_interference", "high")
    assert d.move is not None
    assert 128 <= int(d.move.to) <= 512  # 2,400 tokens/s times the 0.2 s that a step should take


def test_case_22_lowering_a_cap_is_judged_by_the_tail() -> None:
    """vllm#41399: limit 8 improves the mean TTFT, limit 4 the mean too, but P99 goes 3,597 → 6,348 ms."""
    d = diagnose(
        world(
            [20] * 3,
            [9] * 3,
            [0.99] * 3,
            counters={"num_preemptions": 100.0, "request_success{stop}": 100.0},
            histograms={
                "request_prompt_tokens": histogram([1000.0], TOKENS),
                "request_generation_tokens": histogram([500.0], TOKENS),
            },
        ),
        Facts(flags={"max_num_seqs": "32", "kv_cache_size_tokens": "12000"}),
    )
    assert d.move is not None
    assert d.move.flag == "max_num_seqs"
    assert "tail" in d.move.price
    assert "time_to_first_token_seconds p99" in d.watch


def test_case_23_one_tokenizer_thread() -> None:
    """vllm#25301: high TTFT, low queue time → the front end."""
    d = diagnose(
        world(
            [10, 12, 11], [0, 0, 0], [0.2] * 3,
            histograms={
                "time_to_first_token_seconds": histogram([2.0] * 50, TTFT),
                "request_queue_time_seconds": histogram([0.02] * 50),
                "request_prefill_time_seconds": histogram([0.15] * 50),
            },
        )
    )  # fmt: skip
    assert (d.limit, d.confidence) == ("front_end", "high")
    assert d.move is not None
    assert d.move.flag == "api_server_count"


def test_case_25_a_client_that_sends_late_measures_itself() -> None:
    """vllm#54101: 500 ms became 1,924 ms mean, 3,321 ms P99, counted from the intended send time."""
    summary = Summary(n=100)
    point = Point(
        rate=20,
        attained_rate=12,
        served_rate=12,
        seed=1,
        window_start_ns=0,
        window_end_ns=1,
        spent_ns=1,
        offered=100,
        ok=100,
        failed=0,
        rejected=0,
        censored=0,
        itl_ms=summary,
        tpot_ms=summary,
        e2e_ms=summary,
        ttft_ms=Summary(n=100, mean_finite=1924.0, p99=3321.0),
        send_lag_ms=Summary(n=100, mean_finite=1424.0),
        output_tokens_per_s=1,
        prompt_tokens_mean=1,
        output_tokens_mean=1,
    )
    d = diagnose(world([5, 5], [0, 0], [0.1, 0.1]), Facts(point=point))
    assert (d.limit, d.answer) == ("client", "not bound")


def test_case_26_a_prefix_cache_that_keeps_nothing() -> None:
    """vllm#48435: hits 0 at 25% pool use, warm TTFT = cold → retention, not capacity."""
    d = diagnose(
        world(
            [1, 1, 1],
            [0, 0, 0],
            [0.25] * 3,
            counters={"prefix_cache_queries": 42_000.0, "prefix_cache_hits": 0.0},
        )
    )
    assert d.limit == "none"
    assert "prefix_cache_keeps_nothing" in found(d)
    assert "PREFIX_CACHE_RETENTION_INTERVAL" in next(f.text for f in d.findings)


def test_case_38_usage_over_replicas_is_never_a_sum() -> None:
    """Two caches at 40% are not one at 80%; the fuller one speaks."""
    one, two = world([4, 4], [0, 0], [0.4, 0.4]), world([4, 4], [0, 0], [0.4, 0.4], label="1")
    both = type(one)(start_ns=0, end_ns=one.end_ns, engines=one.engines | two.engines)
    d = diagnose(both)
    assert d.limit == "none"
    assert d.engines == 2
    assert "40%" in d.why


def test_case_40_preemptions_since_boot_are_not_preemptions_now() -> None:
    """An idle server whose counter stands at 1,200 since boot."""
    d = diagnose(world([0, 0, 0], [0, 0, 0], [0.0] * 3, counters={"num_preemptions": 0.0}))
    assert d.limit == "none"
    assert "preemptions" not in found(d)


def test_case_40_preemptions_by_reason_are_counted_once() -> None:
    counters = {
        "num_preemptions{kv_full}": 30.0,
        "num_preemptions{priority}": 10.0,
        "request_success{stop}": 100.0,
    }
    d = diagnose(world([30, 30], [5, 5], [0.97, 0.98], counters=counters))
    assert d.limit == "kv_memory"
    assert next(f.value for f in d.findings if f.name == "preemptions") == 40


def test_case_41_a_simulated_server_s_ttft_includes_its_queue() -> None:
    """llm-d-inference-sim#266: TTFT configured 4 s, metric 6.5 s, real waits of 10 s to 3 min under load."""
    target = SimulatedTarget(REFERENCE)
    lengths = Workload(prompt_tokens=Lengths(mean=1000), output_tokens=Lengths(mean=200))
    offer = Offer(workload=lengths, rate=24, seed=5, warmup_ns=10**10, window_ns=6 * 10**10, drain_ns=0)
    engine = next(iter((target.measure(offer).window or world()).engines.values()))
    ttft, queue = (
        engine.histograms[name] for name in ("time_to_first_token_seconds", "request_queue_time_seconds")
    )
    assert (mean(queue) or 0) > 3
    assert (mean(ttft) or 0) > (mean(queue) or 0)


def test_case_43_not_even_one_request_meets_the_objective() -> None:
    """dynamo#11624: TTFT infeasible for a single request → say so."""
    d = diagnose(
        world(
            [1, 1, 0],
            [0, 0, 0],
            [0.01] * 3,
            histograms={
                "request_prefill_time_seconds": histogram([2.2] * 5),
                "time_to_first_token_seconds": histogram([2.3] * 5, TTFT),
                "request_queue_time_seconds": histogram([0.0] * 5),
            },
        ),
        Facts(slo=parse_slo("ttft p95 < 1s")),
    )
    assert "infeasible" in found(d)
    assert "no number of replicas" in next(f.text for f in d.findings if f.name == "infeasible")


def test_case_44_a_ramp_is_not_a_limit() -> None:
    """intel/llm-scaler#77: R17 W15 KV 6.0%, prompt 1,740 tok/s; the next line: R32 W0."""
    d = diagnose(world([17, 32], [15, 0], [0.06, 0.11], counters={"prompt_tokens": 17_400.0}))
    assert d.answer == "not bound"
    assert "ramp" in found(d)


def test_case_44_its_first_line_alone_decides_nothing() -> None:
    d = diagnose(world([17], [15], [0.06]))
    assert d.answer == "cannot tell"
    assert "one more window" in d.decide


def test_the_document_s_own_question() -> None:
    """TTFT and queue time high, usage 0.6, running = max_num_seqs → the sequence cap; raise it."""
    d = diagnose(world([128, 128, 127], [60, 80, 90], [0.6] * 3), Facts(flags={"max_num_seqs": "128"}))
    assert d.limit == "sequence_cap"
    assert d.move is not None
    assert d.move.flag == "max_num_seqs"
    assert 128 < int(d.move.to) <= 192  # 128 at 60% leave room for 192 at 90%
    assert any("preemption" in name for name in d.watch)


def test_latency_that_grows_without_bound_has_no_admission_control() -> None:
    d = diagnose(world([128] * 5, [10, 40, 80, 120, 160], [0.5] * 5), Facts(flags={"max_num_seqs": "128"}))
    assert "no_admission_control" in found(d)
    bounded = diagnose(
        world([128] * 5, [10, 40, 80, 120, 160], [0.5] * 5),
        Facts(flags={"max_num_seqs": "128", "max_num_queued_reqs": "200"}),
    )
    assert "no_admission_control" not in found(bounded)
