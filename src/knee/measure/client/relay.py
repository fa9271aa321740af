"""What stands between us and a worker on another machine: it starts the worker there and carries messages."""

import contextlib
import os
import subprocess
import sys
import tempfile
from typing import IO

from knee import __version__
from knee.core.clock import RealClock
from knee.measure.client.line import END_S, MODULE, WorkerLost
from knee.measure.client.worker import LENGTH, length_of

TAIL_BYTES = 400


class Relay:
    """Runs one worker process at a time on its machine. `hear` blocks in a thread of its own."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None

    def version(self) -> str:
        """The version of knee on this machine."""
        return __version__

    def clock_ns(self) -> int:
        """This machine's monotonic clock."""
        return RealClock.monotonic_ns()

    def start(self) -> None:
        """Start a worker; it waits for its job."""
        self.end()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the worker
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-m", MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    def tell(self, message: bytes) -> None:
        """Hand the worker a whole message; one that is gone does not mind."""
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(message)
            self._process.stdin.flush()

    def hear(self) -> bytes:
        """The worker's next message, without its length.

        Raises:
            WorkerLost: there is none; with the end of what the worker wrote for people.
        """
        return self._read(length_of(self._read(LENGTH.size)))

    def end(self) -> None:
        """See that the worker is gone; one whose pipe is closed ends by itself."""
        process, said = self._process, self._said
        self._process = self._said = None
        if process is None or process.stdin is None or process.stdout is None or said is None:
            return
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        said.close()

    def _read(self, size: int) -> bytes:
        process, said = self._process, self._said
        assert process is not None
        assert process.stdout is not None
        data = process.stdout.read(size)
        if len(data) == size:
            return data
        with contextlib.suppress(OSError, ValueError):
            if said is not None:
                said.seek(max(0, said.seek(0, os.SEEK_END) - TAIL_BYTES))
                raise WorkerLost(" ".join(said.read().decode("utf-8", "replace").split()))
        raise WorkerLost
