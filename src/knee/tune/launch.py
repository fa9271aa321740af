"""Launchers: a local `vllm serve`, any command, the simulated engine."""

import contextlib
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from knee.core.errors import TargetError
from knee.core.units import NS_PER_S, parse_duration_ns
from knee.http1.origin import split_url
from knee.measure.client.connection import Connection
from knee.measure.client.endpoints import Ask
from knee.measure.client.live import connect
from knee.measure.client.secret import read_key
from knee.measure.single import live_point
from knee.tune.config import (
    Client,
    CommandServer,
    Flags,
    LocalServer,
    Server,
    SimulatedServer,
    flag_arguments,
)
from knee.tune.gpu import free_again, memory_used
from knee.tune.process import Group, Process, held
from knee.tune.server import Launcher, Running, Say, StartFailed
from knee.tune.simulated import SimulatedLauncher
from knee.tune.startup import check_free, death_of, failure_of, report_of, wait_ready

Started = Callable[[Group], None]
"""Told of every process group as soon as it runs, so that a killed session can be cleaned up after."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One way to start, ask and stop a server."""

    start: tuple[str, ...]
    stop: tuple[str, ...]
    url: str
    ready: str
    ready_s: float
    stop_s: float

    @property
    def detached(self) -> bool:
        """Whether the command may end while the server lives on."""
        return bool(self.stop)


class ProcessLauncher:
    """Servers that are processes, or that a command starts somewhere else."""

    def __init__(
        self, server: LocalServer | CommandServer, started: Started, client: Client | None = None
    ) -> None:
        self._server = server
        self._client = client or Client()
        self._started = started

    def server(self, flags: Flags, log: Path, say: Say) -> AbstractContextManager[Running]:
        """As `Launcher.server`."""
        return self._running(flags, log, say)

    @contextlib.contextmanager
    def _running(self, flags: Flags, log: Path, say: Say) -> Iterator[Running]:
        plan = plan_of(self._server, flags)
        check_free(plan.ready)
        say(f"  starting: {shlex.join(plan.start)}")
        before = memory_used()
        process: Process | None = None
        try:
            with held():
                process = Process(plan.start, log, self._server.environment)
                self._started(process.group)
            startup_s = wait_ready(
                process, plan.ready, log, within_s=plan.ready_s, say=say, detached=plan.detached
            )
            say(f"  ready after {startup_s:.0f} s")
            yield self._found(plan, flags, log, startup_s)
        finally:
            if process is not None:
                _stop(plan, process, log)
            if before is not None and not free_again(before):
                say("  note: the GPU's memory did not become free again")

    def _found(self, plan: Plan, flags: Flags, log: Path, startup_s: float) -> Running:
        client = self._client
        ask = Ask(model=_asked(self._server), endpoint=client.endpoint)
        connection = Connection(url=plan.url, ask=ask, key=read_key(None), realtime=client.realtime)
        try:
            target = connect(connection, workers=client.workers)
        except TargetError as error:
            raise StartFailed(error.what, error.hint) from error
        told = target.describe()
        facts, device = facts_of(log, flags)
        return Running(
            target=target,
            make_point=live_point,
            facts=facts,
            cause=lambda: death_of(log) or failure_of(log, None),
            version=told.version,
            model=told.model,
            gpu=self._server.gpu or device,
            startup_s=startup_s,
        )


def _asked(server: LocalServer | CommandServer) -> str:
    """The model to ask for: a local server may serve its model under another name, so the first one."""
    return server.model if isinstance(server, CommandServer) else ""


def launcher_of(server: Server, client: Client, started: Started) -> Launcher:
    """The launcher that the session's server asks for."""
    if isinstance(server, SimulatedServer):
        return SimulatedLauncher(server)
    return ProcessLauncher(server, started, client)


def plan_of(server: LocalServer | CommandServer, flags: Flags) -> Plan:
    """How to start, ask and stop the server with `flags`."""
    arguments = flag_arguments(flags)
    ready_s, stop_s = (
        parse_duration_ns(text) / NS_PER_S for text in (server.ready_within, server.stop_within)
    )
    if isinstance(server, LocalServer):
        url = f"http://{server.host}:{server.port}"
        place = ("--host", server.host, "--port", str(server.port))
        start = (server.program, "serve", server.model, *place, *server.arguments, *arguments)
        return Plan(start=start, stop=(), url=url, ready=f"{url}/health", ready_s=ready_s, stop_s=stop_s)
    text = server.start.replace("{flags}", shlex.join(arguments))
    ready = server.ready or f"{server.url.rstrip('/').removesuffix('/v1')}/health"
    split_url(ready)  # raises where it is no address
    return Plan(
        start=tuple(shlex.split(text)),
        stop=tuple(shlex.split(server.stop)),
        url=server.url,
        ready=ready,
        ready_s=ready_s,
        stop_s=stop_s,
    )


def facts_of(log: Path, flags: Flags) -> tuple[Flags, str]:
    """What is known of the running server: its flags, and what its log says of caps and cache; its device."""
    facts = dict(flags)
    report = report_of(log)
    if report is None:
        return facts, ""
    for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len"):
        value = getattr(report, name)
        if value is not None:
            facts.setdefault(name, str(value))
    caches = [engine for engine in report.engines if engine.kv_tokens]
    if caches:
        least = min(caches, key=lambda engine: engine.kv_tokens or 0)
        assert least.kv_tokens is not None
        size = least.block_size or 16
        facts["kv_cache_size_tokens"] = str(least.kv_tokens)
        facts["block_size"] = str(size)
        facts["num_gpu_blocks"] = str(least.kv_tokens // size + 1)
    return facts, caches[0].device if caches else ""


def _stop(plan: Plan, process: Process, log: Path) -> None:
    """Undo the start: the stop command where there is one, and the process group in any case."""
    try:
        if plan.stop:
            _run_stop(plan, log)
    finally:
        process.stop(plan.stop_s)


def _run_stop(plan: Plan, log: Path) -> None:
    if shutil.which(plan.stop[0]) is None:
        raise TargetError(f"cannot stop the server: no program {plan.stop[0]}", "see server.stop")
    with log.open("ab") as out:
        try:
            done = subprocess.run(  # noqa: S603 - what the session's file says
                plan.stop, stdout=out, stderr=subprocess.STDOUT, timeout=plan.stop_s, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise TargetError(f"{shlex.join(plan.stop)} did not end within {plan.stop_s:g} s") from error
    if done.returncode:
        raise TargetError(f"{shlex.join(plan.stop)} ended with {done.returncode}", f"see {log}")
