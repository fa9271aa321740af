"""Metrics pages of one or many servers while load runs, as snapshots."""

import asyncio
from collections.abc import Sequence

import msgspec

from knee.core.clock import Clock
from knee.core.errors import InputError, TargetError
from knee.core.snapshot import EngineSnapshot, Snapshot, Window
from knee.core.units import NS_PER_S
from knee.http1.client import Answer, Client
from knee.http1.origin import split_url
from knee.metrics.normalise import parse_page
from knee.metrics.window import window

EVERY_S = 0.5


class Scraper:
    """Reads each metrics page about every `EVERY_S` seconds, inside an event loop, until cancelled.

    A page that is late is waited for, not asked for again. `at_ns` of a snapshot is the middle of the
    exchange on the monotonic clock, as nobody knows when in between the server looked.
    """

    def __init__(self, clients: Sequence[Client], clock: Clock) -> None:
        self._clients = clients
        self._clock = clock
        self.snapshots: list[Snapshot] = []
        self.failures: dict[str, int] = {}
        """How often which page could not be read, and why."""

    async def run(self) -> None:
        """Scrape all pages until cancelled."""
        await asyncio.gather(*(self._follow(client) for client in self._clients))

    async def _follow(self, client: Client) -> None:
        every_ns = int(EVERY_S * NS_PER_S)
        next_ns = self._clock.monotonic_ns()
        while True:
            await self.once(client)
            now_ns = self._clock.monotonic_ns()
            next_ns = max(next_ns + every_ns, now_ns)
            await asyncio.sleep((next_ns - now_ns) / NS_PER_S)

    async def once(self, client: Client) -> None:
        """Scrape one page now; a failure is counted."""
        try:
            self.snapshots.append(await take(client))
        except TargetError as error:
            self.failures[error.what] = self.failures.get(error.what, 0) + 1

    async def all_once(self) -> None:
        """Scrape every page now."""
        await asyncio.gather(*(self.once(client) for client in self._clients))


async def take(client: Client) -> Snapshot:
    """One snapshot from the page that `client` points at.

    Raises:
        HttpError: no whole answer came.
        TargetError: the answer is no vLLM metrics page.
    """
    return read_page(await client.request())


def read_page(answer: Answer) -> Snapshot:
    """The snapshot in an answer to a scrape.

    Raises:
        TargetError: the answer is no vLLM metrics page.
    """
    source = str(split_url(answer.url)[0])
    if answer.status != 200:
        raise TargetError(f"{answer.url} answers {answer.status}")
    try:
        middle_ns = (answer.started_ns + answer.end_ns) // 2
        snapshot = parse_page(answer.body.decode("utf-8", "replace"), middle_ns, source)
    except InputError as error:
        raise TargetError(error.what, error.hint) from error
    return msgspec.structs.replace(snapshot, took_ns=answer.end_ns - answer.started_ns)


def since(snapshots: Sequence[Snapshot], start_ns: int) -> tuple[Snapshot, ...]:
    """The same snapshots with their instants counted from `start_ns`."""
    return tuple(msgspec.structs.replace(s, at_ns=s.at_ns - start_ns) for s in snapshots)


def joined(snapshots: Sequence[Snapshot]) -> Snapshot:
    """Snapshots of several servers at about the same instant as one, engines keyed `SOURCE#LABEL`."""
    if len(snapshots) == 1:
        return snapshots[0]
    engines: dict[str, EngineSnapshot] = {
        f"{snapshot.source}#{label}": engine
        for snapshot in snapshots
        for label, engine in snapshot.engines.items()
    }
    return Snapshot(
        at_ns=max(snapshot.at_ns for snapshot in snapshots),
        engines=engines,
        source=", ".join(snapshot.source for snapshot in snapshots),
        version=snapshots[0].version,
        model_name=snapshots[0].model_name,
        took_ns=max(snapshot.took_ns for snapshot in snapshots),
        warnings=tuple(warning for snapshot in snapshots for warning in snapshot.warnings),
    )


def window_between(snapshots: Sequence[Snapshot], start_ns: int, end_ns: int) -> Window | None:
    """The window over the snapshots taken in [start_ns, end_ns]; None where there are no snapshots.

    A source with fewer than two snapshots inside lends the nearest ones outside.
    """
    chosen: list[Snapshot] = []
    for source in dict.fromkeys(snapshot.source for snapshot in snapshots):
        of_source = sorted((s for s in snapshots if s.source == source), key=lambda s: s.at_ns)
        inside = [i for i, s in enumerate(of_source) if start_ns <= s.at_ns <= end_ns]
        if len(inside) >= 2:
            chosen += of_source[inside[0] : inside[-1] + 1]
        else:
            before = max((i for i, s in enumerate(of_source) if s.at_ns <= start_ns), default=0)
            after = min((i for i, s in enumerate(of_source) if s.at_ns >= end_ns), default=len(of_source) - 1)
            chosen += of_source[before : after + 1]
    return window(chosen) if chosen else None
