"""Runs as a source: which point is asked about, and what of the client's view counts."""

from pathlib import Path

import msgspec
import pytest

from knee.cli.main import run
from knee.core.errors import NoAnswer
from knee.core.point import Point
from knee.core.run import POINTS, append_lines, create_run
from knee.core.slo import parse_slo
from knee.core.units import NS_PER_S
from knee.diagnose.runs import binding_point, diagnose_points, read_run, window_of
from knee.engine.config import REFERENCE
from knee.measure.point import make_point
from knee.measure.simulated import SimulatedTarget
from knee.measure.target import Offer, TargetInfo
from knee.workload.spec import Lengths, Workload

SLO = parse_slo("ttft p95 < 1s")
WORKLOAD = Workload(prompt_tokens=Lengths(mean=1000), output_tokens=Lengths(mean=200))


def sweep(cap: int, *rates: float) -> tuple[list[Point], TargetInfo]:
    """The reference document's server with another cap, at each of `rates`."""
    target = SimulatedTarget(msgspec.structs.replace(REFERENCE, max_num_seqs=cap))
    points = []
    for rate in rates:
        offer = Offer(
            workload=WORKLOAD,
            rate=rate,
            seed=5,
            warmup_ns=10 * NS_PER_S,
            window_ns=30 * NS_PER_S,
            drain_ns=10 * NS_PER_S,
        )
        points.append(make_point(target.measure(offer), offer, SLO, simulated=True))
    return points, target.describe()


@pytest.fixture(scope="module")
def capped() -> tuple[list[Point], TargetInfo]:
    return sweep(16, 1, 5, 9, 12)


def test_the_lowest_rate_that_broke_is_asked_about(capped: tuple[list[Point], TargetInfo]) -> None:
    points, _ = capped
    assert [point.holds is False for point in points] == [False, False, True, True]
    assert binding_point(points).rate == 9
    assert binding_point(points[:2]).rate == 5


def test_a_sweep_of_a_server_with_a_low_cap(capped: tuple[list[Point], TargetInfo]) -> None:
    points, info = capped
    verdict = diagnose_points(points, info.flags)
    assert (verdict.limit, verdict.confidence) == ("sequence_cap", "high")
    assert verdict.move is not None
    assert (verdict.move.flag, verdict.move.current) == ("max_num_seqs", "16")
    assert 16 < int(verdict.move.to) <= 64


def test_below_the_knee_nothing_binds(capped: tuple[list[Point], TargetInfo]) -> None:
    points, info = capped
    assert diagnose_points(points[:2], info.flags).limit == "none"


def test_the_light_point_tells_the_gap_of_a_request_alone(capped: tuple[list[Point], TargetInfo]) -> None:
    points, info = capped
    _, facts = window_of(points, info.flags, None)
    assert facts.light_itl_s == pytest.approx(0.0071, rel=0.05)  # 7 ms a step and 0.1 ms a sequence
    assert window_of(points[1:], info.flags, None)[1].light_itl_s is None


def test_a_run_directory(
    capped: tuple[list[Point], TargetInfo], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    points, info = capped
    folder = create_run(
        tmp_path / "run", {"target": msgspec.to_builtins(info), "slo": msgspec.to_builtins(SLO)}
    )
    append_lines(folder / POINTS, points)
    window, facts = read_run(folder)
    assert window == points[2].window
    assert (facts.slo, facts.flags["max_num_seqs"]) == (SLO, "16")
    assert run(["diagnose", str(folder)]) == 1
    assert "sequence_cap" in capsys.readouterr().out


def test_a_run_without_metrics(tmp_path: Path, capped: tuple[list[Point], TargetInfo]) -> None:
    folder = create_run(tmp_path / "run", {})
    append_lines(folder / POINTS, [msgspec.structs.replace(capped[0][0], window=None)])
    with pytest.raises(NoAnswer, match="no point holds"):
        read_run(folder)
    assert run(["diagnose", str(folder)]) == 5
