"""`knee sweep`: raise the rate until the SLO breaks, and say where the knee is and what binds there."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import typer

from knee.cli import load_options as load
from knee.cli import target_options as to
from knee.cli.app import JsonOption, log, show
from knee.cli.sweep_view import SweepResult, plan_line, render_sweep, tell, told, write_page
from knee.core.errors import EXIT_INTERRUPTED, EXIT_NEGATIVE, EXIT_OK, NoAnswer, TargetLost, UsageError
from knee.core.slo import Slo, parse_slo

if TYPE_CHECKING:
    from knee.core.point import Point
    from knee.diagnose.verdict import Diagnosis
    from knee.measure.client.live import LiveTarget
    from knee.measure.search.budget import Budget
    from knee.measure.sweep import Sweep
    from knee.measure.target import Measured, Offer
    from knee.workload.spec import Workload

MOST_RATES = 50


def sweep(
    url: to.UrlArgument,
    *,
    slo: Annotated[str, typer.Option(help='Objectives, as in "ttft p95 < 1s, itl p99 < 60ms".')] = "",
    rates: Annotated[str, typer.Option(help="Measure these rates instead of searching: 10,15,18.")] = "",
    precision: Annotated[str, typer.Option(help="Half-width of the interval at which to stop.")] = "5%",
    server_time: Annotated[str, typer.Option(help="Server time to spend at most.")] = "30m",
    points: Annotated[int, typer.Option(help="Open-loop points to measure at most.")] = 12,
    clients: Annotated[int, typer.Option(help="Clients of the burst that bounds the capacity.")] = 256,
    prompt: load.PromptOption = "1000",
    output: load.OutputOption = "200",
    duration: load.DurationOption = "60s",
    warmup: load.WarmupOption = "10s",
    drain: load.DrainOption = "60s",
    seed: load.SeedOption = 1,
    burstiness: load.BurstinessOption = 1.0,
    shared_prefix: load.PrefixOption = "",
    workload: load.WorkloadOption = None,
    model: to.ModelOption = "",
    endpoint: to.EndpointOption = "completions",
    body: to.BodyOption = None,
    header: to.HeaderOption = None,
    api_key_file: to.KeyOption = None,
    metrics: to.MetricsOption = None,
    timeout: to.TimeoutOption = "10m",
    workers: to.WorkersOption = None,
    ray: to.RayOption = "",
    realtime: to.RealtimeOption = False,
    server_log: to.ServerLogOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Run directory to write; runs/sweep-N if left out.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="Go on with this run: its load, SLO and seed, its points not again."),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Offer open-loop load at rising rates until the knee is known, and name the limit that binds there.

    Every finished point is in the run directory, whatever happens later. --duration, --warmup and --drain
    are for --rates; a search chooses its own. Exit code 0 with a knee, 1 where the SLO holds at no rate or a
    given rate breaks it, 5 where no interval was found, 6 where the server was lost.
    """
    from knee.core.run import open_run
    from knee.measure.client.live import connect

    asked = _asked(locals())
    connection = to.connection_from(
        url, model=model, endpoint=endpoint, body=body, headers=header, key_file=api_key_file,
        metrics=metrics, timeout=timeout, realtime=realtime,
    )  # fmt: skip
    if resume is not None:
        open_run(resume)
    known = to.flags_in(server_log)
    with to.workers_from(workers, ray) as (count, hire):
        target = connect(connection, workers=count, hire=hire)
        target.flags = known
        return _measure(target, asked, as_json)


class Asked(NamedTuple):
    """What to measure: `offers` one by one, or where there are none, by a search.

    With `resume` that run's own load, SLO and seed take the place of these.
    """

    slo: Slo
    budget: "Budget"
    offers: "list[Offer]"
    workload: "Workload"
    seed: int
    clients: int
    out: Path | None
    resume: Path | None


def _asked(flags: dict[str, Any]) -> Asked:
    """What the flags ask for; a UsageError says where they contradict each other, or do not say enough."""
    slo, resume = flags["slo"], flags["resume"]
    if resume is None and not slo:
        raise UsageError("a sweep needs objectives", 'write --slo "ttft p95 < 1s, itl p99 < 60ms"')
    if resume is not None and any(flags[name] for name in ("rates", "out", "slo", "workload")):
        raise UsageError("--resume takes load, SLO and place from the run", "leave out what it says already")
    sent = load.LoadFlags(**{name: flags[name] for name in load.LoadFlags.__struct_fields__ if name in flags})
    return Asked(
        slo=parse_slo(slo) if slo else Slo(()),
        budget=_budget(flags["precision"], flags["server_time"], flags["points"]),
        offers=[load.offer_from(msgspec.structs.replace(sent, rate=rate)) for rate in _rates(flags["rates"])],
        workload=load.workload_from(sent)[0],
        seed=flags["seed"],
        clients=flags["clients"],
        out=flags["out"],
        resume=resume,
    )


def _measure(target: "LiveTarget", asked: Asked, as_json: bool) -> int:
    """Measure, with every finished point in the run directory; the exit code."""
    from knee.measure.search.steps import Search
    from knee.measure.single import live_point
    from knee.measure.sweep import Recorder, search_knee, sweep_offers

    spec, slo, seed = asked.workload, asked.slo, asked.seed
    kept: list[tuple[Measured, Point]] = []
    if asked.resume is not None:
        spec, slo, seed, kept = _reopen_run(asked.resume, target)
        run = asked.resume
    else:
        run = _open_run(asked.out, target, spec, slo, seed)
    log(f"run directory: {run}" + (f", {len(kept)} points kept" if kept else ""))
    log(plan_line(asked.budget, asked.clients, asked.offers))
    recorder = Recorder(make_point=live_point, run=run, tell=tell, told=told)
    if asked.offers:
        found = sweep_offers(target, asked.offers, slo, recorder)
    else:
        known = target.describe().flags
        search = Search(spec, slo, seed=seed, budget=asked.budget, clients=asked.clients, flags=known)
        found = search_knee(target, search, recorder, kept)
    return _conclude(found, target, slo, run, as_json)


def _conclude(found: "Sweep", target: "LiveTarget", slo: Slo, run: Path, as_json: bool) -> int:
    """Close the run, show what was found, and say in the exit code what came of it.

    Raises:
        TargetLost: the server was lost on the way.
    """
    from knee.measure.sweep import finish

    diagnosis = _diagnose(found, target, slo)
    finish(run, found, diagnosis=diagnosis)
    if found.ended == "target lost":
        raise TargetLost(
            f"{target.describe().name} was lost at point {len(found.points)}: {found.why}",
            f"look at its log; the points are kept in {run}",
        )
    if found.ended == "interrupted":
        log(f"knee: interrupted at point {len(found.points)}; the points are kept in {run}")
        return EXIT_INTERRUPTED
    write_page(run, found, diagnosis, target, slo)
    result = SweepResult(sweep=found, diagnosis=diagnosis, run=str(run))
    show(result, as_json, lambda: render_sweep(result, slo))
    return _exit_code(found)


def _budget(precision: str, server_time: str, points: int) -> "Budget":
    from knee.core.units import NS_PER_S, parse_duration_ns
    from knee.measure.search.budget import Budget

    try:
        share = float(precision.removesuffix("%")) / 100
    except ValueError:
        raise UsageError(f"not a precision: {precision!r}", "write it like 5%") from None
    return Budget(
        precision=share, server_s=parse_duration_ns(server_time) / NS_PER_S, points=points
    ).checked()


def _rates(text: str) -> list[float]:
    try:
        rates = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise UsageError(f"--rates {text}", "numbers with commas between them, like 10,15,18") from None
    if len(rates) > MOST_RATES:
        raise UsageError(f"{len(rates)} rates", f"at most {MOST_RATES}")
    return rates


def _open_run(out: Path | None, target: "LiveTarget", spec: Any, slo: Slo, seed: int) -> Path:
    from knee.core.run import create_run, new_folder
    from knee.measure.sweep import plan_of

    run = create_run(out or new_folder(Path("runs"), "sweep"), plan_of("sweep", target, spec, slo, seed))
    target.keep_in(run)
    for note in target.notes:
        log(f"note: {note}")
    return run


def _reopen_run(run: Path, target: "LiveTarget") -> "tuple[Workload, Slo, int, list[tuple[Measured, Point]]]":
    """Load, SLO, seed and finished points of a run that did not end.

    Raises:
        InputError: it is no such run, or it was made with another model or version.
    """
    from knee.core.errors import InputError
    from knee.core.run import open_run, read_manifest
    from knee.measure.kept import kept_points
    from knee.measure.target import TargetInfo
    from knee.workload.spec import Workload

    plan, manifest = open_run(run), read_manifest(run)
    if plan.get("command") != "sweep":
        raise InputError(f"{run} is not a sweep", "knee sweep --out DIR makes one")
    if manifest is not None and manifest.get("ended") == "complete":
        raise InputError(f"{run} has ended: there is nothing left to resume", "begin a new sweep")
    before, now = msgspec.convert(plan["target"], TargetInfo), target.describe()
    if (before.model, before.version) != (now.model, now.version):
        was, what = f"{before.model} on {before.version}", f"{now.model} on {now.version}"
        raise InputError(f"{run} measured {was}, this server has {what}", "begin a new sweep")
    kept = kept_points(run)
    target.keep_in(run, len(kept))
    return msgspec.convert(plan["workload"], Workload), msgspec.convert(plan["slo"], Slo), plan["seed"], kept


def _diagnose(found: "Sweep", target: "LiveTarget", slo: Slo) -> "Diagnosis | None":
    from knee.diagnose.runs import diagnose_points

    try:
        return diagnose_points(found.points, target.describe().flags, slo)
    except NoAnswer as error:
        log(f"no diagnosis: {error}")
        return None


def _exit_code(found: "Sweep") -> int:
    if found.knee is None:
        return EXIT_NEGATIVE if any(point.holds is False for point in found.points) else EXIT_OK
    if found.knee.holds is None and found.knee.breaks is None:
        return NoAnswer.exit_code
    return EXIT_NEGATIVE if found.knee.holds is None else EXIT_OK
