"""A command in a process group of its own, and its end: SIGTERM, then SIGKILL, then nothing is left."""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from knee.core.clock import RealClock
from knee.core.errors import UsageError

POLL_S = 0.1
HELD = (signal.SIGINT, signal.SIGTERM)
KILL_WAIT_S = 10.0


class Group(msgspec.Struct, frozen=True):
    """The group of a process that led it: its id, and when it began, so that a later one is not mistaken."""

    pid: int
    began: str


class Process:
    """A running command. Its output goes to a log; signals for it go to its whole group."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        """Start `command`.

        Raises:
            UsageError: there is no such program.
        """
        with log.open("ab") as out:
            try:
                self._process = subprocess.Popen(  # noqa: S603 - what the session's file says
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **environment},
                    start_new_session=True,  # Ctrl-C is ours to handle, and the group is there to be ended
                )
            except OSError as error:
                raise UsageError(
                    f"cannot run {command[0]}: {error.strerror}", "give the whole path of the program"
                ) from error
        self.group = Group(self._process.pid, began(self._process.pid))

    @property
    def exit_code(self) -> int | None:
        """Its exit code, None while it runs."""
        return self._process.poll()

    def stop(self, within_s: float) -> None:
        """End the whole group: see `stop_group`."""
        stop_group(self.group.pid, within_s, self._process)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait until the block is over, where they raise KeyboardInterrupt.

    A process that was started and is not yet known to anybody would otherwise be left behind. The child
    starts with the usual handling of both. Only the main thread receives signals; elsewhere this is nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.signal(number, lambda n, _: came.append(n)) for number in HELD}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt


def stop_group(pid: int, within_s: float, leader: "subprocess.Popen[bytes] | None" = None) -> None:
    """SIGTERM to the group that `pid` led; SIGKILL to what is left after `within_s`; wait until all is gone.

    An interrupt while waiting does not leave anything behind: it goes straight to SIGKILL.
    """
    clock = RealClock()
    try:
        _signal(pid, signal.SIGTERM)
        gone = _wait(pid, within_s, clock, leader)
    except KeyboardInterrupt:
        _signal(pid, signal.SIGKILL)
        _wait(pid, KILL_WAIT_S, clock, leader)
        raise
    if not gone:
        _signal(pid, signal.SIGKILL)
        _wait(pid, KILL_WAIT_S, clock, leader)


def stop_left_behind(group: Group, within_s: float) -> bool:
    """End what a killed session left running; whether there was anything.

    Only where the process with that id began when it was written down: ids are used again.
    """
    if not group.began or began(group.pid) != group.began:
        return False
    stop_group(group.pid, within_s)
    return True


def began(pid: int) -> str:
    """When the process began, in the system's own measure; "" where there is none or it cannot be told."""
    stat = _stat(pid)
    return stat[19] if len(stat) > 19 else ""


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on (proc(5): the name before it may hold anything)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def members(pid: int) -> list[int]:
    """The live processes of the group; those that ended and were not yet collected do not count."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        stat = _stat(int(entry.name))
        if len(stat) > 2 and stat[2] == str(pid) and stat[0] not in "ZX":
            found.append(int(entry.name))
    return found


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):  # macOS: EPERM where only zombies are left
        return


def _wait(pid: int, within_s: float, clock: RealClock, leader: "subprocess.Popen[bytes] | None") -> bool:
    until_ns = clock.monotonic_ns() + round(within_s * 1e9)
    while _alive(pid, leader):
        if clock.monotonic_ns() >= until_ns:
            return False
        clock.sleep(POLL_S)
    return True


def _alive(pid: int, leader: "subprocess.Popen[bytes] | None") -> bool:
    if leader is not None and leader.poll() is None:
        return True
    if Path("/proc/self/stat").is_file():
        return bool(members(pid))
    try:
        os.killpg(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True
