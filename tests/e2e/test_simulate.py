"""`knee simulate` as a user calls it, and as docs/simulate.md shows it."""

import json
import shlex
from pathlib import Path

import pytest

from knee.cli.main import run

DOC = Path(__file__).parents[2] / "docs/simulate.md"


def _shown() -> list[tuple[str, str]]:
    """The commands of the page and their outputs."""
    blocks = DOC.read_text().split("```")[1::2]
    commands = [
        block.strip().split("\n", 1) for block in blocks if block.strip().startswith("$ knee simulate")
    ]
    shown = [(command.removeprefix("$ knee "), output) for command, output in commands]
    return [(command, output) for command, output in shown if "--like" not in command]  # needs a run


@pytest.mark.parametrize(("command", "output"), _shown())
def test_the_page_shows_what_the_command_prints(
    command: str, output: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert run(shlex.split(command)) == 0
    printed = "\n".join(line.rstrip() for line in capsys.readouterr().out.rstrip().split("\n"))
    assert printed == output


def test_json_holds_the_configuration_and_every_point(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "simulate --rate 5,30 --clients 8 --duration 40s --warmup 10s --drain 1s --json"
    assert run(arguments.split()) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["simulated"] is True
    assert shown["engine"]["max_num_seqs"] == 128
    points = [result["point"] for result in shown["results"]]
    assert [(point["rate"], point["max_concurrency"]) for point in points] == [(5, None), (30, None), (0, 8)]
    for point in points:
        assert point["offered"] == point["ok"] + point["failed"] + point["rejected"] + point["censored"]
    assert points[1]["censored"] > 100


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--rate many", "--rate many"),
        ("--rate 0", "above 0"),
        ("--clients 1.5", "--clients 1.5"),
        ("--prompt long", "not a length"),
        ("--output lognormal:200", "not a length"),
        ("--output uniform:9-3", "1 <= low <= high"),
        ("--burst 50", "not a burst"),
        ("--max-num-seqs 0", "max_num_seqs"),
        ("--max-num-batched-tokens 64", "max_num_batched_tokens"),
        ("--step-ms -1", "fixed_ns"),
        ("--duration 20s", "warm-up"),
        ("--duration soon", "not a duration"),
        ("--seed -1", "seed"),
        ("--max-num-queued-reqs 0", "max_num_queued_reqs"),
        ("--max-num-queued-reqs 100 --vllm-version 0.28.0", "it came with 0.29.0"),
        ("--vllm-version newest", "not a version"),
    ],
)
def test_bad_input_is_one_clear_line(arguments: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", *arguments.split()]) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert told.out == ""
    assert len(told.err.strip().split("\n")) <= 2


def test_a_version_brings_its_rules(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {}
    for version in ("0.10.2", "0.32.0"):
        arguments = f"simulate --rate 5 --duration 40s --vllm-version {version} --json"
        assert run(arguments.split()) == 0
        shown[version] = json.loads(capsys.readouterr().out)
    assert shown["0.10.2"]["engine"]["async_scheduling"] is False
    assert shown["0.32.0"]["engine"]["async_scheduling"] is True
    # Planned a step ahead, a request waits for one step more.
    old, new = (shown[version]["results"][0]["point"]["ttft_ms"]["p50"] for version in ("0.10.2", "0.32.0"))
    assert new > old
