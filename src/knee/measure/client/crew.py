"""Several worker processes that share one schedule, as one load. Merged books are the sum of theirs."""

import asyncio
import secrets
import sys
from collections.abc import Callable, Iterable

import msgspec
import numpy as np

from knee.core.clock import Clock
from knee.core.errors import KneeError
from knee.core.requests import NEVER, Ints, Observed, RequestRecord
from knee.core.units import NS_PER_MS, NS_PER_S
from knee.measure.client.books import COLUMNS, Books
from knee.measure.client.health import notes_of, prompt_error
from knee.measure.client.ready import Part
from knee.measure.client.worker import LENGTH, Delta, Job, Order, pack, unpack
from knee.measure.target import ClientHealth, Offer, Stop

MOST_WORKERS = 64
START_S = 60.0
"""How long workers may take to be ready."""
HEAD_START_NS = 100 * NS_PER_MS
END_S = 10.0
"""How long workers may take to tell their last."""


async def start_crew(job: Job, workers: int, clock: Clock) -> "Crew":
    """Start `workers` processes and give each its part; they are ready when this returns.

    Raises:
        KneeError: a worker did not come up.
    """
    job = msgspec.structs.replace(job, shared_entropy=secrets.randbits(63))
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "knee.measure.client.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 24,
        )
        for _ in range(workers)
    ]
    crew = Crew(job.offer, processes, clock)
    try:
        async with asyncio.timeout(START_S):
            for index, process in enumerate(processes):
                _send(process, pack(msgspec.structs.replace(job, part=Part(index, workers))))
            for process in processes:
                assert process.stdout is not None
                await process.stdout.readexactly(LENGTH.size)
    except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
        await crew.end()
        raise KneeError("a load worker did not start", "look at what it wrote above") from error
    crew.start_ns = clock.monotonic_ns() + HEAD_START_NS
    return crew


class Crew:
    """The workers of one point. Has the shape that `measure.running` asks of a load."""

    def __init__(self, offer: Offer, processes: list[asyncio.subprocess.Process], clock: Clock) -> None:
        self._offer = offer
        self._processes = processes
        self._clock = clock
        self._books = Books()
        self._open: list[Ints] = [np.empty((0, len(COLUMNS)), dtype=np.int64)] * len(processes)
        self._in_flight = [0] * len(processes)
        self._ended = [False] * len(processes)
        self._records: list[RequestRecord] = []
        self._health: list[ClientHealth] = []
        self._told_to_stop = False
        self.stopped: Stop = ""
        self.start_ns = 0
        self.end_of_load_ns = NEVER

    @property
    def in_flight(self) -> int:
        """Requests under way in all workers, as of their last word."""
        return sum(self._in_flight)

    async def run(self) -> None:
        """Let all workers begin at one instant, and gather what they tell until each has told its last.

        Raises:
            KneeError: a worker ended without its last word.
        """
        for process in self._processes:
            _send(process, pack(Order(self.start_ns)))
        limit_s = (self._offer.warmup_ns + self._offer.window_ns + self._offer.drain_ns) / NS_PER_S + START_S
        try:
            async with asyncio.timeout(limit_s):
                await asyncio.gather(*(self._listen(index) for index in range(len(self._processes))))
        except (asyncio.IncompleteReadError, TimeoutError) as error:
            raise KneeError("a load worker died", "look at what it wrote above; is memory short?") from error
        finally:
            self.end_of_load_ns = max(self.end_of_load_ns, 0)
            await self.end()

    def stop(self, why: Stop) -> None:
        """Tell all workers to stop, once."""
        if self._told_to_stop:
            return
        self._told_to_stop = True
        self.stopped = why
        for process in self._processes:
            _send(process, pack(Order(0, why)))

    def freeze(self) -> Callable[[], Observed]:
        """The merged books, as of each worker's last word; see `Books.freeze`."""
        now_ns = self._clock.monotonic_ns() - self.start_ns
        end_ns = now_ns if self.end_of_load_ns == NEVER else self.end_of_load_ns
        return self._books.freeze(end_ns, np.concatenate(self._open))

    def take_finished(self) -> list[RequestRecord]:
        """Requests that finished since this was last called."""
        taken, self._records = self._records, []
        return taken

    def health(self) -> ClientHealth:
        """The worst of all workers."""
        tokens = sum(self._books.prompt_tokens)
        return ClientHealth(
            loop_lag_p99_ms=_worst(health.loop_lag_p99_ms for health in self._health),
            dispatch_lag_p99_ms=_worst(health.dispatch_lag_p99_ms for health in self._health),
            cpu_share=_worst(health.cpu_share for health in self._health),
            cached_share=self._books.cached_tokens / tokens if tokens else None,
            prompt_error_share=prompt_error(self._books),
            workers=len(self._processes),
            notes=notes_of(self._books),
        )

    async def end(self) -> None:
        """See that every worker process is gone."""
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
        try:
            async with asyncio.timeout(END_S):
                await asyncio.gather(*(process.wait() for process in self._processes))
        except TimeoutError:
            for process in self._processes:
                if process.returncode is None:
                    process.kill()
            await asyncio.gather(*(process.wait() for process in self._processes))

    async def _listen(self, index: int) -> None:
        reader = self._processes[index].stdout
        assert reader is not None
        while True:
            delta: Delta = await unpack(reader, Delta)
            self._merge(index, delta)
            if delta.final:
                return

    def _merge(self, index: int, delta: Delta) -> None:
        books = self._books
        books.add_rows(_rows(delta.closed, len(COLUMNS)))
        books.add_gaps(_rows(delta.gaps, 3), _rows(delta.chunk_ns, 1)[:, 0])
        books.causes.update(delta.causes)
        books.notes.update(delta.notes)
        books.retry_after.update(delta.retry_after)
        books.cached_tokens += delta.cached_tokens
        books.checked_prompt_tokens += delta.checked_prompt_tokens
        books.off_prompt_tokens += delta.off_prompt_tokens
        for cause, words in delta.said.items():
            books.said.setdefault(cause, words)
        self._open[index] = _rows(delta.open, len(COLUMNS))
        self._in_flight[index] = delta.in_flight
        self._records += delta.records
        self._ended[index] = delta.measured_ended or delta.final
        if delta.health is not None:
            self._health.append(delta.health)
            self.end_of_load_ns = max(self.end_of_load_ns, delta.end_of_load_ns)
        if delta.stopped and not self.stopped:
            self.stop(delta.stopped)
        elif all(self._ended):
            self.stop(self.stopped)


def _send(process: asyncio.subprocess.Process, data: bytes) -> None:
    if process.stdin is not None and not process.stdin.is_closing():
        process.stdin.write(data)


def _rows(data: bytes, width: int) -> Ints:
    return np.frombuffer(data, dtype=np.int64).reshape(-1, width)


def _worst(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
