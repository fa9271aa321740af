"""Several worker processes that share one schedule, as one load. Merged books are the sum of theirs."""

import asyncio
import secrets
from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np

from knee.core.clock import Clock
from knee.core.errors import KneeError
from knee.core.requests import NEVER, Ints, Observed, RequestRecord
from knee.core.units import NS_PER_MS, NS_PER_S
from knee.measure.client.books import COLUMNS, Books
from knee.measure.client.health import notes_of, prompt_error
from knee.measure.client.line import Hire, Line, WorkerLost, hire_processes
from knee.measure.client.ready import Part
from knee.measure.client.worker import Delta, Job, Order, pack, unpack
from knee.measure.target import ClientHealth, Offer, Stop

MOST_WORKERS = 64
START_S = 60.0
"""How long workers may take to be ready."""
LOOK = "look at what it wrote above"


async def start_crew(job: Job, workers: int, clock: Clock, hire: Hire = hire_processes) -> "Crew":
    """Let `hire` start `workers` and give each its part; they are ready when this returns.

    Raises:
        KneeError: a worker did not come up.
    """
    job = msgspec.structs.replace(job, shared_entropy=secrets.randbits(63))
    lines: Sequence[Line] = ()
    try:
        async with asyncio.timeout(START_S):
            lines = await hire(workers)
            crew = Crew(job.offer, lines, clock)
            await crew.begin(job)
    except (TimeoutError, WorkerLost, OSError) as error:
        await asyncio.gather(*(line.end() for line in lines))
        raise KneeError("a load worker did not start", str(error) or LOOK) from error
    return crew


class Crew:
    """The workers of one point. Has the shape that `measure.running` asks of a load.

    Instants in the books count from each worker's own start on its own clock, so that no latency is the
    difference of two machines' clocks.
    """

    def __init__(self, offer: Offer, lines: Sequence[Line], clock: Clock) -> None:
        self._offer = offer
        self._lines = lines
        self._clock = clock
        self._books = Books()
        self._open: list[Ints] = [np.empty((0, len(COLUMNS)), dtype=np.int64)] * len(lines)
        self._in_flight = [0] * len(lines)
        self._ended = [False] * len(lines)
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

    async def begin(self, job: Job) -> None:
        """Give each worker its part of `job`, wait until all are ready, and fix the instant they begin at.

        Raises:
            WorkerLost: one of them is gone.
        """
        for index, line in enumerate(self._lines):
            line.send(pack(msgspec.structs.replace(job, part=Part(index, len(self._lines)))))
        for line in self._lines:
            await line.receive()
        self.start_ns = self._clock.monotonic_ns() + max(line.head_start_ns for line in self._lines)

    async def run(self) -> None:
        """Let all workers begin at one instant, and gather what they tell until each has told its last.

        Raises:
            KneeError: a worker ended without its last word.
        """
        for line in self._lines:
            line.send(pack(Order(self.start_ns + line.ahead_ns)))
        limit_s = (self._offer.warmup_ns + self._offer.window_ns + self._offer.drain_ns) / NS_PER_S + START_S
        try:
            async with asyncio.timeout(limit_s):
                await asyncio.gather(*(self._listen(index) for index in range(len(self._lines))))
        except (WorkerLost, TimeoutError) as error:
            raise KneeError("a load worker died", f"{str(error) or LOOK}; is memory short?") from error
        finally:
            self.end_of_load_ns = max(self.end_of_load_ns, 0)
            await self.end()

    def stop(self, why: Stop) -> None:
        """Tell all workers to stop, once."""
        if self._told_to_stop:
            return
        self._told_to_stop = True
        self.stopped = why
        for line in self._lines:
            line.send(pack(Order(0, why)))

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
            workers=len(self._lines),
            notes=(*notes_of(self._books), *_placed(self._lines)),
        )

    async def end(self) -> None:
        """See that every worker is gone."""
        await asyncio.gather(*(line.end() for line in self._lines))

    async def _listen(self, index: int) -> None:
        while True:
            delta: Delta = unpack(await self._lines[index].receive(), Delta)
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


def _rows(data: bytes, width: int) -> Ints:
    return np.frombuffer(data, dtype=np.int64).reshape(-1, width)


def _worst(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _placed(lines: Sequence[Line]) -> tuple[str, ...]:
    """Where workers of other machines ran, and how well their clocks are known."""
    places = {line.place for line in lines if line.place}
    if not places:
        return ()
    unsure_ms = max(line.unsure_ns for line in lines) / NS_PER_MS
    here = f"{_several(len(lines), 'worker')} on {_several(len(places), 'Ray node')}"
    return (f"{here}, clocks known to within {unsure_ms:.2g} ms",)


def _several(count: int, what: str) -> str:
    return f"{count} {what}" + "s" * (count != 1)
