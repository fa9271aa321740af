"""A running server, from pages that real ones answered with."""

import json
from pathlib import Path
from typing import Any

import pytest

from knee.core.errors import TargetError
from knee.fit.answer import judge
from knee.fit.server import report_of

CAPTURES = Path(__file__).parents[2].parent / "shared/captures"


def page(name: str) -> str:
    return (CAPTURES / name).read_text()


def body(name: str) -> dict[str, Any]:
    """The JSON of a recorded answer, below its headers."""
    found: dict[str, Any] = json.loads(page(name).split("\n\n", 1)[1])
    return found


def test_a_recorded_server_with_all_its_pages() -> None:
    report = report_of(
        page("metrics-before.txt"),
        models=body("get-v1_models.txt"),
        version=body("get-version.txt")["version"],
        server_info=body("devmode-get-server_info_config_format_json.txt"),
    )
    assert (report.version, report.model, report.max_model_len) == ("0.32.0", "./tiny", 2048)
    assert (report.max_num_seqs, report.max_num_batched_tokens) == (8, 2048)
    engine = report.engines[0]
    assert (engine.kv_tokens, engine.kv_blocks, engine.block_size, engine.concurrency) == (
        524_288,
        4096,
        128,
        256.0,
    )
    assert report.memory.utilization == 0.92
    assert report.config["tensor_parallel_size"] == "1"
    assert judge(report, 1500).fits


@pytest.mark.parametrize(
    ("name", "tokens", "concurrency"),
    [("metrics-0.27.1.txt", 524_288, 256.0), ("metrics-tinykv-auto.txt", 8192, 1.0158730158730158)],
)
def test_the_newer_labels_are_used(name: str, tokens: int, concurrency: float) -> None:
    engine = report_of(page(name)).engines[0]
    assert (engine.kv_tokens, engine.concurrency) == (tokens, concurrency)


def test_an_older_page_gives_blocks_times_block_size_and_says_so() -> None:
    old = 'vllm:cache_config_info{block_size="16",cache_dtype="auto",num_gpu_blocks="5691",engine="0"} 1.0\n'
    report = report_of(old)
    assert report.engines[0].kv_tokens == 91_056
    assert any("overstates models" in note for note in report.notes)
    assert any("/server_info is off" in note for note in report.notes)


def test_text_none_is_not_a_number() -> None:
    line = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="None",kv_cache_size_tokens="None"} 1.0\n'
    assert report_of(line).engines[0].kv_tokens is None
    assert judge(report_of(line), 100).fits is None


def test_each_engine_of_a_data_parallel_server_is_there() -> None:
    line = 'vllm:cache_config_info{{engine="{}",kv_cache_size_tokens="{}",block_size="16"}} 1.0\n'
    report = report_of("".join(line.format(engine, 1000 * (3 - engine)) for engine in range(2)))
    assert [(engine.name, engine.kv_tokens) for engine in report.engines] == [("0", 3000), ("1", 2000)]
    answer = judge(report, 100, max_num_seqs=10)
    assert answer.capacity is not None
    assert answer.capacity.kv_tokens == 2000


def test_a_page_of_something_else_is_refused() -> None:
    with pytest.raises(TargetError, match="shows no vllm:cache_config_info"):
        report_of("# TYPE go_goroutines gauge\ngo_goroutines 5\n")


@pytest.mark.parametrize("info", [{}, {"vllm_config": "as text"}, {"vllm_config": {"model_config": "text"}}])
def test_an_unreadable_server_info_is_as_good_as_none(info: dict[str, Any]) -> None:
    assert report_of(page("metrics-before.txt"), server_info=info).max_num_batched_tokens is None
