"""Turn what the servers' logs have said into one report: the smallest engine binds."""

import re
from collections.abc import Iterable
from typing import get_args

import msgspec

from knee.catalog.flags import flag_default, gpu_default
from knee.catalog.version import parse_version
from knee.core.errors import UsageError
from knee.fit import failure
from knee.fit.reading import Engine, Server, number
from knee.fit.startup import EngineKv, Failure, FailureKind, Memory, Phase, PhaseName, StartupReport, Status

_YEAR_S = 366 * 24 * 3600
_DEFAULT_BLOCK = 16
_FIRST: tuple[FailureKind, ...] = (
    "other_processes",
    "mamba_blocks",
    "context_too_long",
    "no_cache_memory",
    "sampler_out_of_memory",
    "bad_argument",
    "graph_capture_out_of_memory",
    "profiling_out_of_memory",
    "loading_out_of_memory",
    "killed",
)
"""Of several failures of one start the most specific is the cause; the others follow from it."""


def report(servers: Iterable[Server]) -> StartupReport:
    """One report of all servers: a failed one first, then the one with the smallest cache."""
    made = sorted((_one(server) for server in servers if _says_something(server)), key=_rank)
    if not made:
        return StartupReport(status="unfinished", notes=("no line about capacity or failure is in the log",))
    first = made[0]
    if len(made) == 1:
        return first
    return msgspec.structs.replace(
        first,
        servers=len(made),
        engines=tuple(engine for item in made for engine in item.engines),
        notes=(*first.notes, f"{len(made)} servers write to this log; shown is the one that binds"),
    )


def _says_something(server: Server) -> bool:
    facts = (server.engines, server.memory, server.phases, server.version, server.flags, server.notes)
    return any((*facts, server.failures, server.exceptions))


def _rank(item: StartupReport) -> tuple[int, float]:
    order: tuple[Status, ...] = ("failed", "ready", "sized", "unfinished")
    smallest = min((engine.kv_tokens or 0 for engine in item.engines), default=0)
    return order.index(item.status), smallest


def _one(server: Server) -> StartupReport:
    engines = _engines(server)
    cause = None if server.ready else _failure(server)
    status: Status = "failed" if cause else "ready" if server.ready else "sized" if engines else "unfinished"
    notes = list(server.notes)
    if status == "unfinished":
        notes.append(f"the log ends before the KV cache was sized{_last_seen(server)}")
    if status == "sized":
        notes.append("the end of the start is not in the log")
    if server.starts > 1:
        notes.append(f"{server.starts} starts in this log; shown is the last")
    return StartupReport(
        status=status,
        version=server.version,
        model=server.model,
        architecture=server.architecture,
        flags=server.flags,
        config=server.config,
        max_model_len=_max_model_len(server, engines),
        max_num_seqs=_max_num_seqs(server, engines),
        max_num_batched_tokens=server.batched_tokens,
        engines=engines,
        memory=_memory(server),
        phases=_phases(server),
        failure=cause,
        starts=server.starts,
        notes=tuple(notes),
    )


def _engines(server: Server) -> tuple[EngineKv, ...]:
    block_size = int(number(server.flags.get("block_size")) or number(server.config.get("block_size")) or 0)
    return tuple(
        _engine(server, name, engine, block_size)
        for name, engine in server.engines.items()
        if engine.tokens is not None or engine.blocks is not None or engine.concurrency is not None
    )


def _engine(server: Server, name: str, engine: Engine, block_size: int) -> EngineKv:
    tokens = engine.tokens
    if tokens is None and engine.blocks is not None:
        tokens = engine.blocks * (block_size or _DEFAULT_BLOCK)
    label = re.sub(r"^EngineCore_?", "", name.partition("/")[0]) or "0"
    return EngineKv(
        name=f"{server.source}:{label}" if server.source else label,
        kv_tokens=tokens,
        kv_blocks=engine.blocks,
        block_size=(block_size or _DEFAULT_BLOCK) if engine.blocks is not None else None,
        max_model_len=engine.max_model_len,
        concurrency=engine.concurrency,
        device=_device(server, engine),
        lines=max(1, engine.lines),
    )


def _device(server: Server, engine: Engine) -> str:
    """The device; until 0.29 the line says GPU on every one, so that the CPU worker's own line decides."""
    return "CPU" if server.on_cpu else engine.device


def _max_model_len(server: Server, engines: tuple[EngineKv, ...]) -> int | None:
    printed = next((engine.max_model_len for engine in engines if engine.max_model_len), None)
    asked = number(server.flags.get("max_model_len"))
    return printed or server.max_model_len or (int(asked) if asked and asked > 0 else None)


def _max_num_seqs(server: Server, engines: tuple[EngineKv, ...]) -> int | None:
    """The cap that was given, or the default where device and version decide it without doubt."""
    given = number(server.flags.get("max_num_seqs"))
    if given:
        return int(given)
    if not server.version or not engines or "performance_mode" in server.flags:
        return None
    try:
        version = parse_version(server.version)
    except UsageError:
        return None
    world = int(number(server.config.get("tensor_parallel_size")) or 1) * int(
        number(server.config.get("pipeline_parallel_size")) or 1
    )
    if any(engine.device == "CPU" for engine in engines):
        found = flag_default("max_num_seqs", version, "cpu", world_size=world)
        return int(found.value) if found else None
    found = gpu_default("max_num_seqs", version)
    return int(found.value) if found else None


def _memory(server: Server) -> Memory:
    seen = server.memory
    return Memory(
        total_gib=seen.get("total"),
        utilization=server.known().utilization,
        requested_gib=seen.get("requested"),
        free_gib=seen.get("free"),
        weights_gib=seen.get("weights"),
        activation_gib=seen.get("activation"),
        non_torch_gib=seen.get("non_torch"),
        consumed_gib=seen.get("consumed"),
        graphs_gib=seen.get("graphs"),
        kv_gib=seen.get("kv"),
    )


def _phases(server: Server) -> tuple[Phase, ...]:
    found = [
        Phase(name=name, seconds=server.phases[name]) for name in get_args(PhaseName) if name in server.phases
    ]
    if server.ready and server.first is not None and server.last is not None:
        total = server.last - server.first
        found.append(Phase(name="total", seconds=float(total + _YEAR_S if total < 0 else total)))
    return tuple(found)


def _failure(server: Server) -> Failure | None:
    for kind in _FIRST:
        if kind in server.failures:
            return server.failures[kind]
    if server.failed_to_start or (server.exceptions and not server.engines):
        return failure.other(server.exceptions[0] if server.exceptions else "the engine failed to start")
    return None


def _last_seen(server: Server) -> str:
    names = [name for name in ("load", "weights", "compile", "profile") if name in server.phases]
    return f" (last seen: {names[-1]})" if names else ""
