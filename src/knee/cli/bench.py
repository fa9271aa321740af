"""`knee bench`: one rate against a live server, and what its requests saw."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from knee.cli import load_options as load
from knee.cli import target_options as to
from knee.cli.app import JsonOption, log, show
from knee.core.errors import EXIT_INTERRUPTED, EXIT_NEGATIVE, EXIT_OK, TargetLost
from knee.core.slo import Slo, parse_slo
from knee.core.units import NS_PER_S

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from knee.core.point import Point
    from knee.measure.client.connection import Connection
    from knee.measure.client.line import Hire
    from knee.measure.client.live import LiveTarget
    from knee.measure.target import Offer


def bench(
    url: to.UrlArgument,
    *,
    rate: Annotated[float | None, typer.Option(help="Requests/s, open loop; 0.25 is fine.")] = None,
    max_concurrency: Annotated[
        int | None, typer.Option(help="Instead of a rate: this many clients, each waiting for its answer.")
    ] = None,
    prompt: load.PromptOption = "1000",
    output: load.OutputOption = "200",
    duration: load.DurationOption = "30s",
    warmup: load.WarmupOption = "5s",
    drain: load.DrainOption = "60s",
    slo: Annotated[str, typer.Option(help='Judge it, as in "ttft p95 < 1s, itl p99 < 60ms".')] = "",
    seed: load.SeedOption = 1,
    burstiness: load.BurstinessOption = 1.0,
    constant: load.ConstantOption = False,
    burst: load.BurstOption = "",
    stages: load.StagesOption = "",
    shared_prefix: load.PrefixOption = "",
    turns: load.TurnsOption = "",
    think: load.ThinkOption = "1s",
    workload: load.WorkloadOption = None,
    replay: load.ReplayOption = False,
    speed: load.SpeedOption = 1.0,
    model: to.ModelOption = "",
    endpoint: to.EndpointOption = "completions",
    stream: to.StreamOption = True,
    n: to.AnswersOption = 1,
    body: to.BodyOption = None,
    header: to.HeaderOption = None,
    api_key_file: to.KeyOption = None,
    metrics: to.MetricsOption = None,
    timeout: to.TimeoutOption = "10m",
    workers: to.WorkersOption = None,
    ray: to.RayOption = "",
    realtime: to.RealtimeOption = False,
    out: Annotated[Path | None, typer.Option(help="Run directory to write.")] = None,
    save_result: Annotated[
        Path | None, typer.Option(help="Also write JSON as `vllm bench serve --save-result` does.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Offer one rate to a live server and show what its requests saw.

    Latencies count from the instant at which a request was due. Exit code 0, or 1 where the SLO does not
    hold or the point is not valid; 6 where the server was lost.
    """
    values = {name: value for name, value in locals().items() if name in load.LoadFlags.__struct_fields__}
    offer = load.offer_from(load.LoadFlags(**values))
    connection = to.connection_from(
        url, model=model, endpoint=endpoint, stream=stream, n=n, body=body, headers=header,
        key_file=api_key_file, metrics=metrics, timeout=timeout, realtime=realtime,
    )  # fmt: skip
    objectives = parse_slo(slo) if slo else Slo(())
    with to.workers_from(workers, ray) as (count, hire):
        return run_bench(connection, offer, objectives, Settings(out, save_result, count, hire, as_json))


class Settings(NamedTuple):
    """Where results go, and how many workers send, started by `hire` where that is not on this machine."""

    out: Path | None
    save_result: Path | None
    workers: int
    hire: "Hire | None"
    as_json: bool


def run_bench(connection: "Connection", offer: "Offer", slo: Slo, settings: Settings) -> int:
    """Measure the point, show it, and say in the exit code what came of it."""
    from knee.cli.progress import progress_line
    from knee.measure.client.live import connect
    from knee.measure.single import measure_point

    target = connect(connection, workers=settings.workers, hire=settings.hire)
    for note in target.notes:
        log(f"note: {note}")
    with progress_line(offer) as target.progress:
        point = measure_point(target, offer, slo, settings.out, settings.save_result)
    show(point, settings.as_json, lambda: _render(point, target))
    if point.stopped == "target lost":
        raise TargetLost(f"{target.describe().name} stopped answering", "look at its log")
    if point.stopped == "interrupted":
        return EXIT_INTERRUPTED
    return EXIT_NEGATIVE if point.invalid or point.holds is False else EXIT_OK


def _render(point: "Point", target: "LiveTarget") -> "Group":
    from rich.console import Group
    from rich.text import Text

    from knee.report.points import judged_line

    info = target.describe()
    asked = f"{point.rate:g} req/s" if point.max_concurrency is None else f"{point.max_concurrency} clients"
    books = " + ".join(f"{name} {getattr(point, name)}" for name in ("ok", "failed", "rejected", "censored"))
    seconds = (point.window_end_ns - point.window_start_ns) / NS_PER_S
    came = (
        f"sent {point.attained_rate:.4g} req/s, answered {point.served_rate:.4g} req/s,"
        f" {point.output_tokens_per_s:.0f} output tokens/s"
    )
    head = [
        f"{info.name}: {info.model}, vLLM {info.version or 'of unknown version'}",
        f"asked {asked} for {seconds:.3g} s: {came}",
        f"offered {point.offered} = {books}",
        f"tokens a request: {point.prompt_tokens_mean:.1f} in, {point.output_tokens_mean:.1f} out",
    ]
    tail = [judged_line(judged) for judged in point.judged]
    tail += [f"stopped early: {point.stopped}"] if point.stopped else []
    tail += [f"not answered: {cause} ({times})" for cause, times in sorted(point.causes.items())]
    tail += [f"invalid: {reason}" for reason in point.invalid]
    tail += [f"note: {note}" for note in point.notes]
    return Group(*map(Text, head), "", _latencies(point), "", *map(Text, tail))


def _latencies(point: "Point") -> "Table":
    from rich.table import Table

    from knee.report.points import percentile

    names = ("p50", "p90", "p95", "p99")
    table = Table("ms", *names, "samples", "unfinished", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    labels = {"TTFT": "ttft", "ITL": "itl", "TPOT": "tpot", "E2E": "e2e", "send lag": "send_lag"}
    for label, field in labels.items():
        summary = getattr(point, f"{field}_ms")
        cells = [percentile(summary, name) for name in names]
        table.add_row(label, *cells, str(summary.n), str(summary.n_infinite))
    return table
