"""Upgrades on real servers: the same one twice, planted changes, and an older release against this one.

VLLM_OLD_HOME names a folder like VLLM_HOME with an older vLLM; `make live` puts 0.27.1 there.
"""

import json
import os
from pathlib import Path

import pytest
from bench._vllm_server import running
from tests.live.conftest import Start

from knee.cli.main import run
from knee.core.point import Point
from knee.core.run import POINTS, read_lines
from knee.mock.config import MockConfig
from knee.mock.faults import parse_fault
from knee.mock.process import mock_process
from knee.upgrade.outputs import Comparison, compare
from knee.upgrade.recording import read_recording

pytestmark = pytest.mark.live

TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant]"


def record(url: str, out: Path) -> Path:
    assert run(["upgrade", "outputs", "record", url, "--out", str(out)]) == 0
    return out


def compared(before: Path, after: Path) -> Comparison:
    run(["upgrade", "outputs", "compare", str(before), str(after)])
    found = compare(read_recording(before), read_recording(after))
    assert all(group.noisy == 0 for group in found.groups)
    return found


def changed(found: Comparison) -> set[str]:
    return {group.name for group in found.groups if group.verdict == "changed"}


def test_planted_changes_on_a_real_server(vllm_home: Path, unused_tcp_port: int, tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text(TEMPLATE)
    starts = {
        "base": (),
        "again": (),
        "template": ("--chat-template", str(tmp_path / "t.jinja")),
        "cooler": ("--override-generation-config", '{"temperature": 0.3}'),
    }
    kept = {}
    for name, flags in starts.items():
        with running(vllm_home, tmp_path / f"{name}.log", unused_tcp_port, flags) as server:
            kept[name] = record(server.url, tmp_path / f"{name}.json")
    assert compared(kept["base"], kept["again"]).verdict == "unchanged"
    assert "prompts" in changed(compared(kept["base"], kept["template"]))
    assert changed(compared(kept["base"], kept["cooler"])) == {"default"}


@pytest.fixture
def old_home() -> Path:
    home = Path(os.environ.get("VLLM_OLD_HOME", "")).resolve()
    if not (home / "venv/bin/vllm").is_file():
        pytest.fail(f"no vLLM in {home}: set VLLM_OLD_HOME to a folder with an older one")
    return home


def test_an_older_release_against_this_one(
    vllm_home: Path, old_home: Path, unused_tcp_port: int, tmp_path: Path
) -> None:
    kept = []
    for name, where in (("old", old_home), ("new", vllm_home)):
        with running(where, tmp_path / f"{name}.log", unused_tcp_port, ()) as server:
            kept.append(record(server.url, tmp_path / f"{name}.json"))
    before, after = kept
    found = compared(before, after)
    assert found.before != found.after
    versions = [read_recording(path).version for path in (before, after)]
    assert run(["upgrade", "plan", "--from", versions[0], "--to", versions[1]]) == 0
    # Neither template nor sampling changed. Kernels did, and on some processors that turns near ties.
    assert changed(found) <= {"greedy", "seeded"}


def swept(url: str, out: Path) -> Path:
    """Two rates, three times each in turn, so that the spread between runs is seen and drift hits both.

    Where a machine that is taken away for moments left no valid point at a rate, all is measured again.
    """
    load = ["--rates", "10,20,10,20,10,20", "--warmup", "2s", "--duration", "10s", "--drain", "20s"]
    sized = ["--prompt", "128", "--output", "32", "--slo", "tpot p50 < 1s, ttft p50 < 10s"]
    for attempt in range(4):
        kept = out.with_name(f"{out.name}-{attempt}")
        code = run(["sweep", url, *load, *sized, "--realtime", "--out", str(kept)])
        assert code in (0, 5), f"the sweep of {kept.name} ended with {code}"
        points = read_lines(kept / POINTS, Point)
        if {point.rate for point in points if not point.invalid} == {10.0, 20.0}:
            return kept
    pytest.fail("no valid points at both rates in four attempts: this machine is too busy to measure on")


def speeds(before: Path, after: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The verdict of `knee upgrade compare`, with every figure measured on both sides."""
    capsys.readouterr()
    code = run(["upgrade", "compare", str(before), str(after), "--margin", "15%", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [row["rate"] for row in found["compared"]] == [10.0, 10.0, 20.0, 20.0]
    assert all(row["baseline"] and row["candidate"] for row in found["compared"])
    assert code == {"regressed": 1, "inconclusive": 5}.get(found["verdict"], 0)
    with capsys.disabled():
        rows = [(row["what"], row["rate"], row["baseline"], row["candidate"]) for row in found["compared"]]
        print(before.name, after.name, found["verdict"], rows)
    return str(found["verdict"])


def test_the_speed_of_an_older_release_and_of_this_one(
    vllm_home: Path, old_home: Path, unused_tcp_port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same release twice is no regression, a cap of one sequence is; the older release gets a verdict."""
    starts = {
        "old": (old_home, ()),
        "new": (vllm_home, ()),
        "again": (vllm_home, ()),
        "capped": (vllm_home, ("--max-num-seqs", "1")),
    }
    kept = {}
    for name, (home, flags) in starts.items():
        with running(home, tmp_path / f"{name}.log", unused_tcp_port, flags) as server:
            kept[name] = swept(server.url, tmp_path / name)
    assert speeds(kept["new"], kept["again"], capsys) in ("unchanged", "inconclusive")
    assert speeds(kept["new"], kept["capped"], capsys) == "regressed"
    assert speeds(kept["old"], kept["new"], capsys) in ("regressed", "improved", "unchanged", "inconclusive")


def test_the_probe_allows_a_real_start(start_vllm: Start, capsys: pytest.CaptureFixture[str]) -> None:
    server = start_vllm()
    assert run(["deploy", "startup", str(server.log)]) == 0
    assert "startupProbe" in capsys.readouterr().out


def measured(folder: Path, config: MockConfig) -> Path:
    """One valid point over HTTP; one that a busy machine spoiled says so, and is measured again."""
    load = ["--rate", "5", "--prompt", "200", "--output", "40", "--warmup", "500ms", "--duration", "4s"]
    with mock_process(config) as server:
        for attempt in range(4):
            out = folder.with_name(f"{folder.name}-{attempt}")
            asked = [server.url, *load, "--drain", "20s", "--slo", "tpot p50 < 500ms", "--out", str(out)]
            run(["bench", *asked])
            if not any(point.invalid for point in read_lines(out / POINTS, Point)):
                return out
    pytest.fail("no valid point in four attempts: this machine is too busy to measure on")


def test_a_planted_slowdown_over_http(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Steps of 7 ms and more, three times as long: far beyond what a busy machine adds."""
    old = measured(tmp_path / "old", MockConfig())
    new = measured(tmp_path / "new", MockConfig(faults=(parse_fault("slow=3"),)))
    assert run(["upgrade", "compare", str(old), str(new)]) == 1
    assert "regressed" in capsys.readouterr().out
