"""Run a gateway: open its ports, and stop without breaking what is under way."""

import asyncio
import gc
import signal
from collections.abc import Callable
from random import Random
from typing import IO

import msgspec

from knee.core.clock import Clock
from knee.http1.files import allow_many_files
from knee.http1.limits import Limits as ServerLimits
from knee.http1.loop import new_event_loop
from knee.http1.resolve import resolve
from knee.http1.server import Server
from knee.protect.admin import Admin
from knee.protect.config import GatewayConfig
from knee.protect.gateway import Gateway
from knee.protect.replicas import Resolve

TICK_S = 0.25
LAST_WORDS_S = 1.0
"""How long an error event may take to reach a client after the grace."""


class Ports(msgspec.Struct, frozen=True, kw_only=True):
    """Where to listen; port 0 takes a free one."""

    host: str = "127.0.0.1"
    port: int = 8080
    admin_host: str = "127.0.0.1"
    admin_port: int = 8081


class RunningGateway:
    """A gateway with its two servers. `await start()`, then `await stop()`, once each, in one event loop."""

    def __init__(
        self,
        config: GatewayConfig,
        ports: Ports,
        *,
        clock: Clock,
        rng: Random,
        log: IO[str] | None = None,
        resolver: Resolve = resolve,
    ) -> None:
        self._config = config
        self._ports = ports
        self.gateway = Gateway(config, clock, rng, log, resolver)
        limits = ServerLimits(connections=config.connections, body_bytes=config.body_bytes)
        self.server = Server(self.gateway.handle, clock=clock, limits=limits, screen=self.gateway.screen)
        self.gateway.server = self.server
        self.admin = Server(Admin(self.gateway).handle, clock=clock)
        self._ticking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen, and begin to look for replicas.

        Raises:
            UsageError: a port cannot be opened.
        """
        await self.admin.listen(self._ports.admin_host, self._ports.admin_port)
        try:
            await self.server.listen(self._ports.host, self._ports.port)
        except BaseException:
            await self.admin.stop(0)
            raise
        self.gateway.replicas.start()
        self._ticking = asyncio.get_running_loop().create_task(self._tick())

    async def stop(self) -> bool:
        """Not ready first, then closed to new requests, then the end; whether all answers finished."""
        config = self._config
        self.gateway.stopping = True
        timer = asyncio.get_running_loop().call_later(config.grace_s, self.gateway.stop_all)
        await asyncio.sleep(min(config.unready_s, config.grace_s))
        await self.server.stop(max(0.0, config.grace_s - config.unready_s) + LAST_WORDS_S)
        timer.cancel()
        if self._ticking is not None:
            self._ticking.cancel()
        await self.gateway.replicas.close()
        await self.admin.stop(0)
        self.gateway.books.flush()
        return self.gateway.cut_short == 0

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.gateway.tick()


def serve(make: Callable[[], RunningGateway], started: Callable[[RunningGateway], None]) -> bool:
    """Run what `make` returns until SIGTERM or SIGINT; whether all answers finished.

    `started` is called once it listens. A second signal ends the grace at once.
    """
    allow_many_files()
    loop = new_event_loop()
    try:
        return loop.run_until_complete(_serve(make, started))
    finally:
        loop.close()


async def _serve(make: Callable[[], RunningGateway], started: Callable[[RunningGateway], None]) -> bool:
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    running = make()
    await running.start()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    gc.freeze()  # what start-up made stays: the collector need not look at it again
    started(running)
    await told.wait()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.gateway.stop_all)
    return await running.stop()
