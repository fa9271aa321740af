"""The main job from end to end, as a user starts it."""

import json
from pathlib import Path

import pytest

from knee.cli.main import run
from knee.core.point import Point
from knee.core.run import POINTS, open_run, read_lines, read_manifest


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo") / "run"
    assert run(["demo", "--out", str(out)]) == 0
    return out


def test_each_sweep_is_a_run_with_points_on_both_sides_of_its_knee(demo: Path) -> None:
    for name in ("before", "after"):
        plan, manifest = open_run(demo / name), read_manifest(demo / name)
        points = list(read_lines(demo / name / POINTS, Point))
        assert manifest is not None
        assert manifest["ended"] == "complete"
        assert plan["target"]["simulated"] is True
        knee = manifest["knee"]
        open_loop = [point for point in points if point.max_concurrency is None]
        below = [point for point in open_loop if point.rate < knee["holds"]]
        assert below
        assert all(j.value is not None and j.value < j.objective.bound for p in below for j in p.judged)
        assert any(point.rate > knee["breaks"] and point.holds is False for point in open_loop)
        assert all(p.offered == p.ok + p.failed + p.rejected + p.censored for p in points)
        assert manifest["points"] == len(points)


def test_it_moves_the_cap_and_the_knee_rises(demo: Path) -> None:
    before, after = (read_manifest(demo / name) for name in ("before", "after"))
    assert before is not None
    assert after is not None
    assert before["diagnosis"]["limit"] == "sequence_cap"
    assert before["diagnosis"]["move"]["flag"] == "max_num_seqs"
    assert after["knee"]["holds"] > before["knee"]["breaks"]


def test_the_page_and_the_servers_log_are_there(demo: Path) -> None:
    assert "<canvas" not in (demo / "report.html").read_text()
    assert "KV cache size: 327,6" in (demo / "server.log").read_text()


def test_json_is_one_document_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--json", "--no-wire", "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert told["simulated"] is True
    assert {"fit", "before", "after"} <= set(told)
    assert "SIMULATED" in said.err
