"""Waiting for a server: by phase, with its log shown, and with the log's cause where it fails."""

import re
from pathlib import Path

from knee.core.clock import RealClock
from knee.core.errors import InputError, TargetError
from knee.core.units import NS_PER_S, format_duration
from knee.fit.log import read_log
from knee.fit.startup import StartupReport
from knee.http1.client import fetch
from knee.http1.failure import HttpError
from knee.tune.process import Process
from knee.tune.server import Say, StartFailed

POLL_S = 0.5
SHOW_EVERY_NS = 5 * NS_PER_S
WIDEST = 160
_BAD = re.compile(
    r"\b(?:\w+(?:Error|Exception)\b.*|out of memory.*|Killed\b.*|Segmentation fault.*)", re.IGNORECASE
)
_TAIL_BYTES = 256 << 10


def check_free(url: str) -> None:
    """Make sure that nothing listens where a server is to listen.

    Raises:
        TargetError: something does.
    """
    try:
        fetch(url, timeout_s=2.0)
    except HttpError as error:
        if error.cause == "refused":
            return
        if error.cause in ("unknown_host", "unreachable"):
            raise
    raise TargetError(f"something already listens at {url}", "end it, or give the server another port")


def answers(ready: str) -> bool:
    """Whether the server answers 200 there."""
    try:
        return fetch(ready, timeout_s=2.0).status == 200
    except HttpError:
        return False


def wait_ready(
    process: Process, ready: str, log: Path, *, within_s: float, say: Say, detached: bool
) -> float:
    """Wait until the server answers; the seconds that it took. What the log says meanwhile is shown.

    `detached`: the command may end well before the server is ready.

    Raises:
        StartFailed: the process ended, or the time is over.
    """
    clock = RealClock()
    start_ns = clock.monotonic_ns()
    shown_ns, last = start_ns, ""
    while True:
        code = process.exit_code
        if code is not None and not (detached and code == 0):
            raise StartFailed(failure_of(log, code), remedy_of(log))
        if answers(ready) and process.exit_code in (None, 0):
            return (clock.monotonic_ns() - start_ns) / NS_PER_S
        now_ns = clock.monotonic_ns()
        if now_ns - start_ns > within_s * NS_PER_S:
            waited = format_duration(now_ns - start_ns)
            line = last_line(log)
            raise StartFailed(
                f"not ready after {waited}" + (f"; its last line: {line}" if line else ""),
                "is `ready` the right address? else give it more time: server.ready_within",
            )
        if now_ns - shown_ns > SHOW_EVERY_NS:
            shown_ns, line = now_ns, last_line(log)
            if line and line != last:
                say(f"  {_phase(log)}{line}")
            last = line


def report_of(log: Path) -> StartupReport | None:
    """What the log says of the start; None where it is no log of vLLM."""
    try:
        with log.open("rb") as stream:
            return read_log(stream, str(log))
    except (InputError, OSError):
        return None


def failure_of(log: Path, exit_code: int | None) -> str:
    """Why the server did not start: the log's own cause, else its last error, else its last line."""
    report = report_of(log)
    if report is not None and report.failure is not None:
        return report.failure.cause
    return death_of(log) or last_line(log) or f"it ended with exit code {exit_code} and wrote nothing"


def remedy_of(log: Path) -> str:
    """What the log's cause suggests, "" where it is not known."""
    report = report_of(log)
    return report.failure.remedy if report is not None and report.failure is not None else ""


def death_of(log: Path) -> str:
    """The first error in the end of the log, "" where there is none."""
    for line in _tail(log):
        found = _BAD.search(line)
        if found is not None:
            return found.group().strip()[:WIDEST]
    return ""


def last_line(log: Path) -> str:
    """The log's last line that says something."""
    lines = [line.strip() for line in _tail(log) if line.strip()]
    return lines[-1][:WIDEST] if lines else ""


def _phase(log: Path) -> str:
    report = report_of(log)
    return f"[{report.phases[-1].name}] " if report is not None and report.phases else ""


def _tail(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
