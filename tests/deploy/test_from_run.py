"""From a sweep, as it is kept in a run directory, to manifests."""

import json
from pathlib import Path

import pytest
import yaml

from knee.cli.main import run
from knee.core.lock import read_lock
from knee.core.run import create_run
from knee.core.slo import parse_slo
from knee.engine.config import REFERENCE
from knee.measure.point import make_point
from knee.measure.search.budget import Budget
from knee.measure.search.steps import Search
from knee.measure.simulated import SimulatedTarget
from knee.measure.sweep import Recorder, finish, plan_of, search_knee
from knee.workload.spec import Lengths, Workload


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of the reference engine in virtual time."""
    folder = tmp_path_factory.mktemp("run") / "sweep"
    workload = Workload(prompt_tokens=Lengths(mean=1000), output_tokens=Lengths(mean=200))
    slo = parse_slo("ttft p95 < 1s")
    target = SimulatedTarget(REFERENCE)
    create_run(folder, plan_of("sweep", target, workload, slo, 1))
    recorder = Recorder(
        make_point=lambda measured, offer, wanted: make_point(measured, offer, wanted, simulated=True),
        run=folder,
    )
    found = search_knee(target, Search(workload, slo, seed=1, budget=Budget(points=8)), recorder)
    finish(folder, found)
    return folder


def test_a_run_becomes_manifests_without_a_finding(
    swept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = read_lock(swept)
    assert lock.knee.holds is not None
    assert 16 < lock.knee.holds < 20.5  # the reference document's knee is about 19 req/s
    assert lock.simulated
    assert lock.at_knee is not None
    out = tmp_path / "out.yaml"
    assert run(["deploy", "render", "--from", str(swept), "--name", "reference", "--out", str(out)]) == 0
    assert "simulated" in capsys.readouterr().err
    assert run(["deploy", "check", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []
    scaled = next(i for i in yaml.safe_load_all(out.read_text()) if i["kind"] == "ScaledObject")
    in_flight = int(scaled["spec"]["triggers"][1]["metadata"]["threshold"])
    mean_s = (lock.at_knee.e2e_ms.mean_finite or 0) / 1000
    assert in_flight == int(0.8 * lock.at_knee.rate * mean_s)
