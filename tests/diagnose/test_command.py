"""`knee diagnose` as a user runs it: files, directories, logs, wrong input, and exit codes."""

import json
from pathlib import Path

import pytest

from knee.cli.main import run

SHARED = Path(__file__).parents[2].parent / "shared"
shared = pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared")


@shared
@pytest.mark.parametrize(
    ("source", "code", "limit"),
    [
        ("captures/poll-seqs4-r35", 1, "sequence_cap"),
        ("captures/poll-preempt", 1, "kv_memory"),
        ("captures/poll-quiet-r60", 1, "compute"),
        ("captures/startup-seqs4.log", 1, "sequence_cap"),
        ("captures/metrics-before.txt", 0, "none"),
        ("examples/20-v1-preempt-approach.log", 0, "none"),
        ("examples/22-v1-stuck-waiting.log", 5, None),
        ("examples/23-v0-periodic.log", 0, "none"),
        ("examples/31-metrics-v1-08-no-engine-label.prom", 0, "none"),
        ("examples/32-metrics-v1-010-both-names.prom", 5, None),
        ("examples/34-metrics-v1-waiting-by-reason.prom", 5, None),
        ("examples/35-metrics-docs-v1.prom", 5, None),
    ],
)
def test_recorded_sources(
    source: str, code: int, limit: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["diagnose", str(SHARED / source), "--json"]) == code
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["limit"] == limit
    assert {1: "bound", 0: "not bound", 5: "cannot tell"}[code] == verdict["answer"]


@shared
def test_the_cap_of_four_comes_with_its_move_and_its_shedding(capsys: pytest.CaptureFixture[str]) -> None:
    run(["diagnose", str(SHARED / "captures/poll-seqs4-r35"), "--json", "--flag", "max-num-seqs=4"])
    verdict = json.loads(capsys.readouterr().out)
    assert (verdict["confidence"], verdict["move"]["flag"], verdict["move"]["from"]) == (
        "high",
        "max_num_seqs",
        "4",
    )
    assert int(verdict["move"]["to"]) > 4
    assert "shedding" in {further["limit"] for further in verdict["further"]}


@shared
def test_the_slope_of_a_log_gives_the_minutes_left(capsys: pytest.CaptureFixture[str]) -> None:
    run(["diagnose", str(SHARED / "examples/20-v1-preempt-approach.log"), "--json"])
    found = {f["name"]: f for f in json.loads(capsys.readouterr().out)["findings"]}
    assert found["kv_full_in"]["value"] == pytest.approx(240, rel=0.1)  # "in about 4 min", says the report


@shared
@pytest.mark.parametrize("more", [[], ["--explain"]])
def test_people_get_five_lines_and_more_when_they_ask(
    more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run(["diagnose", str(SHARED / "captures/poll-preempt"), *more])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Limit:     kv_memory")
    assert lines[2].startswith("Move:      --max-num-seqs → 4 (3,072 KV tokens / 732 tokens per request = 4)")
    assert len(lines) == 5 if not more else len(lines) > 15


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 2, "nothing to diagnose"),
        (["nowhere.prom"], 3, "nowhere.prom cannot be read"),
        (["http://127.0.0.1:1", "x.prom"], 2, "do not go together"),
        (["http://127.0.0.1:1"], 4, "127.0.0.1:1"),
        (["http://127.0.0.1:1", "--for", "soon"], 2, "not a duration"),
        (["http://127.0.0.1:1", "--every", "1ms"], 2, "cannot sample"),
        (["x.prom", "--flag", "max_num_seqs"], 2, "not a flag"),
        (["x.prom", "--slo", "fast"], 2, "not an objective"),
    ],
)
def test_wrong_input_is_one_clear_line(
    arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["diagnose", *arguments]) == code
    captured = capsys.readouterr()
    assert says in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""
