"""From a start-up log to the knee, on a real server whose cap of 4 sequences binds.

KNEE_KEEP names a folder that gets what a recording needs: log, metrics page, stream, run.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.live.conftest import Start

from knee.cli.main import run
from knee.core.point import Point
from knee.core.run import POINTS, read_lines
from knee.http1.client import fetch

pytestmark = pytest.mark.live

SLO = "ttft p95 < 500ms, itl p99 < 60ms"
LOAD = ["--prompt", "128", "--output", "32"]
BUDGET = ["--precision", "10%", "--server-time", "3m", "--clients", "32", "--realtime"]


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    code = run([*arguments, "--json"])
    said = capsys.readouterr()
    with capsys.disabled():
        print(said.err)
    return code, json.loads(said.out)


def test_from_the_log_to_the_knee(
    start_vllm: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = start_vllm("--max-num-seqs", "4")
    code, fit = told(capsys, "fit", str(server.log), "--p95-tokens", "160")
    assert code == 0
    assert fit["report"]["version"].startswith("0.")
    assert fit["capacity"]["max_num_seqs"] == 4

    knees = []
    for seed in ("1", "2"):
        out = tmp_path / f"sweep-{seed}"
        code, found = told(
            capsys,
            *("sweep", server.url, "--slo", SLO, *LOAD, *BUDGET),
            *("--seed", seed, "--server-log", str(server.log), "--out", str(out)),
        )
        assert code == 0
        knee = found["sweep"]["knee"]
        assert knee["holds"] is not None
        assert found["diagnosis"]["limit"] == "sequence_cap"
        assert found["diagnosis"]["move"]["flag"] == "max_num_seqs"
        points = list(read_lines(out / POINTS, Point))
        assert all(p.prompt_tokens_mean == pytest.approx(128, abs=0.5) for p in points if p.ok)
        assert all(p.offered == p.ok + p.failed + p.rejected + p.censored for p in points)
        knees.append(knee)
    keep(server.url, server.log, tmp_path / "sweep-1")
    low, high = max(k["holds"] for k in knees), min(k["breaks"] for k in knees)
    assert low <= high, f"two seeds give intervals that do not overlap: {knees}"


def keep(url: str, log: Path, sweep: Path) -> None:
    """Copy what a recording needs to KNEE_KEEP."""
    where = os.environ.get("KNEE_KEEP")
    if not where:
        return
    kept = Path(where)
    kept.mkdir(parents=True, exist_ok=True)
    shutil.copy(log, kept / "server.log")
    shutil.copytree(sweep, kept / "sweep", dirs_exist_ok=True)
    (kept / "metrics.prom").write_bytes(fetch(f"{url}/metrics").body)
    models = json.loads(fetch(f"{url}/v1/models").body)
    asked = {
        "model": models["data"][0]["id"],
        "prompt": "one two three",
        "max_tokens": 12,
        "stream": True,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }
    answer = fetch(f"{url}/v1/completions", body=asked)
    (kept / "stream.sse").write_bytes(answer.body)
