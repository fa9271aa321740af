"""One point of live load with all that goes on beside it: scraping, watching, records, progress, Ctrl-C."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec

from knee.core.clock import RealClock
from knee.core.requests import Observed, RequestRecord
from knee.core.units import NS_PER_MS, NS_PER_S
from knee.measure.client.scrape import Scraper, since, window_between
from knee.measure.target import ClientHealth, Measured, Offer, Stop, Watch

LOOK_S = 1.0
"""How often the watch, the records and the progress line are attended to."""
LOOK_SHARE = 0.05
"""At most this share of the time goes into looking: long books are looked at less often."""


class Loader(Protocol):
    """What offers the load: one event loop, or several processes."""

    stopped: Stop
    start_ns: int
    end_of_load_ns: int

    @property
    def in_flight(self) -> int:
        """Requests under way."""
        ...

    async def run(self) -> None:
        """Offer the load until the point is over."""
        ...

    def stop(self, why: Stop) -> None:
        """End the point early."""
        ...

    def freeze(self) -> Callable[[], Observed]:
        """A copy of the books up to now; the result makes the columns of it, in any thread."""
        ...

    def take_finished(self) -> list[RequestRecord]:
        """Requests that finished since this was last called."""
        ...

    def health(self) -> ClientHealth:
        """How the client fared."""
        ...


class Glance(msgspec.Struct, frozen=True):
    """What a progress line shows."""

    at_ns: int
    offered: int
    in_flight: int
    observed: Observed


Progress = Callable[[Glance], None]


async def run_point(
    offer: Offer,
    load: Loader,
    scraper: Scraper,
    clock: RealClock,
    *,
    watch: Watch | None,
    keep: Callable[[list[RequestRecord]], None],
    progress: Progress | None,
) -> Measured:
    """Run `load` to its end and gather everything that the point gave.

    `keep` gets finished requests about once a second, from another thread.
    """
    begun_ns, wall_ns, cpu_ns = clock.monotonic_ns(), clock.wall_ns(), clock.cpu_ns()
    beside = [
        asyncio.ensure_future(scraper.run()),
        asyncio.ensure_future(_attend(load, clock, watch, keep, progress)),
    ]
    try:
        with _on_interrupt(lambda: load.stop("interrupted")):
            await load.run()
    finally:
        for task in beside:
            task.cancel()
        ended = await asyncio.gather(*beside, return_exceptions=True)
    for error in ended:
        if isinstance(error, Exception):
            raise error
    ended_ns = clock.monotonic_ns()
    await scraper.all_once()
    keep(load.take_finished())
    observed = load.freeze()()
    snapshots = since(scraper.snapshots, load.start_ns)
    window_end_ns = min(offer.warmup_ns + offer.window_ns, load.end_of_load_ns)
    jump_ns = (clock.wall_ns() - wall_ns) - (clock.monotonic_ns() - begun_ns)
    health = load.health()
    failures = tuple(f"metrics: {what} ({times} times)" for what, times in scraper.failures.items())
    if health.cpu_share is None:
        share = (clock.cpu_ns() - cpu_ns) / max(1, ended_ns - begun_ns)
        health = msgspec.structs.replace(health, cpu_share=share)
    return Measured(
        observed=observed,
        spent_ns=ended_ns - begun_ns,
        window=window_between(snapshots, offer.warmup_ns, window_end_ns),
        snapshots=snapshots,
        health=msgspec.structs.replace(
            health, clock_jump_ms=jump_ns / NS_PER_MS, notes=health.notes + failures
        ),
        stopped=load.stopped,
    )


def with_note(measured: Measured, note: str) -> Measured:
    """`measured` with one more remark on the client; as it is without one."""
    if not note or measured.health is None:
        return measured
    health = msgspec.structs.replace(measured.health, notes=(*measured.health.notes, note))
    return msgspec.structs.replace(measured, health=health)


async def _attend(
    load: Loader,
    clock: RealClock,
    watch: Watch | None,
    keep: Callable[[list[RequestRecord]], None],
    progress: Progress | None,
) -> None:
    loop = asyncio.get_running_loop()
    pause_s = LOOK_S
    while True:
        await asyncio.sleep(pause_s)
        begun_ns = clock.monotonic_ns()
        records = load.take_finished()
        if records:
            await loop.run_in_executor(None, keep, records)
        if watch is not None or progress is not None:
            at_ns = clock.monotonic_ns() - load.start_ns
            looking = _look(load.freeze(), at_ns, load.in_flight, watch, progress)
            verdict = await loop.run_in_executor(None, looking)
            if verdict:
                load.stop(verdict)
        pause_s = max(LOOK_S, (clock.monotonic_ns() - begun_ns) / NS_PER_S / LOOK_SHARE)


def _look(
    books: Callable[[], Observed], at_ns: int, in_flight: int, watch: Watch | None, progress: Progress | None
) -> Callable[[], Stop]:
    """What is done about once a second, in another thread so that the load does not wait for it."""

    def look() -> Stop:
        observed = books()
        if progress is not None:
            progress(Glance(at_ns, len(observed), in_flight, observed))
        return watch(observed, at_ns) if watch is not None else ""

    return look


@contextlib.contextmanager
def _on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C calls `stop` instead of raising, where signals can be caught (the main thread)."""
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGINT, stop)
    except (ValueError, RuntimeError, NotImplementedError):
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
