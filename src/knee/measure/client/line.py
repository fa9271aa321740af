"""The way to a load worker and back, and the workers that are processes of this machine."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from knee.measure.client.worker import read_message

END_S = 10.0
"""How long a worker may take to be gone once its books are told."""
MODULE = "knee.measure.client.worker"


class WorkerLost(Exception):  # noqa: N818 - it says what happened
    """A worker is gone before its last word; the text holds what it wrote, where that was kept."""


class Line(Protocol):
    """A worker at the other end. Messages are as `knee.measure.client.worker` speaks them.

    `ahead_ns` is its monotonic clock less ours, right to within `unsure_ns`; `head_start_ns` is how long an
    order may be on its way; `place` names the machine, "" for this one.
    """

    ahead_ns: int
    unsure_ns: int
    head_start_ns: int
    place: str

    def send(self, message: bytes) -> None:
        """Send a whole message, its length in front; to a worker that is gone it is lost."""
        ...

    async def receive(self) -> bytes:
        """The next message, without its length.

        Raises:
            WorkerLost: there will be none.
        """
        ...

    async def end(self) -> None:
        """See that the worker is gone."""
        ...


Hire = Callable[[int], Awaitable[Sequence[Line]]]
"""Starts that many workers, each of which waits for its job."""


async def hire_processes(count: int) -> Sequence[Line]:
    """Workers as processes of this machine."""
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            MODULE,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 24,
        )
        for _ in range(count)
    ]
    return [PipeLine(process) for process in processes]


class PipeLine:
    """A worker of this machine, over its pipes; what it has to say to people goes to our stderr."""

    ahead_ns = 0
    unsure_ns = 0
    head_start_ns = 100_000_000
    place = ""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    def send(self, message: bytes) -> None:
        """As `Line.send`."""
        stdin = self.process.stdin
        if stdin is not None and not stdin.is_closing():
            stdin.write(message)

    async def receive(self) -> bytes:
        """As `Line.receive`."""
        assert self.process.stdout is not None
        try:
            return await read_message(self.process.stdout)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise WorkerLost from error

    async def end(self) -> None:
        """As `Line.end`."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            async with asyncio.timeout(END_S):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
