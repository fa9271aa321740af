"""What a killed run left behind, as if it had just been measured."""

from collections import defaultdict
from itertools import chain
from pathlib import Path

import numpy as np

from knee.core.errors import InputError
from knee.core.point import Point
from knee.core.requests import OUTCOMES, Gaps, Observed, RequestRecord, column
from knee.core.run import POINTS, RECORDS, SNAPSHOTS, read_lines, write_lines
from knee.core.snapshot import Snapshot
from knee.measure.target import Measured


class KeptSnapshot(Snapshot, frozen=True, kw_only=True):
    """A line of `snapshots.jsonl`."""

    point: int = 0


def kept_points(run: Path) -> list[tuple[Measured, Point]]:
    """Every finished point of a run with what it was made from, in order.

    What an unfinished point left is removed from the run, since its number will be given again.

    Raises:
        InputError: the run has points without records, so nothing can be concluded from them anew.
    """
    points = list(read_lines(run / POINTS, Point))
    whole = [point for point in points if point.stopped not in ("interrupted", "target lost")]
    records, snapshots = defaultdict(list), defaultdict(list)
    for record in read_lines(run / RECORDS, RequestRecord):
        records[record.point].append(record)
    for snapshot in read_lines(run / SNAPSHOTS, KeptSnapshot):
        snapshots[snapshot.point].append(snapshot)
    for number in range(len(whole)):
        if not records[number]:
            raise InputError(f"{run} has no records of point {number}", "begin a new sweep")
    if len(whole) < len(points) or max(records, default=-1) >= len(whole):
        numbers = range(len(whole))
        write_lines(run / POINTS, whole)
        write_lines(run / RECORDS, chain.from_iterable(records[n] for n in numbers))
        write_lines(run / SNAPSHOTS, chain.from_iterable(snapshots[n] for n in numbers))
    return [
        (
            Measured(
                observed=observed_from(records[number], point.spent_ns, point.causes),
                spent_ns=point.spent_ns,
                window=point.window,
                snapshots=tuple(snapshots[number]),
                stopped=point.stopped,
            ),
            point,
        )
        for number, point in enumerate(whole)
    ]


def observed_from(records: list[RequestRecord], end_of_load_ns: int, causes: dict[str, int]) -> Observed:
    """The columns that `records` are the lines of."""
    ordered = sorted(records, key=lambda record: (record.due_ns, record.index))
    at, ns, count = [], [], []
    for record in ordered:
        ends = record.first_ns + np.cumsum(column(record.gap_ns))
        tokens = np.maximum(1, column(record.gap_tokens))
        at.append(ends)
        ns.append(column(record.gap_ns) // tokens)
        count.append(tokens)
    order = np.argsort(np.concatenate(at), kind="stable") if at else column([])
    columns = {
        name: column([getattr(record, name) for record in ordered])
        for name in (
            *("due_ns", "sent_ns", "first_ns", "last_ns", "end_ns"),
            *("prompt_tokens", "asked_tokens", "output_tokens", "first_tokens"),
        )
    }
    outcomes = [OUTCOMES.index(record.outcome) for record in ordered]
    return Observed(
        **columns,
        outcome=np.asarray(outcomes, dtype=np.int8),
        gaps=Gaps(
            ns=np.concatenate(ns)[order] if ns else column([]),
            count=np.concatenate(count)[order] if count else column([]),
            at_ns=np.concatenate(at)[order] if at else column([]),
        ),
        end_of_load_ns=end_of_load_ns,
        causes=causes,
    )
