"""What a killed sweep left behind, read back."""

from pathlib import Path

import numpy as np
import pytest

from knee.cli.main import run as knee
from knee.core.errors import InputError
from knee.core.point import Point
from knee.core.requests import NEVER, RequestRecord
from knee.core.run import POINTS, RECORDS, append_lines, create_run, read_lines
from knee.core.slo import parse_slo
from knee.measure.kept import kept_points, observed_from
from knee.measure.point import make_point
from knee.measure.target import Measured, Offer
from knee.workload.spec import Lengths, Workload

MS, S = 1_000_000, 1_000_000_000
WORKLOAD = Workload(prompt_tokens=Lengths(mean=10), output_tokens=Lengths(mean=5))
SLO = parse_slo("ttft p90 < 100ms, itl p90 < 20ms")


def _record(point: int, index: int, *, rejected: bool = False) -> RequestRecord:
    due = index * 20 * MS
    if rejected:
        return RequestRecord(
            point=point,
            index=index,
            due_ns=due,
            outcome="rejected",
            sent_ns=due,
            end_ns=due + MS,
            asked_tokens=5,
        )
    first = due + 50 * MS
    return RequestRecord(
        point=point,
        index=index,
        due_ns=due,
        outcome="ok",
        sent_ns=due + 1,
        first_ns=first,
        last_ns=first + 40 * MS,
        end_ns=first + 41 * MS,
        prompt_tokens=10,
        asked_tokens=5,
        output_tokens=5,
        first_tokens=1,
        gap_ns=(10 * MS, 30 * MS),
        gap_tokens=(1, 3),
    )


def _point(records: list[RequestRecord], stopped: str = "enough") -> Point:
    offer = Offer(workload=WORKLOAD, rate=50, seed=3, warmup_ns=0, window_ns=4 * S, drain_ns=S)
    observed = observed_from(records, 6 * S, {})
    return make_point(Measured(observed=observed, spent_ns=6 * S, stopped=stopped), offer, SLO)  # type: ignore[arg-type]


def test_columns_are_what_the_records_say() -> None:
    records = [_record(0, 2), _record(0, 0), _record(0, 1, rejected=True)]
    seen = observed_from(records, S, {"503": 1})
    assert seen.due_ns.tolist() == [0, 20 * MS, 40 * MS]
    assert seen.outcome.tolist() == [0, 2, 0]
    assert seen.first_ns.tolist() == [50 * MS, NEVER, 90 * MS]
    assert seen.gaps.at_ns.tolist() == [60 * MS, 90 * MS, 100 * MS, 130 * MS]
    assert (
        seen.gaps.ns.tolist() == [10 * MS] * 4
    )  # a chunk of three tokens after 30 ms is three gaps of 10 ms
    assert seen.gaps.count.tolist() == [1, 3, 1, 3]
    assert seen.causes == {"503": 1}
    assert len(observed_from([], S, {})) == 0


def test_a_kept_point_is_the_point_that_was_made(tmp_path: Path) -> None:
    run = create_run(tmp_path / "run", {"command": "sweep"})
    records = [[_record(n, i, rejected=i % 9 == 0) for i in range(200)] for n in range(2)]
    points = [_point(each) for each in records]
    for each, point in zip(records, points, strict=True):
        append_lines(run / RECORDS, each)
        append_lines(run / POINTS, [point])
    for (measured, point), before in zip(kept_points(run), points, strict=True):
        assert point == before
        offer = Offer(
            workload=WORKLOAD,
            rate=point.rate,
            seed=point.seed,
            warmup_ns=point.window_start_ns,
            window_ns=point.window_end_ns - point.window_start_ns,
            drain_ns=S,
        )
        assert make_point(measured, offer, SLO) == before


def test_what_an_unfinished_point_left_is_removed(tmp_path: Path) -> None:
    run = create_run(tmp_path / "run", {"command": "sweep"})
    whole, lost, begun = ([_record(n, i) for i in range(100)] for n in range(3))
    append_lines(run / RECORDS, [*whole, *lost, *begun])
    append_lines(run / POINTS, [_point(whole), _point(lost, "target lost")])
    assert len(kept_points(run)) == 1
    assert {record.point for record in read_lines(run / RECORDS, RequestRecord)} == {0}
    assert len(list(read_lines(run / POINTS, Point))) == 1


def test_points_without_records_cannot_be_continued(tmp_path: Path) -> None:
    run = create_run(tmp_path / "run", {"command": "sweep"})
    append_lines(run / POINTS, [_point([_record(0, i) for i in range(100)])])
    with pytest.raises(InputError, match="no records of point 0"):
        kept_points(run)


def test_the_command_line_of_a_sweep_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert knee(["sweep", "http://127.0.0.1:9"]) == 2
    assert "needs objectives" in capsys.readouterr().err
    assert knee(["sweep", "http://127.0.0.1:9", "--resume", str(tmp_path), "--slo", "ttft p95 < 1s"]) == 2
    assert "from the run" in capsys.readouterr().err


def test_seen_columns_have_the_types_of_measured_ones() -> None:
    seen = observed_from([_record(0, 0)], S, {})
    assert seen.outcome.dtype == np.int8
    assert seen.due_ns.dtype == seen.gaps.ns.dtype == np.int64
