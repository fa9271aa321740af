"""`knee demo`: the main job from end to end, on a simulated server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from knee.cli.app import JsonOption, log, show

if TYPE_CHECKING:
    from collections.abc import Callable

    from knee.core.point import Knee, Point
    from knee.core.slo import Slo
    from knee.diagnose.verdict import Diagnosis, Move
    from knee.engine.config import EngineConfig
    from knee.fit.answer import FitAnswer
    from knee.measure.sweep import Sweep
    from knee.measure.target import Offer
    from knee.workload.spec import Workload


class Job(NamedTuple):
    """What stays the same through the demo."""

    workload: Workload
    slo: Slo
    seed: int
    say: Callable[[str], None]


class Swept(NamedTuple):
    """A sweep and what binds at its knee."""

    sweep: Sweep
    diagnosis: Diagnosis


SLO = "ttft p95 < 1s, itl p99 < 100ms"
WIRE_RATE, WIRE_SECONDS = 4.0, 4.0
P95_TOKENS = 1200
STARTUP_NS = 2_000_000_000
CURVE = (0.5, 0.7, 0.85, 0.93, 0.98, 1.02, 1.06, 1.12)
"""Where, beside the points of the search, the curve is measured, as shares of the knee."""


def demo(
    *,
    out: Annotated[
        Path | None, typer.Option(help="Where the runs go; a new folder in runs/ if left out.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of all arrivals.")] = 5,
    wire: Annotated[bool, typer.Option(help="Send one short point over real HTTP as well.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Fit, sweep, find the knee, name the limit, move one flag, sweep again: on a simulated server.

    The server is simulated: a model of vLLM's scheduler with assumed step costs (7 ms a step, 0.10 ms a
    sequence, 0.018 ms a prefill token). The sweeps run in virtual time. Only the point "over the wire" takes
    real seconds and real HTTP, against the same engine behind a socket of this machine.
    """
    import msgspec

    from knee.core.run import new_folder
    from knee.core.slo import parse_slo
    from knee.engine.config import REFERENCE
    from knee.workload.spec import Lengths, Workload

    folder = out or new_folder(Path("runs"), "demo")
    slo = parse_slo(SLO)
    workload = Workload(prompt_tokens=Lengths(mean=1000), output_tokens=Lengths(mean=200))
    job = Job(workload, slo, seed, log if as_json else print)
    say = job.say
    before = msgspec.structs.replace(
        REFERENCE, max_num_seqs=64, num_gpu_blocks=327_680 // REFERENCE.block_size + 1, version="0.32.0"
    )
    result: dict[str, Any] = {"simulated": True, "slo": str(slo), "engine": before}
    say("knee demo: everything below runs on a SIMULATED vLLM server (assumed step costs, no GPU).")

    say("\n1. Start the server, read its start-up log, check the fit")
    result["fit"], point = _start(before, job, folder, wire=wire)
    if point is not None:
        result["wire"] = point

    say("\n3. Sweep it open loop, in virtual time, until the knee is known")
    first = _sweep(before, job, folder / "before")
    result["before"] = first
    move = first.diagnosis.move
    if move is None or move.flag not in before.__struct_fields__:
        say("\nno flag of the simulated engine moves this limit; done")
    else:
        say(f"\n4. Move that one flag, {move.flag} to {move.to}, and sweep again")
        after = _moved(before, move)
        second = _sweep(after, job, folder / "after")
        names = (f"{move.flag} {getattr(before, move.flag)}", f"{move.flag} {getattr(after, move.flag)}")
        say(f"\n5. Before and after\n\n{_compare(names, first, second, slo)}")
        page = _write_page(folder / "report.html", names, first, second, seed)
        result |= {"after": second, "report": str(page)}
        say(f"runs: {folder}/before and {folder}/after; as a page: {page}")
    show(result, as_json, lambda: None)


def _start(engine: EngineConfig, job: Job, folder: Path, *, wire: bool) -> tuple[FitAnswer, Point | None]:
    """The fit that the log shows and, with `wire`, one point over HTTP."""
    from knee.fit.answer import judge
    from knee.fit.log import read_log
    from knee.fit.text import answer_lines
    from knee.mock.config import MockConfig
    from knee.mock.process import mock_process
    from knee.report.points import percentile

    folder.mkdir(parents=True, exist_ok=True)
    server_log = folder / "server.log"
    with mock_process(
        MockConfig(engine=engine, model="demo", startup_ns=STARTUP_NS), log=server_log
    ) as server:
        with server_log.open("rb") as stream:
            fit = judge(read_log(stream, str(server_log)), P95_TOKENS)
        for line in answer_lines(fit):
            job.say(f"   {line}")
        if not wire:
            return fit, None
        job.say(f"\n2. One point over real HTTP: {WIRE_RATE:g} req/s for {WIRE_SECONDS:g} s at {server.url}")
        point = _wire_point(server.url, job)
    seen = [percentile(summary, "p50") for summary in (point.ttft_ms, point.itl_ms)]
    books = " + ".join(f"{name} {getattr(point, name)}" for name in ("ok", "failed", "rejected", "censored"))
    job.say(f"   offered {point.offered} = {books}; TTFT p50 {seen[0]} ms, ITL p50 {seen[1]} ms")
    job.say("   (a short look at the wire; so few seconds say nothing about a p95)")
    return fit, point


def _wire_point(url: str, job: Job) -> Point:
    from knee.cli.target_options import connection_from
    from knee.core.units import NS_PER_S, s_to_ns
    from knee.measure.client.live import connect
    from knee.measure.single import measure_point
    from knee.measure.target import Offer

    offer = Offer(
        workload=job.workload,
        rate=WIRE_RATE,
        seed=job.seed,
        warmup_ns=NS_PER_S,
        window_ns=s_to_ns(WIRE_SECONDS),
        drain_ns=30 * NS_PER_S,
    )
    return measure_point(connect(connection_from(url)), offer, job.slo)


def _sweep(engine: EngineConfig, job: Job, run: Path) -> Swept:
    """The knee of a simulated engine in virtual time, and what binds there; kept in the run directory."""
    import msgspec

    from knee.core.run import create_run
    from knee.diagnose.runs import diagnose_points
    from knee.diagnose.text import verdict_lines
    from knee.measure.point import make_point
    from knee.measure.search.steps import Search
    from knee.measure.simulated import SimulatedTarget
    from knee.measure.sweep import Recorder, finish, plan_of, search_knee, sweep_offers
    from knee.report.points import knee_lines

    target = SimulatedTarget(engine)
    create_run(run, plan_of("demo", target, job.workload, job.slo, job.seed))
    flags = target.describe().flags
    recorder = Recorder(
        make_point=lambda measured, offer, wanted: make_point(measured, offer, wanted, simulated=True),
        run=run,
        told=lambda step, point: job.say(f"   {_point_line(step.phase, point)}"),
    )
    found = search_knee(target, Search(job.workload, job.slo, seed=job.seed, flags=flags), recorder)
    knee = found.knee
    assert knee is not None
    offers = [_curve_offer(job, share * (knee.estimate or 1.0)) for share in CURVE]
    curve = sweep_offers(target, offers, job.slo, msgspec.structs.replace(recorder, told=_unheard))
    found = msgspec.structs.replace(found, points=(*found.points, *curve.points))
    diagnosis = diagnose_points(found.points, flags, job.slo)
    finish(run, found, diagnosis=diagnosis)
    for line in (*knee_lines(knee), *verdict_lines(diagnosis)):
        job.say(f"   {line}")
    return Swept(sweep=found, diagnosis=diagnosis)


def _unheard(*_: object) -> None:
    """The points of the curve are seen in the chart."""


def _curve_offer(job: Job, rate: float) -> Offer:
    from knee.core.units import NS_PER_S
    from knee.measure.target import Offer

    return Offer(
        workload=job.workload,
        rate=rate,
        seed=job.seed,
        warmup_ns=20 * NS_PER_S,
        window_ns=120 * NS_PER_S,
        drain_ns=20 * NS_PER_S,
    )


def _point_line(phase: str, point: Point) -> str:
    from knee.core.units import format_duration
    from knee.report.points import percentile, verdict

    spent = f"{format_duration(point.spent_ns)} of virtual time"
    if point.max_concurrency is not None:
        what = {"light": "the unloaded latencies", "burst": "a bound on the capacity"}[phase]
        return f"{point.max_concurrency} in a closed loop, {spent}: {what}"
    waits = f"TTFT p95 {percentile(point.ttft_ms, 'p95')} ms, ITL p99 {percentile(point.itl_ms, 'p99')} ms"
    return f"{point.rate:6.2f} req/s, {spent}: {waits}: {verdict(point)} ({phase})"


def _moved(engine: EngineConfig, move: Move) -> EngineConfig:
    """The engine with the one flag moved."""
    import msgspec

    return msgspec.convert(
        {**msgspec.to_builtins(engine), move.flag: move.to}, type(engine), strict=False
    ).checked()


def _compare(names: tuple[str, str], first: Swept, second: Swept, slo: Slo) -> str:
    """Both curves in one chart, and the knees beside each other."""
    from knee.report.points import knee_chart

    sweeps = [
        (name, [point for point in swept.sweep.points if point.max_concurrency is None])
        for name, swept in zip(names, (first, second), strict=True)
    ]
    lines = []
    for name, swept in zip(names, (first, second), strict=True):
        knee = swept.sweep.knee
        assert knee is not None
        lines.append(f"{name}: knee {_interval(knee)} req/s")
    return "\n".join([knee_chart(sweeps, slo), "", *lines])


def _interval(knee: Knee) -> str:
    ends = [f"{end:.4g}" if end is not None else "?" for end in (knee.holds, knee.breaks)]
    return f"[{ends[0]}, {ends[1]}]"


def _write_page(path: Path, names: tuple[str, str], first: Swept, second: Swept, seed: int) -> Path:
    from knee.diagnose.text import verdict_lines
    from knee.report.page import Page, render_page

    knee = first.sweep.knee
    assert knee is not None
    page = Page(
        title=f"knee demo: {names[0]} → {names[1]}",
        sweeps=((names[0], first.sweep.points), (names[1], second.sweep.points)),
        slo=knee.slo,
        knee=second.sweep.knee,
        verdict_lines=(
            f"at {names[0]}:",
            *verdict_lines(first.diagnosis),
            f"at {names[1]}:",
            *verdict_lines(second.diagnosis),
        ),
        settings=(("workload", "1,000 tokens in, 200 out"), ("before", f"knee {_interval(knee)} req/s")),
        seed=str(seed),
    )
    path.write_text(render_page(page), encoding="utf-8")
    return path
