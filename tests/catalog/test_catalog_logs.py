import pytest

from knee.catalog.logs import LogLine, all_log_lines, log_line, log_patterns, pattern
from knee.catalog.version import parse_version


@pytest.mark.parametrize("line", all_log_lines(), ids=lambda line: line.name)
def test_every_entry_matches_its_example(line: LogLine) -> None:
    assert line.needle in line.example
    found = pattern(line.name).search(line.example)
    assert found is not None
    assert log_line(line.name) is line
    assert parse_version(line.since) <= parse_version(line.until or line.since)


def test_lines_of_one_version() -> None:
    old = {line.name for line in log_patterns("0.6.6")}
    new = {line.name for line in log_patterns("0.32.0")}
    assert "kv_blocks" in old
    assert "kv_tokens" not in old
    assert {"kv_tokens", "version_logo", "auto_fit"} <= new
    assert "kv_blocks" not in new
    assert {line.name for line in log_patterns()} >= old | new


_AVERAGES = "Avg prompt throughput: 57.6 tokens/s, Avg generation throughput: 893.0 tokens/s, "


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            (
                f"INFO 07-28 06:40:59 [x.py:1] Engine 000: {_AVERAGES}Running: 8 reqs, Waiting: 0 reqs, "
                "GPU KV cache usage: 91.2%, Prefix cache hit rate: 0.0%"
            ),
            {"engine": "000", "running": "8", "waiting": "0", "kv_percent": "91.2", "hit_percent": "0.0"},
        ),
        (
            (
                f"Engine 001: {_AVERAGES}Running: 5 reqs, Waiting: 10 reqs, Deferred: 2 reqs, "
                "Preemptions: 44, CPU KV cache usage: 95.7%, Prefix cache hit rate: 0.0%, External …: 0.0%"
            ),
            {"engine": "001", "deferred": "2", "preemptions": "44", "device": "CPU"},
        ),
        (
            f"INFO metrics.py:1] {_AVERAGES}Running: 3 reqs, Waiting: 4 reqs, GPU KV cache usage: 5.0%",
            {"engine": None, "running": "3", "generation_tps": "893.0", "hit_percent": None},
        ),
        (
            f"2 Engines Aggregated: {_AVERAGES}Running: 3 reqs, Waiting: 4 reqs, GPU KV cache usage: 5.0%",
            {"engine": None, "engines": "2"},
        ),
    ],
    ids=["0.10", "preempting", "0.8.0", "aggregated"],
)
def test_the_periodic_line_of_v1_in_its_wordings(text: str, expected: dict[str, str | None]) -> None:
    found = pattern("periodic").search(text)
    assert found is not None
    assert {key: found[key] for key in expected} == expected


def test_the_periodic_line_of_v0_is_not_taken_for_that_of_v1() -> None:
    line = log_line("periodic_v0")
    assert line is not None
    assert pattern("periodic").search(line.example) is None
    found = pattern("periodic_v0").search(line.example)
    assert found is not None
    assert (found["running"], found["waiting"], found["kv_percent"]) == ("16", "0", "92.1")
