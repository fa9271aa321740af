"""The startup probe that follows from a start-up log."""

from pathlib import Path

import msgspec

from knee.core.errors import InputError, NoAnswer
from knee.deploy.commented import Because, document
from knee.deploy.sizing import startup_budget
from knee.fit.log import read_log
from knee.fit.startup import Phase


class Startup(msgspec.Struct, frozen=True, kw_only=True):
    """A measured start in seconds, and the probe that allows two to three times as much.

    `flags` are the non-default ones as the log shows them.
    """

    version: str
    model: str
    flags: dict[str, str]
    total_s: float
    phases: tuple[Phase, ...]
    period_s: int
    failure_threshold: int
    allowed_s: int
    why: str
    notes: tuple[str, ...]


def read_startup(path: Path) -> Startup:
    """The start that the log in `path` tells of.

    Raises:
        InputError: no log of vLLM.
        NoAnswer: the start failed, or its end is not in the log, so its length is not known.
    """
    try:
        with path.open("rb") as stream:
            report = read_log(stream, str(path))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", "give the server's log") from error
    if report.status == "failed" and report.failure is not None:
        raise NoAnswer(f"the server in {path} did not start: {report.failure.cause}", "see knee fit")
    total = report.seconds("total")
    if report.status != "ready" or total is None:
        raise NoAnswer(
            f"{path} does not tell how long the start took",
            "keep the log until the server listens, with vLLM's time stamps",
        )
    allowed, period, failures, _ = startup_budget(total, path.name)
    return Startup(
        version=report.version,
        model=report.model,
        flags=report.flags,
        total_s=total,
        phases=tuple(phase for phase in report.phases if phase.name != "total"),
        period_s=period.value,
        failure_threshold=failures.value,
        allowed_s=allowed,
        why=failures.why,
        notes=report.notes,
    )


def startup_text(startup: Startup) -> str:
    """Phases, the whole, and the probe as YAML."""
    probe = {
        "startupProbe": {
            "httpGet": {"path": "/health", "port": "http"},
            "periodSeconds": startup.period_s,
            "timeoutSeconds": 5,
            "failureThreshold": Because(startup.failure_threshold, startup.why),
        }
    }
    rows = [(phase.name, phase.seconds) for phase in startup.phases] + [("total", startup.total_s)]
    lines = [f"{name:<14}{seconds:>9.1f} s" for name, seconds in rows]
    return "\n".join([*lines, "", document(probe).removeprefix("---\n").rstrip()])
