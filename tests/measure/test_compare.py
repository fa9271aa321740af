"""Runs of the simulated engine against each other, as a CI gate would."""

import json
from pathlib import Path

import msgspec
import pytest

from knee.cli.main import run
from knee.core.errors import InputError
from knee.core.point import Knee
from knee.core.run import MANIFEST, POINTS, append_lines, create_run, write_atomically
from knee.core.slo import Slo, parse_slo
from knee.engine.config import REFERENCE, EngineConfig
from knee.measure.compare import compare_runs, read_side
from knee.measure.point import make_point
from knee.measure.simulated import SimulatedTarget
from knee.measure.sweep import plan_of
from knee.measure.target import Offer
from knee.workload.spec import Lengths, Workload

WORKLOAD = Workload(prompt_tokens=Lengths(mean=1000), output_tokens=Lengths(mean=50))
SLO = parse_slo("ttft p95 < 1s, itl p99 < 100ms")
SLOWER = msgspec.structs.replace(
    REFERENCE, step_cost=msgspec.structs.replace(REFERENCE.step_cost, per_prefill_token_ns=27_000)
)


def _swept(
    path: Path,
    rates: tuple[float, ...] = (5, 10),
    *,
    config: EngineConfig = REFERENCE,
    seeds: tuple[int, ...] = (1, 2, 3),
    slo: Slo = SLO,
    workload: Workload = WORKLOAD,
    knee: Knee | None = None,
) -> Path:
    create_run(path, plan_of("sweep", SimulatedTarget(config), workload, slo, 1))
    for rate in rates:
        for seed in seeds:
            offer = Offer(
                workload=workload,
                rate=rate,
                seed=seed,
                warmup_ns=5_000_000_000,
                window_ns=100_000_000_000,
                drain_ns=30_000_000_000,
            )
            measured = SimulatedTarget(config).measure(offer)
            append_lines(path / POINTS, [make_point(measured, offer, slo, simulated=True)])
    write_atomically(path / MANIFEST, {"ended": "complete", "points": len(rates), "knee": knee})
    return path


def _knee(estimate: float | None, half: float = 0.02) -> Knee:
    return Knee(
        slo=SLO,
        holds=estimate * (1 - half) if estimate else None,
        breaks=estimate * (1 + half) if estimate else None,
        estimate=estimate,
        confidence=0.95,
        reason="the interval is narrow enough" if estimate else "no rate holds",
    )


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _swept(tmp_path_factory.mktemp("compare") / "baseline")


def test_the_same_server_is_not_called_changed(baseline: Path, tmp_path: Path) -> None:
    again = _swept(tmp_path / "again", seeds=(4, 5, 6))
    found = compare_runs(read_side(baseline), read_side(again), margin=0.15)
    assert found.verdict in {"unchanged", "inconclusive"}
    assert {one.rate for one in found.compared} == {5, 10}
    assert {one.verdict for one in found.compared if one.what == "itl p99"} == {"unchanged"}


def test_a_slower_server_is_a_regression_for_the_gate(
    baseline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slower = _swept(tmp_path / "slower", config=SLOWER)
    assert run(["compare", str(baseline), str(slower), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "regressed"
    ttft = next(one for one in told["compared"] if one["what"] == "ttft p95" and one["rate"] == 10)
    assert ttft["verdict"] == "regressed"
    assert ttft["difference"]["low"] > 0.05
    assert run(["compare", str(slower), str(baseline)]) in {0, 5}
    assert "improved" in capsys.readouterr().out


def test_a_missing_level_is_a_failure_not_a_skip(
    baseline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    partial = _swept(tmp_path / "partial", rates=(5,))
    assert run(["compare", str(baseline), str(partial), "--margin", "20%"]) == 1
    assert "no valid point at this rate" in capsys.readouterr().out


def test_an_invalid_point_is_a_missing_level(baseline: Path, tmp_path: Path) -> None:
    path = _swept(tmp_path / "partial", rates=(5,))
    side = read_side(baseline)
    bad = tuple(
        msgspec.structs.replace(point, invalid=("the client was too slow",))
        for point in side.points
        if point.rate == 10
    )
    append_lines(path / POINTS, bad)
    found = compare_runs(side, read_side(path), margin=0.2)
    assert {one.verdict for one in found.compared if one.rate == 10} == {"regressed"}


def test_other_load_or_objectives_are_refused(
    baseline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    longer = Workload(prompt_tokens=Lengths(mean=1000), output_tokens=Lengths(mean=60))
    other_load = _swept(tmp_path / "load", rates=(5,), workload=longer, seeds=(1,))
    other_slo = _swept(tmp_path / "slo", rates=(5,), slo=parse_slo("ttft p95 < 2s"), seeds=(1,))
    assert run(["compare", str(baseline), str(other_load)]) == 3
    assert "the workloads differ" in capsys.readouterr().err
    assert run(["compare", str(baseline), str(other_slo)]) == 3
    assert "the SLOs differ" in capsys.readouterr().err
    assert run(["compare", str(baseline), str(tmp_path)]) == 3
    assert run(["compare", str(baseline), str(baseline), "--margin", "much"]) == 2
    bare = _swept(tmp_path / "bare", rates=(5,), slo=Slo(()), seeds=(1,))
    with pytest.raises(InputError, match="without an SLO"):
        read_side(bare)


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        (20.0, 20.1, 5),  # two searches within 2 % each do not prove that nothing changed by 5 %
        (20.0, 15.0, 1),
        (20.0, 26.0, 0),
        (20.0, None, 1),
        (None, 20.0, 5),
    ],
)
def test_searches_are_compared_by_their_knees(
    tmp_path: Path, before: float | None, after: float | None, code: int
) -> None:
    one = _swept(tmp_path / "one", rates=(5,), seeds=(1,), knee=_knee(before))
    other = _swept(tmp_path / "other", rates=(10,), seeds=(1,), knee=_knee(after))
    assert run(["compare", str(one), str(other)]) == code


def test_a_search_is_not_compared_with_given_rates(baseline: Path, tmp_path: Path) -> None:
    one = _swept(tmp_path / "one", rates=(5,), seeds=(1,), knee=_knee(20.0))
    with pytest.raises(InputError, match="searched for its knee"):
        compare_runs(read_side(one), read_side(baseline))
