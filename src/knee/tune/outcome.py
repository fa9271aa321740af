"""What a session amounts to: the flags to use, both knees, the front, the limits, the lock."""

import math
import shlex
from pathlib import Path

import msgspec

from knee.catalog.flags import flag, flag_status
from knee.core.errors import InputError, KneeError
from knee.core.lock import lock_of_run, write_lock
from knee.core.point import Knee, Point
from knee.core.run import POINTS, read_lines
from knee.policy.admission import Limits
from knee.policy.limits import limits_from_knee
from knee.tune.config import Flags, SimulatedServer, TuneConfig
from knee.tune.launch import plan_of
from knee.tune.stopping import pareto
from knee.tune.trial import Cost, Entry, Result, Stop
from knee.tune.tuning import Tuning

LOCK = "knee.lock"


class FrontPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A measured set of flags that no other one beats in knee and latencies at the knee."""

    trial: int
    flags: Flags
    knee: float
    costs: tuple[Cost, ...]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The answer.

    `limits` is the gateway's admission limit, just above the knee; `queue_flags` the engine's own limits for
    versions that have them; `command` starts the server with `flags` ("" for a simulated one).
    """

    stop: Stop
    flags: Flags
    trial: int
    before: Knee | None
    after: Knee | None
    front: tuple[FrontPoint, ...]
    entries: tuple[Entry, ...]
    server_s: float
    limits: Limits | None = None
    queue_flags: Flags = {}
    command: str = ""
    lock: str = ""
    notes: tuple[str, ...] = ()

    @property
    def gain(self) -> float | None:
        """The factor on the knee; None where one of the two is missing."""
        ends = [knee.estimate or knee.holds if knee else None for knee in (self.before, self.after)]
        return ends[1] / ends[0] if ends[0] and ends[1] else None


def outcome_of(folder: Path, config: TuneConfig, tuning: Tuning) -> Outcome:
    """The answer of a session that is over; `knee.lock` is written where there is a knee.

    Raises:
        InputError: the lock cannot be written.
    """
    assert tuning.stop is not None
    best = tuning.best or tuning.entries[0]
    notes: list[str] = []
    points = list(read_lines(folder / f"trial-{best.trial.number}" / POINTS, Point))
    limits = _limits(best.result, points, notes)
    return Outcome(
        stop=tuning.stop,
        flags=best.trial.flags,
        trial=best.trial.number,
        before=tuning.entries[0].result.knee,
        after=best.result.knee,
        front=tuple(
            FrontPoint(trial=e.trial.number, flags=e.trial.flags, knee=e.result.rate, costs=e.result.costs)
            for e in pareto(tuning.entries)
        ),
        entries=tuple(tuning.entries),
        server_s=tuning.spent_s,
        limits=limits,
        queue_flags=queue_flags(limits, best.result, points) if limits else {},
        command=_command(config, best.trial.flags),
        lock=_lock(folder, best, notes),
        notes=tuple(notes),
    )


def queue_flags(limits: Limits, result: Result, points: list[Point]) -> Flags:
    """The engine's own queue limits that let in what the gateway's would, where the version has them.

    `max_num_queued_reqs` counts waiting and running requests; `max_num_queued_tokens` prompt tokens whose
    prefill is not over (vLLM 0.29.0, vllm/config/scheduler.py): those of the queue, and by Little's law those
    of the requests that wait for their first token at the knee.
    """
    near = [p for p in points if p.max_concurrency is None and not p.invalid and p.ttft_ms.mean_finite]
    flags = {"max_num_queued_reqs": str(limits.max_in_flight + limits.max_queue)}
    if near:
        point = min(near, key=lambda p: abs(p.rate - result.rate))
        prefilling = result.rate * (point.ttft_ms.mean_finite or 0.0) / 1000
        tokens = (limits.max_queue + prefilling + 1) * point.prompt_tokens_mean
        flags["max_num_queued_tokens"] = str(max(1, math.ceil(tokens)))
    if not result.version:
        return {}
    known = {name: flag(name) for name in flags}
    return {
        name: value
        for name, value in flags.items()
        if (found := known[name]) is not None and flag_status(found, result.version) == "available"
    }


def _limits(result: Result, points: list[Point], notes: list[str]) -> Limits | None:
    if result.knee is None or result.knee.holds is None:
        return None
    try:
        return limits_from_knee(result.knee, points)
    except InputError as error:
        notes.append(f"no admission limit: {error}")
        return None


def _command(config: TuneConfig, flags: Flags) -> str:
    if isinstance(config.server, SimulatedServer):
        return ""
    return shlex.join(plan_of(config.server, flags).start)


def _lock(folder: Path, best: Entry, notes: list[str]) -> str:
    """Write the lock of the trial whose flags are kept; its path, "" where it found no knee."""
    if best.result.rate <= 0:
        return ""
    try:
        lock = lock_of_run(folder / f"trial-{best.trial.number}")
    except KneeError as error:
        notes.append(f"no {LOCK}: {error}")
        return ""
    path = folder / LOCK
    write_lock(
        path,
        msgspec.structs.replace(lock, flags=best.trial.flags, startup_s=best.result.startup_s),
    )
    return str(path)
