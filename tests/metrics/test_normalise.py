"""Pages of all versions under one set of names; what is missing stays missing."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knee.core.errors import InputError
from knee.core.snapshot import EngineSnapshot
from knee.metrics.normalise import parse_page
from knee.metrics.window import Bracket, quantile

SHARED = Path(__file__).parents[2].parent / "shared"
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared")


def engine(text: str, label: str = "0") -> EngineSnapshot:
    return parse_page(text, 0).engines[label]


def example(name: str) -> EngineSnapshot:
    return engine((SHARED / "examples" / name).read_text())


def test_08_without_engine_label_and_under_the_old_kv_name() -> None:
    seen = example("31-metrics-v1-08-no-engine-label.prom")
    assert seen.gauges == {
        "num_requests_running": 0.0,
        "num_requests_waiting": 0.0,
        "kv_cache_usage_perc": 0.0,
    }
    assert seen.counters == {}


def test_010_with_old_and_new_names_counts_each_once() -> None:
    seen = example("32-metrics-v1-010-both-names.prom")
    assert seen.counters == {"prefix_cache_queries": 32.0, "prefix_cache_hits": 0.0}
    assert seen.gauges == {"kv_cache_usage_perc": pytest.approx(9.75e-06, rel=1e-3)}


def test_waiting_by_reason_is_not_waiting() -> None:
    seen = example("34-metrics-v1-waiting-by-reason.prom")
    assert seen.gauges["num_requests_waiting"] == 2.0
    assert seen.gauges["num_requests_waiting_by_reason{capacity}"] == 2.0
    assert seen.gauges["num_requests_running"] == 3.0


def test_a_histogram_cut_before_its_infinite_bucket() -> None:
    seen = example("35-metrics-docs-v1.prom")
    ttft = seen.histograms["time_to_first_token_seconds"]
    assert ttft.count == 140
    assert quantile(ttft, 0.5) == Bracket(0.02, 0.04)
    assert quantile(ttft, 0.9) == Bracket(
        0.06, 0.08
    )  # 123 of 140 are 87.9%; the example's header misreads this
    assert quantile(ttft, 1.0) == Bracket(0.08, 0.1)
    assert seen.counters["request_success{length}"] == 131
    assert seen.counters["request_success{abort}"] == 0
    assert seen.gauges["num_requests_running"] == 8


def test_a_whole_recorded_page() -> None:
    snapshot = parse_page((SHARED / "captures/poll-seqs4-r35/0010.prom").read_text(), 7, "here")
    assert (snapshot.at_ns, snapshot.source, snapshot.model_name) == (7, "here", "./tiny")
    assert snapshot.warnings == ()
    seen = snapshot.engines["0"]
    assert seen.gauges["num_requests_waiting"] == 16
    assert seen.counters["num_preemptions"] == 0
    assert seen.counters["admission_rejections{max_num_queued_tokens}"] == 1
    assert seen.counters["http_requests{/v1/completions,POST,5xx}"] == 1
    assert seen.histograms["iteration_tokens"].count == 5221
    assert "iteration_tokens" not in seen.counters
    assert seen.histograms["request_queue_time_seconds"].sum == pytest.approx(14.4755, abs=1e-3)
    assert seen.info["kv_cache_size_tokens"] == "524288"
    assert "num_gpu_blocks_override" not in seen.info  # the page says "None": not set
    assert not any(name.endswith("_created") for name in [*seen.gauges, *seen.counters])


PAGE = """# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
# TYPE vllm:gpu_cache_usage_perc gauge
vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.5
# TYPE vllm:inter_token_latency_seconds histogram
vllm:inter_token_latency_seconds_bucket{engine="0",le="0.1",model_name="m"} 3
vllm:inter_token_latency_seconds_bucket{engine="0",le="+Inf",model_name="m"} 4
vllm:inter_token_latency_seconds_count{engine="0",model_name="m"} 4
vllm:inter_token_latency_seconds_sum{engine="0",model_name="m"} 0.5
# TYPE vllm:time_per_output_token_seconds histogram
vllm:time_per_output_token_seconds_bucket{engine="0",le="0.1",model_name="m"} 30
vllm:time_per_output_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 40
vllm:time_per_output_token_seconds_count{engine="0",model_name="m"} 40
vllm:time_per_output_token_seconds_sum{engine="0",model_name="m"} 5
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="1",model_name="m"} 3
# TYPE vllm:admission_rejections_total counter
vllm:admission_rejections_total{model_name="m",reason="max_num_queued_reqs"} 5
"""


@given(st.permutations(PAGE.splitlines()))
def test_the_new_name_wins_wherever_it_stands(lines: list[str]) -> None:
    snapshot = parse_page("\n".join(lines), 0)
    seen = snapshot.engines["0"]
    assert seen.gauges["kv_cache_usage_perc"] == 0.25
    itl = seen.histograms["inter_token_latency_seconds"]
    assert (itl.count, itl.sum, itl.counts) == (4, 0.5, (3,))
    assert seen.counters["admission_rejections{max_num_queued_reqs}"] == 5
    assert "admission_rejections{max_num_queued_reqs}" not in snapshot.engines["1"].counters
    assert snapshot.engines["1"].gauges["num_requests_running"] == 3


def test_types_are_inferred_where_the_page_states_none() -> None:
    bare = "\n".join(line for line in PAGE.splitlines() if not line.startswith("#"))
    assert parse_page(bare, 0).engines == parse_page(PAGE, 0).engines


def test_what_is_not_a_number_is_missing() -> None:
    seen = engine("vllm:num_requests_running NaN\nvllm:num_requests_waiting 1")
    assert seen.gauges == {"num_requests_waiting": 1.0}


def test_a_usage_in_percent_is_refused_not_guessed() -> None:
    snapshot = parse_page("vllm:kv_cache_usage_perc 87.5\nvllm:num_requests_waiting 1", 0)
    assert "kv_cache_usage_perc" not in snapshot.engines["0"].gauges
    assert any("87.5" in warning for warning in snapshot.warnings)


def test_ray_serve_spelling() -> None:
    assert engine('vllm_num_requests_running{engine="0",model_name="m"} 2').gauges == {
        "num_requests_running": 2.0
    }


def test_engines_stand_in_the_order_of_their_numbers() -> None:
    lines = [f'vllm:num_requests_running{{engine="{label}",model_name="m"}} 1' for label in (10, 2, "x", 0)]
    assert list(parse_page("\n".join(lines), 0).engines) == ["0", "2", "10", "x"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no metrics page"),
        ("<html><body>404</body></html>", "no metrics page"),
        ("sglang:num_running_reqs 3", "metrics of sglang"),
        ("python_info 1\nprocess_cpu_seconds_total 3", "none of vLLM"),
    ],
)
def test_pages_that_are_not_vllms(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        parse_page(text, 0, "http://x/metrics")
    assert "http://x/metrics" in caught.value.what


@given(st.text(max_size=300))
def test_hostile_pages_give_a_snapshot_or_one_clear_error(text: str) -> None:
    try:
        snapshot = parse_page("vllm:" + text, 0)
    except InputError:
        return
    assert snapshot.engines


def test_a_version_from_the_future_works_with_a_warning() -> None:
    snapshot = parse_page(
        "vllm:num_requests_running 2\n# TYPE vllm:brand_new counter\nvllm:brand_new_total 5", 0
    )
    assert snapshot.engines["0"].counters == {"brand_new": 5.0}
    assert any("brand_new" in warning for warning in snapshot.warnings)
