"""`knee upgrade compare` on simulated servers: a planted slowdown is a regression, none is none."""

from pathlib import Path

import pytest

from knee.cli.main import run
from knee.core.run import create_run
from knee.core.slo import parse_slo
from knee.engine.config import REFERENCE, EngineConfig
from knee.measure.point import make_point
from knee.measure.search.budget import Budget
from knee.measure.search.steps import Search
from knee.measure.simulated import SimulatedTarget
from knee.measure.sweep import Recorder, finish, plan_of, search_knee
from knee.mock.config import sped_up
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
