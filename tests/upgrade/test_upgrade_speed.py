"""`knee upgrade compare` on simulated servers: a planted slowdown is a regression, none is none."""

from pathlib import Path

import pytest

from knee.cli.main import run
from knee.core.point import Point
from knee.core.run import POINTS, create_run, read_lines
from knee.core.slo import parse_slo
from knee.engine.config import REFERENCE, EngineConfig
from knee.measure.budget import Budget
from knee.measure.point import make_point
from knee.measure.search import Search
from knee.measure.simulated import SimulatedTarget
from knee.measure.sweep import Recorder, finish, plan_of, search_knee
from knee.mock.config import MockConfig, sped_up
from knee.mock.faults import parse_fault
from knee.mock.process import mock_process
from knee.workload.spec import Lengths, Workload

SLO = "ttft p95 < 1s"


def swept(folder: Path, engine: EngineConfig, seed: int) -> Path:
    """A search for the knee in virtual time."""
    workload = Workload(prompt_tokens=Lengths(mean=1000), output_tokens=Lengths(mean=200))
    target = SimulatedTarget(engine)
    create_run(folder, plan_of("sweep", target, workload, parse_slo(SLO), seed))
    recorder = Recorder(
        make_point=lambda measured, offer, slo: make_point(measured, offer, slo, simulated=True), run=folder
    )
    search = Search(workload, parse_slo(SLO), seed=seed, budget=Budget(points=12))
    finish(folder, search_knee(target, search, recorder))
    return folder


def compare(before: Path, after: Path) -> int:
    return run(["upgrade", "compare", str(before), str(after), "--margin", "8%"])


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return swept(tmp_path_factory.mktemp("speed") / "old", REFERENCE, 1)


def test_the_same_engine_again_is_no_regression(
    baseline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(baseline, swept(tmp_path / "again", REFERENCE, 2)) == 0
    assert "unchanged" in capsys.readouterr().out


@pytest.mark.parametrize(("speed", "code", "verdict"), [(1 / 1.3, 1, "regressed"), (1.3, 0, "improved")])
def test_a_planted_change_of_speed(
    *,
    speed: float,
    code: int,
    verdict: str,
    baseline: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert compare(baseline, swept(tmp_path / "new", sped_up(REFERENCE, speed), 2)) == code
    assert verdict in capsys.readouterr().out


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
