"""`knee sweep` over real HTTP against a simulated server in another process."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from knee.cli.main import run
from knee.cli.target_options import connection_from
from knee.core.point import Point
from knee.core.requests import RequestRecord
from knee.core.run import PLAN, POINTS, RECORDS, create_run, read_lines, read_manifest
from knee.core.slo import parse_slo
from knee.engine.config import REFERENCE, StepCost
from knee.measure.client.live import connect
from knee.measure.point import make_point
from knee.measure.search.budget import Budget
from knee.measure.search.steps import Search
from knee.measure.sweep import Recorder, search_knee
from knee.mock.config import MockConfig
from knee.mock.process import Child, mock_process
from knee.workload.spec import Lengths, Workload

SLO = "ttft p95 < 500ms, itl p99 < 200ms"
LOAD = ["--prompt", "64", "--output", "16"]
SHORT = ["--duration", "2s", "--warmup", "500ms", "--drain", "10s"]
KEY = "sk-do-not-write-me-down"
CAPPED = msgspec.structs.replace(
    REFERENCE,
    max_num_seqs=4,
    version="0.32.0",
    step_cost=StepCost(fixed_ns=16_000_000, per_seq_ns=2_000_000, per_prefill_token_ns=40_000),
)


@pytest.fixture(scope="module")
def server() -> Iterator[Child]:
    with mock_process(MockConfig(speed=4)) as child:
        yield child


def sweeping(server: Child, rates: str, out: Path, *more: str) -> list[str]:
    return ["sweep", server.url, "--slo", SLO, "--rates", rates, *LOAD, *SHORT, "--out", str(out), *more]


def points_of(out: Path) -> list[Point]:
    return list(read_lines(out / POINTS, Point))


def test_given_rates_are_measured_and_kept(
    server: Child, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    out = tmp_path / "run"
    code = run(sweeping(server, "20,40", out, "--json"))
    said = capsys.readouterr()
    assert code == 0, said.err
    told = json.loads(said.out)
    assert [point["rate"] for point in told["sweep"]["points"]] == [20, 40]
    kept = points_of(out)
    assert [point.rate for point in kept] == [20, 40]
    records = list(read_lines(out / RECORDS, RequestRecord))
    for point in kept:
        assert point.offered == point.ok + point.failed + point.rejected + point.censored
        assert point.ok > 0
        assert point.prompt_tokens_mean == 64
        assert point.window is not None
        answered = sum(engine.counters["generation_tokens"] for engine in point.window.engines.values())
        assert 0 < answered <= sum(r.output_tokens for r in records if r.point == kept.index(point))
    manifest = read_manifest(out)
    assert manifest is not None
    assert manifest["ended"] == "complete"
    assert manifest["diagnosis"] is not None
    written = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
    assert KEY.encode() not in written
    assert KEY not in said.err + said.out


def started(arguments: list[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", "from knee.cli.main import main; main()", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )


def wait_for_points(out: Path, count: int, process: "subprocess.Popen[str]", seconds: float = 60) -> None:
    for _ in range(int(seconds * 20)):
        if (out / POINTS).is_file() and len((out / POINTS).read_bytes().splitlines()) >= count:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    pytest.fail(f"no {count} points within {seconds} s")


def test_an_interrupt_keeps_every_finished_point(server: Child, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = started(sweeping(server, "20,20,20,20", out))
    wait_for_points(out, 1, process)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    said_out, said_err = process.communicate(timeout=60)
    assert process.returncode == 130, said_err
    assert "Traceback" not in said_err
    assert sum(line.startswith("knee: ") for line in said_err.splitlines()) == 1, said_err
    assert said_out == ""
    assert len(points_of(out)) >= 1
    assert (out / PLAN).is_file()
    manifest = read_manifest(out)
    assert manifest is not None
    assert manifest["ended"] == "interrupted"


def test_a_killed_search_goes_on_without_repeating_a_point(tmp_path: Path) -> None:
    """kill -9 after two points; the resumed run keeps their lines as they are and ends with a knee."""
    out = tmp_path / "run"
    budget = ["--precision", "30%", "--server-time", "60s", "--points", "3", "--clients", "16"]
    with mock_process(MockConfig(engine=CAPPED)) as child:
        process = started(
            ["sweep", child.url, "--slo", "ttft p95 < 1s", *LOAD, *budget, "--seed", "3", "--out", str(out)]
        )
        wait_for_points(out, 2, process)
        process.kill()
        process.communicate(timeout=60)
        before = (out / POINTS).read_bytes().splitlines()
        assert read_manifest(out) is None
        again = started(["sweep", child.url, "--resume", str(out), "--json", *budget])
        told, said_err = again.communicate(timeout=240)
    assert again.returncode in (0, 5), said_err
    after = (out / POINTS).read_bytes().splitlines()
    assert after[: len(before)] == before
    assert len(after) > len(before)
    seeds = [point.seed for point in points_of(out)]
    assert len(set(seeds)) == len(seeds)
    assert json.loads(told)["sweep"]["knee"]["points"] >= 1
    numbered = {record.point for record in read_lines(out / RECORDS, RequestRecord)}
    assert numbered == set(range(len(after)))


def test_a_server_that_dies_ends_the_sweep_and_keeps_its_points(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with mock_process(MockConfig(speed=4)) as child:
        process = started(sweeping(child, "20,20,20", out))
        wait_for_points(out, 1, process)
        time.sleep(0.3)
        os.kill(child.pid, signal.SIGKILL)
        _, said_err = process.communicate(timeout=120)
    assert process.returncode == 6, said_err
    assert "Traceback" not in said_err
    assert "hint" in said_err
    first = points_of(out)[0]
    assert first.ok > 0
    assert first.stopped == ""
    manifest = read_manifest(out)
    assert manifest is not None
    assert manifest["ended"] == "target lost"


def test_a_search_finds_a_knee_on_the_wire(tmp_path: Path) -> None:
    """A server whose cap of 4 sequences binds. Whether the client kept up is left out: tests share cores."""
    workload = Workload(prompt_tokens=Lengths(mean=64), output_tokens=Lengths(mean=16))
    slo = parse_slo("ttft p95 < 1s")
    run_dir = create_run(tmp_path / "run", {})
    recorder = Recorder(make_point=make_point, run=run_dir)
    with mock_process(MockConfig(engine=CAPPED)) as child:
        target = connect(connection_from(child.url))
        search = Search(
            workload, slo, seed=3, budget=Budget(precision=0.3, server_s=60, points=3), clients=16
        )
        found = search_knee(target, search, recorder)
    assert found.ended == "complete"
    assert found.knee is not None
    assert found.knee.holds is not None
    assert found.knee.breaks is not None
    # 4 sequences of 16 tokens in steps of 24 ms and a prefill of 2.6 ms: some 10 req/s at the very most
    assert 3 < found.knee.holds < found.knee.breaks < 11, found.knee
    assert points_of(run_dir) == list(found.points)


def test_the_plan_and_the_time_that_is_left_are_shown(tmp_path: Path) -> None:
    budget = ["--precision", "30%", "--server-time", "50s", "--points", "2", "--clients", "16"]
    with mock_process(MockConfig(engine=CAPPED)) as child:
        arguments = [
            "sweep",
            child.url,
            "--slo",
            "ttft p95 < 1s",
            *LOAD,
            *budget,
            "--out",
            str(tmp_path / "run"),
        ]
        process = started(arguments)
        _, said = process.communicate(timeout=240)
    assert process.returncode in (0, 5), said
    plan = next(line for line in said.splitlines() if line.startswith("plan: "))
    assert "±30 %; at most 2 points and 50 s of server time" in plan
    left = [float(found) for found in re.findall(r"; ([0-9.]+) s left$", said, re.MULTILINE)]
    assert left[0] == 50
    assert left == sorted(left, reverse=True)
    assert len(left) >= 3
