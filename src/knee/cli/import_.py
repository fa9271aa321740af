"""`knee import`: results of other benchmark tools, as points."""

from pathlib import Path
from typing import Annotated

import typer

from knee.cli.app import JsonOption, show


def import_(
    files: Annotated[
        list[Path],
        typer.Argument(help="Results of vllm bench serve (--save-result), GuideLLM or AIPerf."),
    ],
    *,
    slo: Annotated[str, typer.Option(help="Judge those that hold every request.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Read result files of other tools as points, failures counted.

    Their latencies count from the send; a percentile among failed requests is unbounded.
    """
    from knee.core.slo import parse_slo
    from knee.measure.foreign import read_results
    from knee.report.points import points_table

    objectives = parse_slo(slo) if slo else None
    points = [point for path in files for point in read_results(path, objectives)]
    points.sort(key=lambda point: (point.rate, point.max_concurrency or 0))
    show(points, as_json, lambda: points_table(points))
