"""`knee calibrate URL` over real HTTP against a simulated server whose step cost is known."""

import json
from pathlib import Path

import msgspec
import pytest

from knee.cli.main import run
from knee.core.point import Point
from knee.core.run import POINTS, read_lines
from knee.core.slo import Slo
from knee.engine.config import REFERENCE, StepCost
from knee.measure.single import live_point
from knee.measure.target import Measured, Offer
from knee.mock.config import MockConfig
from knee.mock.process import mock_process

COST = StepCost(fixed_ns=12_000_000, per_seq_ns=1_000_000, per_prefill_token_ns=50_000)
SECONDS = 24


def _valid(measured: Measured, offer: Offer, slo: Slo) -> Point:
    """The point, valid even where other work on this machine made the client late."""
    return msgspec.structs.replace(live_point(measured, offer, slo), invalid=())


def test_a_server_is_measured_lightly_and_its_step_cost_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("knee.measure.single.live_point", _valid)
    load = ["--prompt", "uniform:32-256", "--output", "uniform:4-16", "--server-time", f"{SECONDS}s"]
    with mock_process(MockConfig(engine=msgspec.structs.replace(REFERENCE, step_cost=COST))) as server:
        code = run(["calibrate", server.url, *load, "--json"])
    said = capsys.readouterr()
    assert code == 0, said.err
    found = json.loads(said.out)
    points = list(read_lines(tmp_path / "runs" / "calibrate-1" / POINTS, Point))
    assert points[0].max_concurrency == 1
    rates = [point.rate for point in points[1:]]
    assert len(rates) >= 2
    assert rates == sorted(rates)
    assert sum(point.spent_ns for point in points) / 1e9 < SECONDS + 2
    alone_ms = points[0].e2e_ms.mean_finite or 0.0
    # Requests aim at some twice as long as alone; what other work on this machine adds is bounded loosely.
    assert max(point.e2e_ms.mean_finite or 0.0 for point in points) < 20 * alone_ms
    assert max(rates) * alone_ms / 1000 <= 12.5  # by Little's law, in flight at the lightest
    assert found["costs"]["fixed"]["ms"] == pytest.approx(12, rel=0.25)
    assert found["costs"]["per_prefill_token"]["ms"] == pytest.approx(0.05, rel=0.5)


def test_a_server_that_is_not_there_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["calibrate", "http://127.0.0.1:9"]) != 0
    assert "127.0.0.1:9" in capsys.readouterr().err
