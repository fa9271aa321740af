"""`knee tune`: move one flag at a time until there is proof that it is done."""

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from knee.cli.app import JsonOption, log, show
from knee.core.errors import EXIT_INTERRUPTED, EXIT_NEGATIVE, EXIT_OK, InputError, TargetError, UsageError

if TYPE_CHECKING:
    from types import FrameType

    from knee.tune.outcome import Outcome


def tune(
    config: Annotated[
        Path | None, typer.Argument(help="The session: server, load, SLO, flags, budget (TOML).")
    ] = None,
    *,
    out: Annotated[Path | None, typer.Option(help="Folder of the session; runs/tune-N if left out.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with the session in this folder; nothing is repeated.")
    ] = None,
    explore: Annotated[
        bool, typer.Option("--explore", help="At the end, also try pairs of flags that interact.")
    ] = False,
    like: Annotated[
        Path | None,
        typer.Option(help="Only propose, on the simulator calibrated to this run; starts no server."),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Start the server, find the knee, move the flag that binds, measure again; stop for a stated reason.

    Every step is in the session's journal before the next one begins. Exit code 0 where the session ended
    with a knee, 1 where the SLO holds at no rate, 4 where the server cannot start, 130 after Ctrl-C; the
    session can then be resumed.
    """
    import msgspec

    from knee.core.clock import RealClock
    from knee.core.run import new_folder
    from knee.tune.read_config import read_config
    from knee.tune.session import new_session, run_session
    from knee.tune.text import outcome_lines

    if like is not None:
        return _propose(like, config, as_json)
    if config is None:
        raise UsageError("no session to run", "knee tune knee.toml, or --like RUN for a proposal only")
    wanted = msgspec.structs.replace(read_config(config), explore=explore)
    folder = resume or out or new_folder(Path("runs"), "tune")
    if resume is None:
        new_session(folder, wanted)
    log(f"session: {folder}")
    previous = signal.signal(signal.SIGTERM, _interrupt)
    try:
        outcome = run_session(folder, wanted, RealClock(), log)
    except KeyboardInterrupt:
        log(f"knee: interrupted; go on with: knee tune {config} --resume {folder}")
        return EXIT_INTERRUPTED
    except InputError as error:
        raise InputError(error.what, error.hint.replace("knee tune …", f"knee tune {config}")) from error
    finally:
        signal.signal(signal.SIGTERM, previous)
    show(outcome, as_json, lambda: "\n".join(outcome_lines(outcome)))
    return _exit_code(outcome)


def _propose(run: Path, config: Path | None, as_json: bool) -> int:
    """What the simulator calibrated to `run` proposes; SLO and bounds are those of `config` where given."""
    from knee.measure.model.calibrate import calibrate
    from knee.measure.recorded import read_recorded
    from knee.tune.like import MOVES, propose_like
    from knee.tune.read_config import read_config
    from knee.tune.text import proposed_lines

    recorded = read_recorded(run)
    session = read_config(config) if config is not None else None
    slo = session.slo if session is not None else recorded.slo
    if slo is None:
        raise UsageError(f"{run} was measured without an SLO", "give a knee.toml that states one")
    found = calibrate([recorded], {})
    proposed = propose_like(found, slo, dict(session.moves) if session is not None else MOVES)
    show(proposed, as_json, lambda: "\n".join(proposed_lines(proposed)))
    return EXIT_OK


def _interrupt(number: int, frame: "FrameType | None") -> None:
    """SIGTERM ends a session as Ctrl-C does: with its server stopped."""
    del number, frame
    raise KeyboardInterrupt


def _exit_code(outcome: "Outcome") -> int:
    if outcome.stop.reason == "server cannot start":
        return TargetError.exit_code
    return EXIT_OK if outcome.after is not None and outcome.after.holds is not None else EXIT_NEGATIVE
