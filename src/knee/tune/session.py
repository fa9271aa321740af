"""A session in its folder: what was journalled is taken as it is, the rest is measured."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from knee.core.clock import Clock
from knee.core.errors import InputError, UsageError
from knee.core.run import MANIFEST, PLAN, create_run, open_run, write_atomically
from knee.core.units import parse_duration_ns
from knee.tune.check import check_flags, check_moves
from knee.tune.config import SimulatedServer, TuneConfig, public
from knee.tune.journal import Began, Ended, Journal, Serving, Stopped
from knee.tune.launch import launcher_of
from knee.tune.measure import Job, run_trial
from knee.tune.outcome import Outcome, outcome_of
from knee.tune.process import Group, stop_left_behind
from knee.tune.server import Launcher, Say
from knee.tune.text import decision_lines, trial_lines
from knee.tune.trial import Result
from knee.tune.tuning import Tuning

SHARES = 3
"""No trial but the last takes more than this part of the server time that is left: a start, a move and a
confirmation fit into any budget."""

MakeLauncher = Callable[[Callable[[Group], None]], Launcher]


def new_session(folder: Path, config: TuneConfig) -> None:
    """Make the folder of a session.

    Raises:
        InputError: it exists and is not empty, or cannot be written.
    """
    create_run(folder, {"command": "tune", "config": msgspec.to_builtins(public(config))})


def run_session(
    folder: Path, config: TuneConfig, clock: Clock, say: Say, launch: MakeLauncher | None = None
) -> Outcome:
    """Tune until there is a reason to stop. What the folder's journal holds is not measured again.

    Raises:
        KeyboardInterrupt: Ctrl-C; no server is left, and the session can be resumed.
        InputError: the folder is no session, belongs to another configuration, or cannot be written.
        TargetError: no server can be started or stopped.
    """
    _check_same(folder, config)
    journal = Journal(folder)
    tuning = Tuning(config)
    replayed = _replay(journal, tuning, folder, config, say)
    serving: list[int] = []

    def started(group: Group) -> None:
        journal.write(Serving(at_ns=clock.wall_ns(), trial=serving[-1], group=group))

    launcher = launch(started) if launch else launcher_of(config.server, config.client, started)
    while (trial := tuning.next_trial()) is not None:
        serving.append(trial.number)
        for line in trial_lines(trial):
            say(line)
        journal.write(Began(at_ns=clock.wall_ns(), trial=trial))
        run = folder / f"trial-{trial.number}"
        left_s = tuning.left_s if trial.purpose == "confirm" else tuning.left_s / SHARES
        result = _result(Job(trial=trial, config=config, run=run, left_s=left_s, say=say), launcher)
        decision = tuning.add(trial, result)
        journal.write(Ended(at_ns=clock.wall_ns(), trial=trial.number, result=result, decision=decision))
        for line in decision_lines(result, decision):
            say(line)
        if trial.number == 1:
            _check_version(config, result)
    assert tuning.stop is not None
    if not replayed:
        journal.write(Stopped(at_ns=clock.wall_ns(), stop=tuning.stop))
    outcome = outcome_of(folder, config, tuning)
    write_atomically(folder / MANIFEST, {"ended": "complete", "outcome": outcome})
    return outcome


def _result(job: Job, launcher: Launcher) -> Result:
    """The result of a trial; a disk that is full is one clear line."""
    try:
        return run_trial(job, launcher)
    except OSError as error:
        raise InputError(
            f"trial {job.trial.number} cannot be written: {error.strerror or error}",
            f"nothing before is lost; make room, then: knee tune … --resume {job.run.parent}",
        ) from error


def _replay(journal: Journal, tuning: Tuning, folder: Path, config: TuneConfig, say: Say) -> bool:
    """Take what is journalled; whether the session was already over.

    Raises:
        InputError: the journal does not follow from the configuration.
    """
    kept = journal.read()
    for entry in kept.entries:
        trial = tuning.next_trial()
        if trial is None or (trial.number, trial.flags) != (entry.trial.number, entry.trial.flags):
            raise InputError(
                f"{journal.path}: trial {entry.trial.number} does not follow from what stands before it",
                "it was written by another version of knee; start a new session",
            )
        tuning.add(trial, entry.result)
    if kept.entries:
        say(f"resumed: {len(kept.entries)} trials are taken from {journal.path}")
    if kept.left is not None and not isinstance(config.server, SimulatedServer):
        within_s = parse_duration_ns(config.server.stop_within) / 1e9
        if stop_left_behind(kept.left, within_s):
            say(f"stopped the server that the killed session left (process {kept.left.pid})")
    if kept.cut is not None:
        _set_aside(folder / f"trial-{kept.cut.number}")
    return kept.stop is not None and kept.cut is None


def _set_aside(run: Path) -> None:
    """Keep what a killed trial measured, under another name."""
    if run.exists():
        number = 1
        while (aside := run.with_name(f"{run.name}-cut-{number}")).exists():
            number += 1
        run.rename(aside)


def _check_same(folder: Path, config: TuneConfig) -> None:
    plan = open_run(folder)
    if plan.get("command") != "tune":
        raise InputError(f"{folder} is the run of another command", "give the folder of a `knee tune`")
    was, now = _comparable(plan.get("config")), _comparable(msgspec.to_builtins(public(config)))
    differs = sorted(name for name in {**was, **now} if was.get(name) != now.get(name))
    if differs:
        raise InputError(
            f"{folder / PLAN} was begun with another {', '.join(differs)}",
            "resume with the same knee.toml (its budget may change), or start a new session",
        )


def _comparable(config: Any) -> dict[str, Any]:
    """What must not change between a session and its resumption."""
    raw = msgspec.json.decode(msgspec.json.encode(config)) if isinstance(config, dict) else {}
    return {name: value for name, value in raw.items() if name not in ("spend", "explore")}


def _check_version(config: TuneConfig, result: Result) -> None:
    """Once the server has told its version: does that version take the flags?

    Raises:
        UsageError: it does not.
    """
    if result.version and result.version != config.server.version:
        try:
            check_flags(config.flags, result.version)
            check_moves(config.moves, config.flags, result.version)
        except UsageError as error:
            raise UsageError(f"knee.toml: {error.what}", error.hint) from error
