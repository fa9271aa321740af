"""What a run directory holds of its points, as the columns that were in memory when they were measured."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from knee.core.errors import InputError
from knee.core.point import Point
from knee.core.requests import OUTCOMES, Gaps, Observed, RequestRecord, column
from knee.core.run import POINTS, RECORDS, open_run, read_lines
from knee.core.slo import Slo
from knee.workload.spec import Workload


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """A run: what was asked, and every point with what its requests saw.

    Requests that had not ended when their point did have no record, so they are missing from the columns.
    """

    path: str
    workload: Workload
    slo: Slo | None
    target: dict[str, Any]
    points: tuple[tuple[Point, Observed], ...]


def read_recorded(path: Path) -> Recorded:
    """The run in `path`.

    Raises:
        InputError: it is no run, or one without records.
    """
    plan = open_run(path)
    points = list(read_lines(path / POINTS, Point))
    records: dict[int, list[RequestRecord]] = {}
    for record in read_lines(path / RECORDS, RequestRecord):
        records.setdefault(record.point, []).append(record)
    seen = tuple((point, observed_of(records[n])) for n, point in enumerate(points) if n in records)
    if not seen:
        raise InputError(f"{path} holds no records of requests", "a run of knee sweep has records.jsonl")
    try:
        asked = plan.get("offer") or plan  # a single point has an offer, a sweep a workload
        workload = msgspec.convert(asked["workload"], Workload)
        slo = msgspec.convert(plan["slo"], Slo) if plan.get("slo") else None
    except (KeyError, msgspec.ValidationError) as error:
        raise InputError(f"the plan of {path} cannot be read: {error}") from error
    return Recorded(path=str(path), workload=workload, slo=slo, target=plan.get("target") or {}, points=seen)


def observed_of(records: list[RequestRecord]) -> Observed:
    """The columns of one point's records, in order of arrival."""
    ordered = sorted(records, key=lambda record: record.due_ns)
    names = ("due_ns", "sent_ns", "first_ns", "last_ns", "end_ns", "prompt_tokens", "asked_tokens")
    columns = {name: column([getattr(record, name) for record in ordered]) for name in names}
    causes: dict[str, int] = {}
    for record in ordered:
        if record.cause:
            causes[record.cause] = causes.get(record.cause, 0) + 1
    return Observed(
        **columns,
        outcome=np.array([OUTCOMES.index(record.outcome) for record in ordered], dtype=np.int8),
        output_tokens=column([record.output_tokens for record in ordered]),
        first_tokens=column([record.first_tokens for record in ordered]),
        gaps=_gaps(ordered),
        end_of_load_ns=int(columns["end_ns"].max(initial=0)),
        causes=causes,
    )


def _gaps(records: list[RequestRecord]) -> Gaps:
    """Gaps between tokens in order of their ends; a chunk of k tokens after a gap of G is k gaps of G/k."""
    raw = [column(record.gap_ns) for record in records]
    chunk_ns = np.concatenate([column([]), *raw])
    tokens = np.concatenate([column([]), *(column(record.gap_tokens) for record in records)])
    ends = (record.first_ns + np.cumsum(gaps) for record, gaps in zip(records, raw, strict=True))
    at = np.concatenate([column([]), *ends])
    order = np.argsort(at, kind="stable")
    order = order[tokens[order] > 0]
    return Gaps(
        ns=chunk_ns[order] // tokens[order], count=tokens[order], at_ns=at[order], chunk_ns=chunk_ns[order]
    )
