"""A live server over HTTP, as a target."""

import asyncio
from itertools import chain
from pathlib import Path

import msgspec

from knee.core.clock import RealClock
from knee.core.errors import InputError, TargetError, UsageError
from knee.core.requests import RequestRecord
from knee.core.run import RECORDS, append_lines
from knee.core.snapshot import Snapshot
from knee.core.units import NS_PER_MS, NS_PER_S
from knee.http1.client import BlockingClient, Client, private_loop
from knee.http1.files import allow_many_files
from knee.http1.pool import Pool
from knee.measure.client.connection import Connection
from knee.measure.client.crew import MOST_WORKERS, start_crew
from knee.measure.client.endpoints import form, head_of
from knee.measure.client.line import Hire, hire_processes
from knee.measure.client.load import Load
from knee.measure.client.memory import quiet_memory
from knee.measure.client.preflight import Served, learn_vocabulary, look_at, try_out
from knee.measure.client.priority import first_in_line, threads_beside
from knee.measure.client.prompts import Prompts, Vocabulary
from knee.measure.client.ready import make_ready
from knee.measure.client.running import Loader, Progress, run_point, with_note
from knee.measure.client.scrape import Scraper, joined, read_page, take
from knee.measure.client.worker import Job
from knee.measure.target import Measured, Offer, TargetInfo, Watch

PREFLIGHT_S = 10.0
HEAD_START_NS = 20 * NS_PER_MS
SETTLE_UNANSWERED = 20
"""So many looks in a row without an answer, and the server is gone."""

SETTLE_POLL_S = 0.25


class LiveTarget:
    """A server that was looked at and found usable; see `connect`.

    With `run` (a run directory), every request becomes a line of its `records.jsonl`; `point` is the number
    that the next point gets there.
    """

    def __init__(
        self,
        connection: Connection,
        served: Served,
        vocabulary: Vocabulary,
        run: Path | None = None,
        workers: int = 1,
        *,
        hire: Hire | None = None,
    ) -> None:
        self.connection = connection
        self._served = served
        self._vocabulary = vocabulary
        self._clock = RealClock()
        self._metrics_urls = connection.metrics_urls
        self.run = run
        self.point = 0
        self.workers = workers
        self._hire = hire
        self.collect: list[RequestRecord] | None = None
        """Where given, every finished request is appended here."""
        self.flags: dict[str, str] = {}  # where somebody knows them: no server tells
        self.notes = served.notes
        """Remarks on the server that a report should carry."""
        self.progress: Progress | None = None
        """Called about once a second while a point runs."""

    def keep_in(self, run: Path, points: int = 0) -> None:
        """Keep what requests see from now on in `run`, which has so many points already."""
        self.run, self.point = run, points

    def describe(self) -> TargetInfo:
        """Address, version and model."""
        return TargetInfo(
            name=str(self.connection.origin),
            simulated=False,
            version=self._served.version,
            model=self._served.model,
            flags=self.flags,
        )

    def measure(self, offer: Offer, watch: Watch | None = None) -> Measured:
        """Offer load over HTTP and see what comes of it; blocks until the point is over.

        An interrupt (Ctrl-C) ends the point with `stopped="interrupted"` and everything seen so far.

        Raises:
            TargetError: the requests are longer than the server's context.
        """
        self._check_lengths(offer)
        allow_many_files()
        first = self.connection.realtime
        with first_in_line(first) as remark, private_loop() as loop, quiet_memory():
            loop.set_default_executor(threads_beside(first=first and not remark))
            measured = loop.run_until_complete(self._measure(offer, watch))
        self.point += 1
        return with_note(measured, remark)

    def snapshot(self) -> Snapshot | None:
        """The server's metrics now; None where it shows none.

        Raises:
            TargetError: there were some, and now they cannot be read.
        """
        if not self._metrics_urls:
            return None
        with private_loop() as loop:
            return loop.run_until_complete(self._snapshot())

    def settle(self, limit_ns: int) -> bool:
        """Wait until the metrics show nothing running or waiting, at most `limit_ns`; whether it is idle now.

        A server without metrics is given half a second and then taken to be idle.
        """
        until_ns = self._clock.monotonic_ns() + limit_ns
        if not self._metrics_urls:
            self._clock.sleep(min(0.5, limit_ns / NS_PER_S))
            return True
        unanswered = 0
        while unanswered < SETTLE_UNANSWERED and self._clock.monotonic_ns() < until_ns:
            try:
                if _busy(self.snapshot()) == 0:
                    return True
                unanswered = 0
            except TargetError:
                unanswered += 1
            self._clock.sleep(SETTLE_POLL_S)
        return False

    async def _snapshot(self) -> Snapshot:
        clients = self._metrics_clients()
        try:
            return joined(await asyncio.gather(*(take(client) for client in clients)))
        finally:
            for client in clients:
                client.close()

    def _metrics_clients(self) -> list[Client]:
        return [Client(url, headers=self.connection.all_headers()) for url in self._metrics_urls]

    def _check_lengths(self, offer: Offer) -> None:
        limit = self._served.max_model_len
        prompt, output = (
            offer.workload.prompt_tokens.sure_to_reach,
            offer.workload.output_tokens.sure_to_reach,
        )
        if limit is not None and prompt + output > limit:
            raise TargetError(
                f"requests of {prompt} + {output} tokens exceed the server's max_model_len of {limit}",
                "ask for shorter prompts or outputs",
            )

    async def _measure(self, offer: Offer, watch: Watch | None) -> Measured:
        clients = self._metrics_clients()
        scraper = Scraper(clients, self._clock)
        try:
            await scraper.all_once()
            load = await self._load(offer)
            return await run_point(
                offer, load, scraper, self._clock, watch=watch, keep=self._keep, progress=self.progress
            )
        finally:
            for client in clients:
                client.close()

    async def _load(self, offer: Offer) -> Loader:
        connection, clock, record = self.connection, self._clock, self._keeps
        headers = connection.all_headers()
        if self.workers > 1 or self._hire is not None:
            job = Job(
                origin=connection.origin,
                ask=connection.ask,
                headers=headers,
                timeouts=connection.timeouts,
                vocabulary=self._vocabulary,
                offer=offer,
                record=record,
                realtime=connection.realtime,
            )
            return await start_crew(job, self.workers, clock, self._hire or hire_processes)
        head = head_of(connection.origin, connection.ask, headers)
        requests = make_ready(offer, Prompts(self._vocabulary), form(connection.ask), head)
        requests = chain([next(requests)], requests)  # the vocabulary is laid out now, before time counts
        return Load(
            offer,
            requests,
            Pool(connection.origin, clock, connection.timeouts, stamps=True),
            clock,
            clock.monotonic_ns() + HEAD_START_NS,
            ask=connection.ask,
            record=record,
        )

    @property
    def _keeps(self) -> bool:
        return self.run is not None or self.collect is not None

    def _keep(self, records: list[RequestRecord]) -> None:
        if not self._keeps or not records:
            return
        numbered = [msgspec.structs.replace(record, point=self.point) for record in records]
        if self.collect is not None:
            self.collect += numbered
        if self.run is not None:
            append_lines(self.run / RECORDS, numbered)


def connect(
    connection: Connection, run: Path | None = None, workers: int = 1, hire: Hire | None = None
) -> LiveTarget:
    """Look at the server, ask it for one token, and learn how it counts tokens.

    With several `workers`, each is a process that sends its share of the load; `hire` starts them elsewhere.

    Raises:
        UsageError: the URL or a header cannot be one.
        TargetError: the server cannot be used; the line says why.
    """
    if not 1 <= workers <= MOST_WORKERS:
        raise UsageError(f"{workers} workers", f"1 to {MOST_WORKERS}; each wants a core of its own")
    base = str(connection.origin)
    with BlockingClient(base, headers=connection.all_headers(), timeout_s=PREFLIGHT_S) as client:
        served = look_at(client, connection.ask.model)
        ask = try_out(client, msgspec.structs.replace(connection.ask, model=served.model))
        vocabulary, remark = learn_vocabulary(client, ask)
    connection = msgspec.structs.replace(connection, ask=ask)
    metrics, remarks = _find_metrics(connection)
    notes = (*served.notes, *([remark] if remark else []), *remarks)
    return LiveTarget(
        msgspec.structs.replace(connection, metrics_urls=metrics),
        msgspec.structs.replace(served, notes=notes),
        vocabulary,
        run,
        workers,
        hire=hire,
    )


def _find_metrics(connection: Connection) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The metrics pages that can be read, and remarks.

    Raises:
        TargetError: one that was named cannot be read.
    """
    named = bool(connection.metrics_urls)
    urls = connection.metrics_urls or (str(connection.origin),)
    pages = tuple(
        url if url.rstrip("/").endswith("/metrics") else f"{url.rstrip('/')}/metrics" for url in urls
    )
    for page in pages:
        try:
            with BlockingClient(page, headers=connection.all_headers(), timeout_s=PREFLIGHT_S) as client:
                read_page(client.request())
        except (TargetError, InputError) as error:
            if named:
                raise TargetError(f"no vLLM metrics at {page}: {error.what}", "see --metrics") from error
            return (), (f"no vLLM metrics at {page}; name where they are with --metrics",)
    return pages, ()


def _busy(snapshot: Snapshot | None) -> float:
    if snapshot is None:
        return 0.0
    return sum(
        engine.gauges.get("num_requests_running", 0.0) + engine.gauges.get("num_requests_waiting", 0.0)
        for engine in snapshot.engines.values()
    )
