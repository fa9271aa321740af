"""Logs and files as sources: the same kind of window as from a live page."""

import os
from pathlib import Path

import pytest

from knee.core.errors import InputError
from knee.metrics.files import read_files
from knee.metrics.logs import read_log
from knee.metrics.window import window

SHARED = Path(__file__).parents[2].parent / "shared"
shared = pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared")

V1 = (
    "INFO 07-28 06:4{i}:09 [loggers.py:118] Engine 000: Avg prompt throughput: 10.0 tokens/s, Avg generation "
    "throughput: 239.2 tokens/s, Running: 8 reqs, Waiting: {w} reqs,{more} GPU KV cache usage: 91.6%, "
    "Prefix cache hit rate: 0.0%"
)


@shared
def test_a_rising_cache() -> None:
    seen = window(read_files([SHARED / "examples/20-v1-preempt-approach.log"]).snapshots)
    engine = seen.engines["0"]
    assert seen.seconds == 30  # three lines, each about the ten seconds before it
    assert engine.gauges["num_requests_running"].low == 8
    assert engine.gauges["num_requests_waiting"].high == 0
    assert (engine.gauges["kv_cache_usage_perc"].first, engine.gauges["kv_cache_usage_perc"].last) == (
        0.912,
        0.919,
    )
    assert engine.counters["generation_tokens"] == pytest.approx(10 * (239.2 + 239.2 + 240.0))
    assert "num_preemptions" not in engine.counters  # this version does not say


@shared
def test_v0_pending_is_waiting_and_the_cpu_cache_is_not_the_cache() -> None:
    engine = window(read_files([SHARED / "examples/23-v0-periodic.log"]).snapshots).engines["0"]
    assert engine.gauges["num_requests_waiting"].high == 0
    assert engine.gauges["num_requests_running"].mean == 16
    assert engine.gauges["kv_cache_usage_perc"].last == pytest.approx(0.949)
    assert engine.gauges["num_requests_swapped"].high == 0


@shared
def test_a_whole_recorded_log_states_its_flags() -> None:
    source = read_files([SHARED / "captures/startup-seqs4.log"])
    assert source.flags["max_num_seqs"] == "4"
    assert source.flags["kv_cache_size_tokens"].isdigit()
    assert len(source.snapshots) > 3


def test_preemptions_are_zero_only_where_the_log_states_them_at_all() -> None:
    silent = read_log([V1.format(i=i, w=0, more="") for i in range(3)])
    assert "num_preemptions" not in window(silent.snapshots).engines["0"].counters
    speaks = read_log([V1.format(i=i, w=0, more=" Preemptions: 7," if i == 1 else "") for i in range(3)])
    assert window(speaks.snapshots).engines["0"].counters["num_preemptions"] == 7


def test_engines_of_one_log_stay_apart() -> None:
    lines = [V1.format(i=i, w=i, more="") for i in range(2)]
    both = read_log([*lines, *(line.replace("Engine 000", "Engine 001") for line in lines)])
    assert set(window(both.snapshots).engines) == {"0", "1"}


def test_lines_stay_in_order_over_new_year() -> None:
    lines = [V1.format(i=0, w=w, more="").replace("07-28", day) for w, day in ((1, "12-31"), (5, "01-01"))]
    waiting = window(read_log(lines).snapshots).engines["0"].gauges["num_requests_waiting"]
    assert (waiting.first, waiting.last) == (1, 5)


@shared
def test_a_directory_of_pages_in_order_of_their_own_time() -> None:
    source = read_files([SHARED / "captures/poll-preempt"])
    assert len(source.snapshots) == 8
    seen = window(source.snapshots)
    assert seen.seconds == pytest.approx(12.94, abs=0.01)
    assert seen.engines["0"].counters["num_preemptions"] == 44


def test_pages_without_a_time_use_the_files(tmp_path: Path) -> None:
    for name, stamp in (("a.prom", 200), ("b.prom", 100)):
        path = tmp_path / name
        path.write_text(f'vllm:generation_tokens_total{{engine="0",model_name="m"}} {stamp}\n')
        os.utime(path, (stamp, stamp))
    seen = window(read_files([tmp_path / "a.prom", tmp_path / "b.prom"]).snapshots)
    assert seen.seconds == 100
    assert seen.engines["0"].counters["generation_tokens"] == 100


def test_pages_of_one_instant_are_refused(tmp_path: Path) -> None:
    for name in ("a.prom", "b.prom"):
        (tmp_path / name).write_text("vllm:num_requests_running 1\n")
        os.utime(tmp_path / name, (5, 5))
    with pytest.raises(InputError, match="when they were taken"):
        read_files([tmp_path])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is empty"),
        ("hello\nworld\n", "no metrics page"),
        ("INFO 01-01 started\n", "every ten seconds"),
    ],
)
def test_files_of_something_else(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "x.prom"
    path.write_text(content)
    with pytest.raises(InputError, match=says) as caught:
        read_files([path])
    assert str(path) in caught.value.what


def test_a_missing_file_and_an_empty_directory(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_files([tmp_path / "none.prom"])
    with pytest.raises(InputError, match="no metrics pages"):
        read_files([tmp_path])
