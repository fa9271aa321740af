"""What to tune, as data: the server and how to start it, the load, the objectives, what may move."""

from typing import Literal

import msgspec

from knee.core.slo import Slo
from knee.workload.spec import Workload

Flags = dict[str, str]
"""vLLM's flags by name with underscores; values as text, `true` and `false` for flags without a value."""


class Bounds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How far one flag may move: whole numbers from `low` to `high`, or one of `values`."""

    low: int | None = None
    high: int | None = None
    values: tuple[str, ...] = ()

    def admits(self, value: str) -> bool:
        """Whether the flag may take `value`."""
        if self.values:
            return value in self.values
        assert self.low is not None
        assert self.high is not None
        return value.isdecimal() and self.low <= int(value) <= self.high


class Spend(msgspec.Struct, frozen=True, kw_only=True):
    """Where to stop: server time of the whole session and sweeps, and how closely each knee is measured.

    `precision` is the half-width of a knee's interval at which its sweep stops, `points` the open-loop points
    that a sweep may take, `clients` the fewest in the burst with which it bounds the capacity.
    """

    server_s: float = 8 * 3600.0
    trials: int = 12
    precision: float = 0.05
    points: int = 10
    clients: int = 256


class Client(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How load is sent to a live server: as `--workers`, `--realtime` and `--endpoint` of `knee sweep`."""

    workers: int = 1
    realtime: bool = False
    endpoint: Literal["completions", "chat", "responses"] = "completions"


class LocalServer(msgspec.Struct, frozen=True, kw_only=True, tag="vllm", tag_field="kind"):
    """`program serve model --host … --port … arguments flags`, a process of this machine."""

    model: str
    program: str = "vllm"
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    host: str = "127.0.0.1"
    port: int = 8000
    version: str = ""
    gpu: str = ""
    ready_within: str = "20m"
    stop_within: str = "60s"


class CommandServer(msgspec.Struct, frozen=True, kw_only=True, tag="command", tag_field="kind"):
    """Any command that starts a server: `{flags}` in `start` becomes the flags.

    The command may stay in front (ssh, docker run), and is then ended by a signal, or return at once
    (kubectl, a script), and is then undone by `stop`. `ready` is the address that answers 200 when requests
    may come; `url` that of the API.
    """

    start: str
    url: str
    stop: str = ""
    ready: str = ""
    model: str = ""
    environment: dict[str, str] = {}
    version: str = ""
    gpu: str = ""
    ready_within: str = "20m"
    stop_within: str = "60s"


class SimulatedServer(msgspec.Struct, frozen=True, kw_only=True, tag="simulated", tag_field="kind"):
    """The simulated engine in virtual time, with its step cost in milliseconds (see `knee simulate`)."""

    step_ms: float = 7.0
    seq_ms: float = 0.1
    prefill_token_ms: float = 0.018
    context_token_ms: float = 0.0
    prefill_step_ms: float = 0.0
    front_request_ms: float = 0.0
    num_gpu_blocks: int = 65_537
    block_size: int = 16
    max_model_len: int = 8192
    version: str = "0.32.0"


Server = LocalServer | CommandServer | SimulatedServer


class TuneConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One session. `flags` are those that the first server starts with, `moves` those that may change."""

    server: Server
    workload: Workload
    slo: Slo
    flags: Flags = {}
    moves: dict[str, Bounds] = {}
    spend: Spend = Spend()
    client: Client = Client()
    seed: int = 1
    explore: bool = False


def flag_arguments(flags: Flags) -> list[str]:
    """The flags as arguments of `vllm serve`, by name: `--max-num-seqs 4 --no-enable-prefix-caching`."""
    arguments: list[str] = []
    for name, value in sorted(flags.items()):
        dashed = name.replace("_", "-")
        if value in ("true", "false"):
            arguments.append(f"--{dashed}" if value == "true" else f"--no-{dashed}")
        else:
            arguments += [f"--{dashed}", value]
    return arguments


def public(config: TuneConfig) -> TuneConfig:
    """`config` as it may be written down: the values of environment variables may be secret."""
    server = config.server
    if isinstance(server, SimulatedServer):
        return config
    masked = msgspec.structs.replace(server, environment=dict.fromkeys(server.environment, "…"))
    return msgspec.structs.replace(config, server=masked)
