"""A simulated server in a process of its own, for as long as a block lasts.

The child reads its configuration from its standard input and ends when that closes, so it never outlives us.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from knee.core.errors import KneeError, TargetError
from knee.mock.config import MockConfig

END_S = 10.0


class Start(msgspec.Struct, frozen=True):
    """What the child is told, as one JSON line."""

    config: MockConfig
    host: str
    port: int


class Opened(msgspec.Struct, frozen=True):
    """What the child says when its port is open, as one JSON line; `error` where it cannot be opened."""

    url: str = ""
    error: str = ""


class Child:
    """The child process. `url` is where it serves."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self.url = ""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Its exit code, None while it runs."""
        return self._process.poll()

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.send_signal(signal.SIGTERM)

    def join(self, seconds: float = END_S) -> bool:
        """Wait until it has ended; whether it has."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def await_port(self) -> None:
        """Wait until the child has opened its port."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        opened = msgspec.json.decode(line, type=Opened) if line else Opened(error="it ended at once")
        if opened.error:
            raise TargetError(f"the simulated server did not start: {opened.error}")
        self.url = opened.url

    def close(self) -> None:
        """End it, by closing its standard input and then, if need be, by force."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        if not self.join():
            self._process.kill()
        self._process.stdout.close()
        if not self.join():
            raise KneeError(f"the simulated server (process {self.pid}) does not end")


@contextmanager
def mock_process(
    config: MockConfig | None = None, host: str = "127.0.0.1", port: int = 0, log: Path | None = None
) -> Iterator[Child]:
    """A server in its own process while the block lasts; it is open when the block begins.

    `log` is where its log goes, nowhere without it.

    Raises:
        TargetError: it did not start.
    """
    start = msgspec.json.encode(Start((config or MockConfig()).checked(), host, port)) + b"\n"
    out = log.open("ab") if log is not None else None
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "knee.mock"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=out or subprocess.DEVNULL,
        )
    finally:
        if out is not None:
            out.close()
    child = Child(process)
    try:
        assert process.stdin is not None
        process.stdin.write(start)
        process.stdin.flush()
        child.await_port()
        yield child
    finally:
        child.close()
