"""`knee compare`: a candidate run against a baseline run, for a person or a CI gate."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from knee.cli.app import JsonOption, show
from knee.core.errors import EXIT_NEGATIVE, EXIT_OK, NoAnswer, UsageError

if TYPE_CHECKING:
    from rich.console import Group

    from knee.measure.compare import Compared, Comparison


def compare(
    baseline: Annotated[
        Path, typer.Argument(help="Run directory of a bench or sweep, or a knee.lock: before.")
    ],
    candidate: Annotated[Path, typer.Argument(help="The same load and SLO, measured after.")],
    *,
    margin: Annotated[
        str, typer.Option(help="Changes within this are no change; beyond it they need proof.")
    ] = "5%",
    as_json: JsonOption = False,
) -> int:
    """Say whether a candidate regressed, improved, is unchanged, or cannot be told from the baseline.

    Two sweeps are compared by their knees where both searched for one, else rate by rate on every objective
    of the SLO. A rate that the candidate lacks counts as regressed. Exit code 0 for unchanged or improved, 1
    for regressed, 5 for inconclusive.
    """
    from knee.measure.compare import compare_runs, read_side

    found = compare_runs(read_side(baseline), read_side(candidate), _share(margin))
    show(found, as_json, lambda: _render(found))
    return {"regressed": EXIT_NEGATIVE, "inconclusive": NoAnswer.exit_code}.get(found.verdict, EXIT_OK)


def _share(text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        raise UsageError(f"not a margin: {text!r}", "write it like 5%") from None
    if not 0 < share < 1:
        raise UsageError(f"a margin of {text}", "it lies between 0% and 100%")
    return share


def _render(found: "Comparison") -> "Group":
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table("what", "req/s", "baseline", "candidate", "change", "verdict", box=None, pad_edge=False)
    for column in table.columns[1:5]:
        column.justify = "right"
    for one in found.compared:
        table.add_row(
            one.what,
            _number(one.rate),
            _number(one.baseline),
            _number(one.candidate),
            _change(one),
            one.verdict + (f": {one.why}" if one.why else ""),
        )
    names = f"{found.candidate} against {found.baseline}"
    return Group(table, "", Text(f"{found.verdict}: {names}, margin {found.margin:.3g}"))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _change(one: "Compared") -> str:
    if one.difference is None:
        return ""
    seen = one.difference
    return f"{seen.change:+.1%} [{seen.low:+.1%}, {seen.high:+.1%}]"
