"""The gateway: takes a request's ticket, waits for its place, relays the answer, gives the place back.

A ticket is taken when a request has arrived whole, so that a slow upload holds no place at a replica; a large
body is refused before it is read when it would be refused after. Whatever ends a request (its last byte, a
failure, the client going away) ends in one `finally`, so no place can be lost.
"""

import asyncio
import re
from random import Random
from typing import IO, TYPE_CHECKING

from knee.core.clock import Clock
from knee.core.units import NS_PER_S
from knee.http1.exchange import Request, Response
from knee.http1.reader import Refusal
from knee.http1.resolve import resolve
from knee.policy.admission import Admission, Ticket
from knee.policy.prefix import prefix_keys
from knee.policy.routing import Reservation
from knee.protect.answers import answer, no_replica, not_served, overloaded, stopping, upstream_failed
from knee.protect.books import Books
from knee.protect.config import GatewayConfig
from knee.protect.gauges import gauges
from knee.protect.headers import request_up
from knee.protect.journey import Journey
from knee.protect.models import list_models
from knee.protect.relay import Relay
from knee.protect.replicas import Replicas, Resolve

if TYPE_CHECKING:
    from knee.http1.server import Server

SERVED = re.compile(
    r"/(?:v1|v2)/[^?]*"
    r"|/(?:tokenize|detokenize|pooling|classify|score|rerank|generative_scoring|invocations|version)"
    r"|/inference/v1/generate|/cohere/v2/chat"
)
"""vLLM's paths for users of a model (0.32.0). Its paths for operators (/sleep, /collective_rpc, /metrics,
/reset_prefix_cache and others) are not for those who come through a gateway."""

METHODS = ("GET", "POST", "DELETE", "OPTIONS")
LARGE_BODY = 64 * 1024
_ID = re.compile(rb"[!-~]{1,128}")


class Gateway:
    """Handles requests. `screen` and `handle` are given to the HTTP server that listens."""

    def __init__(
        self,
        config: GatewayConfig,
        clock: Clock,
        rng: Random,
        log: IO[str] | None,
        resolver: Resolve = resolve,
    ) -> None:
        self.config = config
        self.clock = clock
        self.admission = Admission(config.limits)
        self.replicas = Replicas(config, clock, rng, self._replicas_changed, resolver)
        self.books = Books(lambda: gauges(self.admission, self.replicas, self.server), log)
        self.journeys: set[Journey] = set()
        self.server: Server | None = None
        self.stopping = self.over = False
        self.cut_short = 0
        self._rng = rng
        self._waiting: dict[Ticket, asyncio.Future[None]] = {}
        self._changed: set[asyncio.Future[None]] = set()
        self._pacing: asyncio.TimerHandle | None = None

    @property
    def ready(self) -> bool:
        """Whether it makes sense to send requests here."""
        return not self.stopping and self.replicas.usable() > 0

    def screen(self, request: Request) -> Refusal | None:
        """Refuse a large body before it is read, if it would be refused afterwards."""
        length = request.header(b"content-length")
        if request.method != "POST" or (length is not None and int(length) <= LARGE_BODY):
            return None
        now_ns = self.clock.monotonic_ns()
        held = self.server.held_bytes if self.server is not None else 0
        full = held + int(length or 0) > self.config.held_bytes
        if not self.admission.turn_away(now_ns, full):
            return None
        refusal = self._refusal(self.admission.replicas == 0, now_ns)
        journey = Journey(request, self._id_of(request), now_ns)
        journey.status, journey.end = refusal.status, "shed"
        journey.close(now_ns, self.clock.wall_ns(), 0, self.books)
        return refusal

    async def handle(self, request: Request, response: Response) -> None:
        """One request from its arrival to its last byte."""
        journey = Journey(request, self._id_of(request), self.clock.monotonic_ns())
        self.journeys.add(journey)
        try:
            await self._dispatch(request, response, journey)
        except asyncio.CancelledError:
            journey.end = "client_gone"
            raise
        finally:
            self.journeys.discard(journey)
            now_ns = self.clock.monotonic_ns()
            if journey.ticket is not None:
                self._wake(self.admission.close(journey.ticket, now_ns))
            journey.status = response.status
            journey.close(now_ns, self.clock.wall_ns(), response.sent_bytes, self.books)

    def set_draining(self, name: str, draining: bool) -> None:
        """Give a replica nothing more, whatever its health, so that it can be stopped; or take that back."""
        self.replicas.all[name].draining = draining
        self._replicas_changed()

    def stop_all(self) -> None:
        """End what is still under way: event streams with an error event, the rest with 503."""
        self.stopping = self.over = True
        self.cut_short += len(self.journeys)
        for journey in list(self.journeys):
            journey.stop()
        for future in (*self._waiting.values(), *self._changed):
            if not future.done():
                future.set_result(None)

    def tick(self) -> None:
        """Called a few times a second: keep silent streams alive, write out the log."""
        self.books.flush()
        if self.config.keep_alive_s > 0:
            now_ns, after_ns = self.clock.monotonic_ns(), round(self.config.keep_alive_s * NS_PER_S)
            for journey in self.journeys:
                if journey.relay is not None:
                    journey.relay.keep_alive(now_ns, after_ns)

    async def _dispatch(self, request: Request, response: Response, journey: Journey) -> None:
        if self.over:
            answer(response, stopping())
        elif request.method not in METHODS:
            answer(response, not_served(f"The method {request.method} is not served here.", 405))
        elif request.path in ("/health", "/ping"):
            if self.ready:
                response.send(200)
            else:
                answer(response, no_replica(self.config))
        elif request.path == "/v1/models" and request.method == "GET":
            await list_models(request, response, self.replicas.ready, self.config)
        elif not SERVED.fullmatch(request.path) or ".." in request.path:
            answer(response, not_served("The gateway serves no such path."))
        elif request.method == "POST":
            if await self._admitted(response, journey):
                await self._forward(request, response, journey)
        else:
            await self._forward(request, response, journey)

    async def _admitted(self, response: Response, journey: Journey) -> bool:
        """Whether the request has its place; where it has none, the client has been told."""
        ticket = journey.ticket = self.admission.arrive(journey.arrived_ns)
        if ticket.state == "queued":
            await self._wait_for_place(ticket)
            self.books.queue.add(self.clock.monotonic_ns() - journey.arrived_ns)
        if ticket.state == "admitted" and not self.over:
            return True
        # The timer may be a trifle early; a request that is given up was not abandoned by its client.
        now_ns = max(self.clock.monotonic_ns(), 0 if self.stopping else ticket.deadline_ns)
        self._wake(self.admission.close(ticket, now_ns))
        journey.end = "stopped" if self.stopping else "shed"
        answer(response, self._refusal(ticket.no_replica, now_ns))
        return False

    def _refusal(self, no_replica_ready: bool, now_ns: int) -> Refusal:
        """Why there is no place."""
        if self.stopping:
            return stopping()
        return no_replica(self.config) if no_replica_ready else overloaded(self.admission, now_ns)

    async def _wait_for_place(self, ticket: Ticket) -> None:
        """Until the ticket is admitted, or its deadline has passed."""
        loop = asyncio.get_running_loop()
        future = self._waiting[ticket] = loop.create_future()
        wait_s = (ticket.deadline_ns - self.clock.monotonic_ns()) / NS_PER_S
        timer = loop.call_later(wait_s, _settle, future)
        self._arm()
        try:
            await future
        finally:
            timer.cancel()
            self._waiting.pop(ticket, None)

    async def _forward(self, request: Request, response: Response, journey: Journey) -> None:
        """Relay to a replica; try another only where nothing has been sent yet."""
        keys = prefix_keys(request.body) if len(self.replicas.all) > 1 else ()
        tried: set[str] = set()
        until_ns = journey.arrived_ns + self.config.limits.ready_wait_ns
        while len(tried) < self.config.attempts and not self.over:
            reservation = self.replicas.reserve(keys, tried)
            if reservation is None:
                if tried or not await self._replica_came(until_ns):
                    break
                continue
            relay = await self._relay(request, response, journey, reservation)
            if relay.cause is None or relay.sent_ns:
                journey.settle(relay)
                if relay.cause is not None:
                    answer(response, stopping() if journey.stopped else upstream_failed(relay.cause))
                return
            tried.add(relay.upstream.name)
        journey.end = "stopped" if self.stopping else "upstream_error"
        answer(response, stopping() if self.stopping else no_replica(self.config))

    async def _relay(
        self, request: Request, response: Response, journey: Journey, reservation: Reservation
    ) -> Relay:
        upstream = self.replicas.all[reservation.replica.name]
        relay = journey.relay = Relay(upstream, response, journey.id)
        journey.replica = upstream.name
        try:
            await relay.run(request_up(request, upstream.origin, journey.id))
        finally:
            reservation.release()
            if upstream.state == "half_open":
                self._replicas_changed()
        return relay

    async def _replica_came(self, until_ns: int) -> bool:
        """Wait until something about the replicas changes; False when it is too late for that."""
        wait_s = (until_ns - self.clock.monotonic_ns()) / NS_PER_S
        if wait_s <= 0 or self.stopping:
            return False
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._changed.add(future)
        timer = loop.call_later(wait_s, _settle, future)
        try:
            await future
        finally:
            timer.cancel()
            self._changed.discard(future)
        return True

    def _replicas_changed(self) -> None:
        usable = self.replicas.usable()
        if usable != self.admission.replicas:
            self._wake(self.admission.resize(usable, self.clock.monotonic_ns()))
        for future in self._changed:
            _settle(future)

    def _wake(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            future = self._waiting.get(ticket)
            if future is not None:
                _settle(future)
        self._arm()

    def _arm(self) -> None:
        """See to it that requests which only the pace holds back are let in when it allows."""
        now_ns = self.clock.monotonic_ns()
        wake_ns = self.admission.wake_ns(now_ns)
        if wake_ns is not None and self._pacing is None:
            delay_s = max(0, wake_ns - now_ns) / NS_PER_S
            self._pacing = asyncio.get_running_loop().call_later(delay_s, self._advance)

    def _advance(self) -> None:
        self._pacing = None
        self._wake(self.admission.advance(self.clock.monotonic_ns()))

    def _id_of(self, request: Request) -> str:
        given = next((value for name, value in request.headers if name == b"x-request-id"), None)
        if given is not None and _ID.fullmatch(given):
            return given.decode("ascii")
        return f"knee-{self._rng.getrandbits(64):016x}"


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
