"""`knee.toml`: read, and refused with one line for each mistake."""

import tomllib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from knee.core.errors import InputError, UsageError
from knee.core.slo import parse_slo
from knee.core.units import NS_PER_S, parse_duration_ns
from knee.measure.client.crew import MOST_WORKERS
from knee.measure.search.budget import MOST_POINTS
from knee.tune.check import check_flags, check_moves, plain
from knee.tune.config import (
    Bounds,
    Client,
    CommandServer,
    LocalServer,
    Server,
    SimulatedServer,
    Spend,
    TuneConfig,
)
from knee.workload.file import load_workload
from knee.workload.parse import parse_arrivals, parse_lengths, parse_prefixes
from knee.workload.schedule import schedule
from knee.workload.spec import Workload

KINDS: dict[str, type[Server]] = {
    "vllm": LocalServer,
    "command": CommandServer,
    "simulated": SimulatedServer,
}
FEWEST_TRIALS, MOST_TRIALS = 3, 100
"""The fewest are the start, a move and its confirmation."""

_LONGEST_FILE = 1 << 20

T = TypeVar("T")


class _Load(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    prompt: int | str = "1000"
    output: int | str = "200"
    burstiness: float = 1.0
    shared_prefix: str = ""
    file: str = ""


class _Budget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    server_time: str = "8h"
    trials: int = 12
    precision: str = "5%"
    points: int = 10
    clients: int = 256


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    slo: str
    server: dict[str, Any]
    workload: _Load = _Load()
    flags: dict[str, Any] = {}
    moves: dict[str, Bounds] = {}
    budget: _Budget = _Budget()
    client: Client = Client()
    seed: int = 1


def read_config(path: Path) -> TuneConfig:
    """The session that the file `path` describes.

    Raises:
        InputError: the file cannot be read or is no TOML.
        UsageError: a name or a value in it cannot be; the line names it.
    """
    try:
        data = path.read_bytes()
        if len(data) > _LONGEST_FILE:
            raise InputError(f"{path} is too large to be a knee.toml")
        raw = tomllib.loads(data.decode())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", "docs/tune.md shows one") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML: {error}") from error
    try:
        return config_from(raw, path.parent)
    except UsageError as error:
        raise UsageError(f"{path}: {error.what}", error.hint) from error


def config_from(raw: dict[str, Any], folder: Path = Path()) -> TuneConfig:
    """The session in a decoded file; a workload file is looked for from `folder`.

    Raises:
        UsageError: a name or a value in it cannot be.
        InputError: the workload file cannot be read.
    """
    file = _convert(raw, _File)
    flags = {plain(name): _text(name, value) for name, value in file.flags.items()}
    moves = {plain(name): bounds for name, bounds in file.moves.items()}
    server = _server(file.server)
    check_flags(flags, server.version)
    check_moves(moves, flags, server.version)
    return TuneConfig(
        server=server,
        workload=_workload(file.workload, folder),
        slo=parse_slo(file.slo),
        flags=flags,
        moves=moves,
        spend=_spend(file.budget),
        client=_client(file.client),
        seed=file.seed,
    )


def _convert(raw: Any, kind: type[T], where: str = "$") -> T:
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        said = str(error).replace("`$", f"`{where}").replace("$.", "").replace("$", "the file")
        raise UsageError(said, "docs/tune.md lists what may stand there") from error


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float | str):
        return str(value)
    raise UsageError(f"flags.{name} is {type(value).__name__}", "a number, a text, true or false")


def _server(raw: dict[str, Any]) -> Server:
    kind = raw.get("kind", "vllm")
    if kind not in KINDS:
        raise UsageError(f"server.kind is {kind!r}", f"one of {', '.join(KINDS)}")
    known = KINDS[kind].__struct_fields__
    for name in raw:
        if name != "kind" and name not in known:
            raise UsageError(f"server.{name} is not known for kind {kind!r}", f"known: {', '.join(known)}")
    server = _convert({"kind": kind, **raw}, KINDS[kind], "server")
    if not isinstance(server, SimulatedServer):
        _check_process(server)
    return server


def _check_process(server: LocalServer | CommandServer) -> None:
    for field in ("ready_within", "stop_within"):
        if parse_duration_ns(getattr(server, field)) <= 0:
            raise UsageError(f"server.{field} is {getattr(server, field)}", "a duration above 0, like 20m")
    if isinstance(server, CommandServer):
        if "{flags}" not in server.start:
            raise UsageError("server.start has no {flags}", "that is where the flags to try go")
        return
    if any(argument.startswith("--api-key") for argument in server.arguments):
        raise UsageError("a key in server.arguments", "set VLLM_API_KEY in the environment instead")
    if not 1 <= server.port <= 65_535:
        raise UsageError(f"server.port is {server.port}", "1 to 65535")


def _workload(load: _Load, folder: Path) -> Workload:
    arrivals = parse_arrivals(load.burstiness)
    if load.file:
        workload, _ = load_workload(folder / load.file, replay=False, arrivals=arrivals)
    else:
        prompt, output = parse_lengths(str(load.prompt)), parse_lengths(str(load.output))
        workload = Workload(prompt_tokens=prompt, output_tokens=output, arrivals=arrivals)
    if load.shared_prefix:
        prefixes = parse_prefixes(load.shared_prefix, workload)
        workload = msgspec.structs.replace(workload, prefixes=prefixes)
    schedule(workload, 1.0, 1)  # raises where it cannot be, before any server is started
    return workload


def _client(client: Client) -> Client:
    if not 1 <= client.workers <= MOST_WORKERS:
        raise UsageError(f"client.workers is {client.workers}", f"1 to {MOST_WORKERS}")
    return client


def _spend(budget: _Budget) -> Spend:
    try:
        precision = float(budget.precision.removesuffix("%")) / 100
    except ValueError:
        raise UsageError(f"budget.precision is {budget.precision!r}", "write it like 5%") from None
    limits = {
        "precision": (precision, 0.005, 0.5),
        "trials": (budget.trials, FEWEST_TRIALS, MOST_TRIALS),
        "points": (budget.points, 2, MOST_POINTS),
        "clients": (budget.clients, 1, 100_000),
    }
    for name, (value, low, high) in limits.items():
        if not low <= value <= high:
            raise UsageError(f"budget.{name} is {value:g}", f"{low:g} to {high:g}")
    server_s = parse_duration_ns(budget.server_time) / NS_PER_S
    if server_s <= 0:
        raise UsageError(f"budget.server_time is {budget.server_time}", "a duration above 0, like 8h")
    return Spend(
        server_s=server_s,
        trials=budget.trials,
        precision=precision,
        points=budget.points,
        clients=budget.clients,
    )
