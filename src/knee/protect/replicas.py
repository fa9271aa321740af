"""The replicas behind the gateway, as many as their names have addresses, and the choice among them."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from random import Random
from typing import Any

import msgspec

from knee.core.clock import Clock
from knee.core.errors import KneeError
from knee.http1.origin import Origin
from knee.http1.resolve import is_address, resolve
from knee.policy.routing import POLICIES, Reservation, Router
from knee.protect.config import GatewayConfig
from knee.protect.upstream import Upstream

NOT_READY_EVERY_S = 0.25

Resolve = Callable[[str], Awaitable[list[str]]]


class Replicas:
    """All of them, with the router that chooses among those that may be given a request.

    `changed` is called whenever what they may be given may have changed.
    """

    def __init__(
        self,
        config: GatewayConfig,
        clock: Clock,
        rng: Random,
        changed: Callable[[], None],
        resolver: Resolve = resolve,
    ) -> None:
        self._config = config
        self._clock = clock
        self._changed = changed
        self._resolver = resolver
        self.router = Router(POLICIES[config.policy], rng)
        self.all: dict[str, Upstream] = {}
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}

    @property
    def ready(self) -> list[Upstream]:
        """Those that answer and are not being emptied."""
        return [upstream for upstream in self.all.values() if upstream.state == "ready"]

    def usable(self) -> int:
        """How many replicas' worth of requests may be in flight: those ready, or one on trial if none is."""
        trial = any(upstream.state == "half_open" for upstream in self.all.values())
        return len(self.ready) or int(trial)

    def reserve(self, keys: tuple[int, ...], without: set[str]) -> Reservation | None:
        """A place for a prompt with `keys` at a replica not in `without`; None where there is none."""
        bound = self._config.limits.max_in_flight
        able, free = [], []
        for name, upstream in self.all.items():
            in_flight = self.router.replicas[name].in_flight
            if name not in without and not upstream.leaving and upstream.health.may_take(in_flight):
                able.append(name)
                if in_flight < bound:
                    free.append(name)
        # Requests that need no admission (listing, cancelling) may find every place taken.
        return self.router.reserve(free or able, keys, self._clock.monotonic_ns())

    def start(self) -> None:
        """Begin to look for replicas, to probe them and to read their metrics."""
        for origin in self._config.upstreams:
            if origin.secure or is_address(origin.host):
                # A certificate names a host, so behind TLS a name is one replica.
                self._add(origin)
            else:
                self._run(str(origin), self._keep_resolving(origin))

    async def close(self) -> None:
        """Stop all that, and drop all connections."""
        left = {task for started in self._tasks.values() for task in started}
        while left:
            # Once is not enough: before Python 3.12 `wait_for` loses a cancellation that meets its result.
            for task in left:
                task.cancel()
            _, left = await asyncio.wait(left, timeout=0.1)
        for upstream in self.all.values():
            upstream.close()

    def _run(self, owner: str, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.setdefault(owner, []).append(asyncio.get_running_loop().create_task(work))

    def _add(self, origin: Origin) -> None:
        upstream = Upstream(origin, self._config, self._clock, self._changed)
        self.all[upstream.name] = upstream
        self.router.add(upstream.name)
        self._run(upstream.name, self._keep_probing(upstream))
        self._run(upstream.name, self._keep_scraping(upstream))

    def _remove(self, upstream: Upstream) -> None:
        for task in self._tasks.pop(upstream.name):
            task.cancel()
        del self.all[upstream.name]
        self.router.remove(upstream.name)
        upstream.close()

    async def _keep_resolving(self, named: Origin) -> None:
        """Follow the addresses behind a name. One that is gone gets nothing more and is left to finish."""
        ours: set[str] = set()
        while True:
            addresses = await self._resolver(named.host)
            if addresses:  # a name server that fails for a moment takes no replica away
                found = [msgspec.structs.replace(named, host=address) for address in addresses]
                for origin in found:
                    if str(origin) not in self.all:
                        self._add(origin)
                        ours.add(str(origin))
                listed = {str(origin) for origin in found}
                for name in sorted(ours):
                    upstream = self.all[name]
                    upstream.gone = name not in listed
                    if upstream.gone and self.router.replicas[name].in_flight == 0:
                        self._remove(upstream)
                        ours.discard(name)
                self._changed()
            await asyncio.sleep(self._config.resolve_every_s)

    async def _keep_probing(self, upstream: Upstream) -> None:
        while self.all.get(upstream.name) is upstream:
            if upstream.health.probe_wanted(self._clock.monotonic_ns()):
                await upstream.probe()
            ready = upstream.health.state == "ready"
            await asyncio.sleep(self._config.probe_every_s if ready else NOT_READY_EVERY_S)

    async def _keep_scraping(self, upstream: Upstream) -> None:
        while self.all.get(upstream.name) is upstream:
            await asyncio.sleep(self._config.scrape_every_s)
            if upstream.health.state == "ready":
                with suppress(KneeError):  # what is not scraped grows stale, which routing knows to handle
                    self.router.observe(upstream.name, await upstream.scrape())
