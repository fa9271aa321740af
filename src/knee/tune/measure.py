"""One trial: start, sweep, diagnose, propose; whatever goes wrong becomes part of the result."""

from pathlib import Path
from typing import Any

import msgspec

from knee.core.errors import KneeError, NoAnswer, TargetError
from knee.core.lock import lock_of_run
from knee.core.point import Point
from knee.core.run import create_run
from knee.core.slo import LATENCIES, Slo
from knee.core.units import NS_PER_S, format_duration, s_to_ns
from knee.diagnose.runs import diagnose_points
from knee.diagnose.text import evidence_text
from knee.diagnose.verdict import Diagnosis
from knee.measure.client.live import LiveTarget
from knee.measure.search.budget import Budget, Step
from knee.measure.search.steps import Search
from knee.measure.sweep import Recorder, Sweep, finish, keep_point, plan_of, search_knee
from knee.measure.target import Offer
from knee.tune.climb import pairs
from knee.tune.config import TuneConfig
from knee.tune.predict import predictor
from knee.tune.proposal import Place
from knee.tune.propose import propose, unloaded_moves
from knee.tune.server import Launcher, Running, Say, StartFailed
from knee.tune.trial import Cost, Result, Trial
from knee.workload.shapes import mean_of

MOST_PAIRS = 4
MOST_CLIENTS = 4096
OPERATING_REQUESTS = 300


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A trial to measure into the new run directory `run`, within `left_s` seconds of server time."""

    trial: Trial
    config: TuneConfig
    run: Path
    left_s: float
    say: Say


def run_trial(job: Job, launcher: Launcher) -> Result:
    """Start the server, find its knee, say what binds there and what to try next.

    Raises:
        KeyboardInterrupt: Ctrl-C; the server is gone and the finished points are kept.
        TargetError: no server can be started at all, or it cannot be stopped.
        InputError: the run cannot be written.
    """
    log = job.run.with_name(f"{job.run.name}-server.log")
    try:
        with launcher.server(job.trial.flags, log, job.say) as running:
            return _measured(job, running)
    except StartFailed as error:
        job.say(f"  cannot start: {error}")
        return Result(outcome="cannot start", cause=str(error))


def _measured(job: Job, running: Running) -> Result:
    trial, config, run, target = job.trial, job.config, job.run, running.target
    create_run(run, _plan(trial, config, running))
    if isinstance(target, LiveTarget):
        target.keep_in(run)
    spend = config.spend
    search = Search(
        config.workload,
        config.slo,
        seed=trial.seed,
        budget=Budget(precision=spend.precision, server_s=max(1.0, job.left_s), points=spend.points),
        clients=_clients(spend.clients, running),
        flags=dict(running.facts),
    )
    points: list[Point] = []

    def told(step: Step, point: Point) -> None:
        points.append(point)
        job.say(f"  {point_line(step, point)}")

    known = _known(trial, running)
    recorder = Recorder(make_point=running.make_point, run=run, told=told)
    try:
        found = search_knee(target, search, recorder)
    except TargetError as error:
        return msgspec.structs.replace(
            known, outcome="died", cause=str(error), server_s=_server_s(points, running)
        )
    found = _with_operating_point(job, running, found)
    known = msgspec.structs.replace(known, server_s=_server_s(found.points, running))
    return _concluded(job, running, found, search, known)


def _with_operating_point(job: Job, running: Running, found: Sweep) -> Sweep:
    """The sweep with a point at the rate that holds, where all of its own lie above it.

    Admission limits and the latencies at the knee are read off that point.
    """
    rate = found.knee.holds if found.knee is not None else None
    below = [
        p for p in found.points if p.max_concurrency is None and not p.invalid and rate and p.rate <= rate
    ]
    if not rate or below or found.ended != "complete":
        return found
    window_s = max(20.0, OPERATING_REQUESTS / rate)
    if 1.5 * window_s > job.left_s - _server_s(found.points, running):
        return found
    offer = Offer(
        workload=job.config.workload,
        rate=rate,
        seed=job.trial.seed,
        warmup_ns=s_to_ns(0.2 * window_s),
        window_ns=s_to_ns(window_s),
        drain_ns=s_to_ns(0.3 * window_s),
    )
    measured = running.target.measure(offer)
    point = running.make_point(measured, offer, job.config.slo)
    keep_point(job.run, len(found.points), point, measured)
    ended = "interrupted" if point.stopped == "interrupted" else found.ended
    job.say(f"  operating point: {rate:.4g} req/s, {point.ok} of {point.offered} ok")
    return msgspec.structs.replace(found, points=(*found.points, point), ended=ended)


def _concluded(job: Job, running: Running, found: Sweep, search: Search, known: Result) -> Result:
    """Close the run, and say what binds at its knee and what to try next."""
    trial, config, run = job.trial, job.config, job.run
    diagnosis = _diagnosed(found, running, config.slo)
    finish(run, found, diagnosis=diagnosis)
    if found.ended == "interrupted":
        raise KeyboardInterrupt
    if found.ended == "target lost":
        cause = running.cause()
        why = f"{found.why}; its log: {cause}" if cause else found.why
        return msgspec.structs.replace(known, outcome="died", cause=why)
    place = Place(flags=trial.flags, facts=running.facts, moves=config.moves)
    if found.knee is not None and found.knee.holds is None and found.knee.breaks == 0:
        cause = f"a single unloaded request breaks it: {found.knee.reason}"
        longer = unloaded_moves(place, mean_of(config.workload.prompt_tokens))
        return msgspec.structs.replace(known, outcome="infeasible", cause=cause, proposals=longer)
    predict = predictor(search, trial.flags) if trial.purpose != "confirm" else None
    return msgspec.structs.replace(
        known,
        knee=found.knee,
        limit=str(diagnosis.limit or "") if diagnosis else "",
        why=diagnosis.why if diagnosis else "the server shows no metrics",
        evidence=tuple(evidence_text(e) for e in diagnosis.evidence) if diagnosis else (),
        proposals=propose(place, diagnosis, predict),
        pairs=tuple(pairs(place, predict, MOST_PAIRS)) if config.explore else (),
        costs=_costs(run, config.slo),
    )


def _clients(least: int, running: Running) -> int:
    """Clients of the burst: twice what may run at once, else it would not show what a full batch serves."""
    cap = running.facts.get("max_num_seqs", "")
    return max(least, min(MOST_CLIENTS, 2 * int(cap))) if cap.isdecimal() else least


def _known(trial: Trial, running: Running) -> Result:
    return Result(
        outcome="measured",
        facts={**trial.flags, **running.facts},
        version=running.version,
        model=running.model,
        gpu=running.gpu,
        startup_s=running.startup_s,
    )


def _plan(trial: Trial, config: TuneConfig, running: Running) -> dict[str, Any]:
    plan = plan_of("tune", running.target, config.workload, config.slo, trial.seed, trial=trial.number)
    told = {**trial.flags, **running.facts}
    plan["target"] |= {"flags": told, "gpu": running.gpu}
    return plan


def _server_s(points: list[Point] | tuple[Point, ...], running: Running) -> float:
    return sum(point.spent_ns for point in points) / NS_PER_S + (running.startup_s or 0.0)


def _diagnosed(found: Sweep, running: Running, slo: Slo) -> Diagnosis | None:
    try:
        return diagnose_points(found.points, running.facts, slo)
    except NoAnswer:
        return None


def _costs(run: Path, slo: Slo) -> tuple[Cost, ...]:
    """What requests see at the knee: every latency objective, and the medians."""
    try:
        point = lock_of_run(run).at_knee
    except KneeError:
        return ()
    if point is None:
        return ()
    judged = {str(one.objective): one.value for one in point.judged}
    of_slo = [
        Cost(name=f"{o.metric} p{(o.quantile or 0) * 100:g}", value=judged.get(str(o)), objective=True)
        for o in slo.objectives
        if o.metric in LATENCIES
    ]
    medians = [Cost(name="ttft p50", value=point.ttft_ms.p50), Cost(name="itl p50", value=point.itl_ms.p50)]
    return (*of_slo, *medians)


def point_line(step: Step, point: Point) -> str:
    """A finished point in one line; a closed loop says nothing of what open-loop requests wait."""
    if point.max_concurrency is not None:
        took = format_duration(point.spent_ns)
        return f"{step.phase}: {point.max_concurrency} clients in a closed loop, took {took} ({step.why})"
    waits = ", ".join(
        f"{name} {'∞' if value is None else f'{value:.4g} ms'}"
        for name, value in (("TTFT p50", point.ttft_ms.p50), ("ITL p50", point.itl_ms.p50))
    )
    verdict = {True: ": holds", False: ": breaks", None: ""}[point.holds]
    said = f": invalid, {point.invalid[0]}" if point.invalid else verdict
    return f"{step.phase}: {point.rate:.4g} req/s, {point.ok} of {point.offered} ok, {waits}{said}"
