"""`knee calibrate`: fit the simulated engine to a recorded run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from knee.cli.app import JsonOption, log, show
from knee.core.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Group

    from knee.measure.model.calibrate import Calibration

NAMES = {
    "fixed": "a step",
    "per_seq": "a running sequence",
    "per_prefill_token": "a prefill token",
    "per_context_token": "a token of context read",
}


def calibrate(
    run: Annotated[str, typer.Argument(help="The run directory of a sweep.", metavar="RUN")],
    *,
    below: Annotated[float | None, typer.Option(help="Use only points at rates up to this.")] = None,
    max_num_seqs: Annotated[int | None, typer.Option(help="Where the run does not tell it.")] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(help="Where the run does not tell it.")
    ] = None,
    num_gpu_blocks: Annotated[int | None, typer.Option(help="Where the run does not tell it.")] = None,
    out: Annotated[Path | None, typer.Option(help="Save the calibration, for knee simulate --like.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Fit the step cost of the simulated engine to what a run's requests saw.

    Shows each part with its 95 % interval, the fitted engine beside every measured point, and how far it may
    be trusted.
    """
    from knee.core.run import write_atomically
    from knee.measure.model.calibrate import calibrate as fit
    from knee.measure.recorded import read_recorded

    if run.startswith(("http://", "https://")):
        raise UsageError(f"{run} is a server", "knee sweep URL --out RUN first, then knee calibrate RUN")
    given = {
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "num_gpu_blocks": num_gpu_blocks,
    }
    flags = {name: value for name, value in given.items() if value is not None}
    found = fit(read_recorded(Path(run)), flags, float("inf") if below is None else below)
    if out is not None:
        write_atomically(out, found)
        log(f"saved to {out}")
    show(found, as_json, lambda: _shown(found))


def _shown(found: "Calibration") -> "Group":
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    costs = Table("a step takes, for", "ms", "95 % interval", box=None, pad_edge=False)
    for part, name in NAMES.items():
        cost = found.costs[part]
        costs.add_row(name, f"{cost.ms:.4g}", f"{cost.low_ms:.4g} to {cost.high_ms:.4g}")
    points = Table(*("req/s", "mean ITL ms", "fitted", "median TTFT ms", "fitted"), box=None, pad_edge=False)
    for one in found.replayed:
        ttft = one.ttft_fitted_ms + found.extra_ttft_ms
        points.add_row(
            *(f"{value:.4g}" for value in (one.rate, one.itl_ms, one.itl_fitted_ms, one.ttft_ms, ttft))
        )
    engine = found.engine
    seen = f"{found.running_seen:.0f} sequences at once, requests of up to {found.context_seen:,} tokens"
    lines = [
        f"\nresidual {found.residual:.1%} of a step",
        f"beyond the engine, a first token takes {found.extra_ttft_ms:.3g} ms",
        f"seen: up to {found.rate_seen:g} req/s, {seen}",
        f"do not trust it beyond {found.running_trusted:.0f} sequences at once",
        *(f"assumed: {text}" for text in found.assumed),
        f"limits: max_num_seqs {engine.max_num_seqs}, max_num_batched_tokens {engine.max_num_batched_tokens}",
    ]
    return Group(costs, Text(""), points, Text("\n".join(lines)))
