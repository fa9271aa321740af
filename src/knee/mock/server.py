"""A simulated vLLM server's life: start-up by phase, faults on schedule, SIGTERM, and the end."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TextIO

from knee.catalog.version import parse_version
from knee.core.clock import Clock
from knee.core.units import NS_PER_S
from knee.engine.engine import Engine
from knee.http1.limits import Limits
from knee.http1.server import Server
from knee.mock.config import MockConfig, sped_up
from knee.mock.drive import Drive
from knee.mock.faults import Fault
from knee.mock.refusal import ENGINE_DEAD, internal
from knee.mock.serverlog import INTERVAL_S, ServerLog
from knee.mock.service import Service
from knee.mock.startlog import ready, starting

KEEP_ALIVE_S = 5.0
"""VLLM_HTTP_TIMEOUT_KEEP_ALIVE's default (vllm/envs.py)."""
DRAIN_SINCE = "0.18.0"
CRASH_LINGER_S = 0.5
"""How long the API server outlives its engine (recorded from 0.32.0: less than half a second)."""
LIMITS = Limits(idle_seconds=KEEP_ALIVE_S)


class MockServer:
    """One simulated server; made and used inside a running event loop."""

    def __init__(self, config: MockConfig, clock: Clock, log: TextIO | None = None) -> None:
        self.config = config.checked()
        self._clock = clock
        self._log = ServerLog(log, config.version, clock)
        engine = Engine(sped_up(config.engine, config.speed))
        self.drive = Drive(engine, clock)
        self.service = Service(config, self.drive, clock, self._log)
        self._server = Server(self.service, clock=clock, limits=LIMITS, name=b"uvicorn")
        self._host = ""
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._timers: list[asyncio.TimerHandle] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._terminating = False
        self._exits_when_dead = True

    @property
    def url(self) -> str:
        """Where it serves."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._server.port}"

    async def start(self, host: str, port: int) -> bool:
        """Take the port, start up for as long as configured with the port closed, then open it.

        False where the server was ended before the port was open.

        Raises:
            UsageError: the address is in use or not ours.
        """
        self._host = host
        self._server.reserve(host, port)
        began_ns = self._clock.monotonic_ns()
        for line in starting(self.config, host, self._server.port):
            due_ns = began_ns + round(line.share * self.config.startup_ns)
            left_s = max(0, due_ns - self._clock.monotonic_ns()) / NS_PER_S
            if self._terminating or (await asyncio.wait({self._ended}, timeout=left_s))[0]:
                return False
            self._log.say(line.process, line.source, line.text)
        await self._server.listen()
        for line in ready():
            self._log.say(line.process, line.source, line.text)
        self._spawn(self._keep_log())
        self._spawn(self._follow_engine())
        for fault in self.config.faults:
            self._schedule(fault)
        return True

    async def wait(self) -> int:
        """Until the server has ended; its exit code."""
        return await self._ended

    def apply(self, fault: Fault, on: bool = True) -> None:
        """Switch a fault on or off now, whatever its schedule says."""
        match fault.kind:
            case "slow":
                self.drive.slow_down(fault.factor if on else 1.0)
            case "stall":
                self.drive.stall(on)
            case "cut":
                self.service.cut_streams(fault.tokens if on else None)
            case "metrics-latency":
                self.service.metrics_latency_s = fault.latency_ns / NS_PER_S if on else 0.0
            case "metrics-version":
                self.service.show_version(fault.version if on else self.config.version)
            case "crash" | "dead":
                if on:
                    self._exits_when_dead = fault.kind == "crash"
                    self.service.kill_engine()

    def terminate(self) -> None:
        """What SIGTERM does; a second one ends at once."""
        if self._terminating:
            self.end_now()
            return
        self._terminating = True
        self._spawn(self._shut_down())

    def end_now(self) -> None:
        """End, whatever is going on."""
        self._terminating = True
        self._spawn(self._end(0, grace_s=0.0))

    async def _shut_down(self) -> None:
        """Drain for at most `shutdown_timeout` seconds, as vLLM does from 0.18; or abort (0, and before)."""
        drains = parse_version(self.config.version).reaches(DRAIN_SINCE)
        timeout_s = self.config.shutdown_timeout if drains else 0
        self._log.stopping(timeout_s, self.drive.in_flight)
        self.service.draining = True
        if timeout_s:
            try:
                async with asyncio.timeout(timeout_s):
                    await self.service.quiet.wait()
            except TimeoutError:
                await self._hang()
                return
        self.drive.kill()
        self.service.fail_all(internal(ENGINE_DEAD))
        self._log.stopped()
        await self._end(0, grace_s=1.0)

    async def _hang(self) -> None:
        """Work outlived the timeout: vLLM's engine is killed, and its API server hangs with streams open."""
        self._log.say("EngineCore", "core.py:1660", "[shutdown] EngineCore: drain timeout", "WARNING")
        self.drive.kill()
        self._server.close_port()
        await asyncio.sleep(self.config.hang_ns / NS_PER_S)
        await self._end(1, grace_s=0.0)

    async def _end(self, code: int, grace_s: float) -> None:
        self.drive.kill()
        self.service.close()
        for timer in self._timers:
            timer.cancel()
        await self._server.stop(grace_s)
        if not self._ended.done():
            self._ended.set_result(code)
        for task in list(self._tasks):
            if task is not asyncio.current_task():
                task.cancel()

    async def _follow_engine(self) -> None:
        """A dead engine takes the API server with it (vLLM's watchdog), unless the fault says otherwise."""
        await self.service.died.wait()
        if self._exits_when_dead:
            await asyncio.sleep(CRASH_LINGER_S)
            await self._end(1, grace_s=0.0)

    async def _keep_log(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            if not self.drive.dead:
                self._log.periodic(self.drive.snapshot())

    def _schedule(self, fault: Fault) -> None:
        loop = asyncio.get_running_loop()
        self._timers.append(loop.call_later(fault.start_ns / NS_PER_S, self.apply, fault, True))
        if fault.length_ns is not None:
            end_s = (fault.start_ns + fault.length_ns) / NS_PER_S
            self._timers.append(loop.call_later(end_s, self.apply, fault, False))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
