"""`knee calibrate`: fit the simulated engine to a recorded run, or to a live server."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from knee.cli import load_options as load
from knee.cli import target_options as to
from knee.cli.app import JsonOption, log, show
from knee.core.errors import NoAnswer, TargetLost, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Group

    from knee.core.point import Point
    from knee.measure.client.live import LiveTarget
    from knee.measure.model.calibrate import Calibration
    from knee.measure.search.budget import Step
    from knee.measure.target import Offer
    from knee.workload.spec import Workload

NAMES = {
    "fixed": "a step",
    "per_seq": "a running sequence",
    "per_prefill_token": "a prefill token",
    "per_context_token": "a token of context read",
    "per_prefill_step": "a step with prefill in it",
}


LIMITS = ("max_num_seqs", "max_num_batched_tokens", "num_gpu_blocks")


def calibrate(
    runs: Annotated[
        list[str], typer.Argument(help="Run directories of one server, or its URL.", metavar="RUN...|URL")
    ],
    *,
    below: Annotated[
        float, typer.Option(help="Use only points at rates up to this; with a URL, offer none above it.")
    ] = math.inf,
    max_num_seqs: Annotated[int | None, typer.Option(help="Where the run does not tell it.")] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(help="Where the run does not tell it.")
    ] = None,
    num_gpu_blocks: Annotated[int | None, typer.Option(help="Where the run does not tell it.")] = None,
    out: Annotated[Path | None, typer.Option(help="Save the calibration, for knee simulate --like.")] = None,
    server_time: Annotated[str, typer.Option(help="With a URL: load it for so long at most.")] = "3m",
    prompt: load.PromptOption = "1000",
    output: load.OutputOption = "200",
    seed: load.SeedOption = 1,
    workload: load.WorkloadOption = None,
    model: to.ModelOption = "",
    endpoint: to.EndpointOption = "completions",
    body: to.BodyOption = None,
    header: to.HeaderOption = None,
    api_key_file: to.KeyOption = None,
    metrics: to.MetricsOption = None,
    timeout: to.TimeoutOption = "10m",
    realtime: to.RealtimeOption = False,
    server_log: to.ServerLogOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fit the step cost of the simulated engine to what a run's requests saw.

    With a URL the server is first measured at light to medium load, then with requests in clumps, and the
    runs kept in runs/calibrate-N. Shows each part with its 95 % interval, the fitted engine beside every
    measured point, and how far it may be trusted.
    """
    from knee.core.run import write_atomically
    from knee.measure.model.calibrate import calibrate as fit
    from knee.measure.recorded import read_recorded

    asked = locals()
    limits = {name: asked[name] for name in LIMITS if asked[name] is not None}
    live = [run for run in runs if run.startswith(("http://", "https://"))]
    if live and len(runs) > 1:
        raise UsageError(f"{live[0]} beside others", "a server alone, or run directories")
    folders = _measured(live[0], asked) if live else [Path(run) for run in runs]
    found = fit([read_recorded(folder) for folder in folders], limits, below)
    if out is not None:
        write_atomically(out, found)
        log(f"saved to {out}")
    show(found, as_json, lambda: _shown(found))


def _measured(url: str, asked: dict[str, Any]) -> list[Path]:
    """Measure the server at `url` as the command's parameters ask; the run directories."""
    from knee.measure.client.live import connect

    sent = ("prompt", "output", "seed", "workload")
    workload, _ = load.workload_from(load.LoadFlags(**{name: asked[name] for name in sent}))
    reached = ("model", "endpoint", "body", "metrics", "timeout", "realtime")
    connection = to.connection_from(
        url,
        **{name: asked[name] for name in reached},
        headers=asked["header"],
        key_file=asked["api_key_file"],
    )
    target = connect(connection)
    target.flags = to.flags_in(asked["server_log"])
    return _measure_lightly(target, workload, asked["seed"], asked["server_time"], asked["below"])


def _measure_lightly(
    target: "LiveTarget", workload: "Workload", seed: int, server_time: str, below: float
) -> list[Path]:
    """Measure a server at light to medium load, then with requests in clumps; the run directories.

    A workload with arrivals of its own kind is offered as it is, and only so.
    """
    from knee.core.units import NS_PER_S, parse_duration_ns
    from knee.measure.model.light import CLUMPED_SHARE, clumped_offers, in_clumps, light_offers
    from knee.workload.spec import Arrivals

    for note in target.notes:
        log(f"note: {note}")
    server_s = parse_duration_ns(server_time) / NS_PER_S
    clumped_s = server_s * CLUMPED_SHARE if workload.arrivals == Arrivals() else 0.0
    seen: list[Point] = []
    offers = light_offers(workload, seed, server_s - clumped_s, seen, below)
    runs = [_measure(target, workload, seed, offers, seen)]
    again = clumped_offers(workload, seed, clumped_s, seen) if clumped_s else []
    if again:
        runs.append(_measure(target, in_clumps(workload), seed, again, []))
    return runs


def _measure(
    target: "LiveTarget", workload: "Workload", seed: int, offers: "Iterable[Offer]", seen: "list[Point]"
) -> Path:
    """Measure `offers`, each point going to `seen`; the run directory.

    Raises:
        TargetLost: the server was lost on the way.
        NoAnswer: the measurement was interrupted, or the server does not answer in time.
    """
    from knee.cli.sweep_view import tell, told
    from knee.core.run import create_run, new_folder
    from knee.core.slo import Slo
    from knee.measure.single import live_point
    from knee.measure.sweep import Recorder, finish, plan_of, sweep_offers

    plan = plan_of("sweep", target, workload, Slo(()), seed)
    run = create_run(new_folder(Path("runs"), "calibrate"), plan)
    target.keep_in(run)
    log(f"run directory: {run}")

    def heard(step: "Step", point: "Point") -> None:
        seen.append(point)
        told(step, point)

    recorder = Recorder(make_point=live_point, run=run, tell=tell, told=heard)
    found = sweep_offers(target, offers, Slo(()), recorder)
    finish(run, found)
    if found.ended == "target lost":
        at = target.connection.url
        raise TargetLost(f"{at} was lost: {found.why}", f"look at its log; {run} has the points")
    if found.ended == "interrupted":
        raise NoAnswer("interrupted before it was calibrated", f"knee calibrate {run} takes what there is")
    return run


def _shown(found: "Calibration") -> "Group":
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    costs = Table("a step takes, for", "ms", "95 % interval", box=None, pad_edge=False)
    for part, name in NAMES.items():
        cost = found.costs[part]
        costs.add_row(name, f"{cost.ms:.4g}", f"{cost.low_ms:.4g} to {cost.high_ms:.4g}")
    heads = ("req/s", "arrivals", "mean ITL ms", "fitted", "median TTFT ms", "fitted")
    points = Table(*heads, box=None, pad_edge=False)
    for one in found.replayed:
        kind, shape = one.arrivals.kind, one.arrivals.burstiness
        ttft = one.ttft_fitted_ms + found.extra_ttft_ms
        points.add_row(
            f"{one.rate:.4g}",
            kind if shape == 1 else f"{kind} {shape:g}",
            *(f"{value:.4g}" for value in (one.itl_ms, one.itl_fitted_ms, one.ttft_ms, ttft)),
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
