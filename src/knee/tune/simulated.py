"""The simulated engine with vLLM's flags set: as a server to tune, and as a model to ask."""

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from knee.core.errors import UsageError
from knee.core.point import Point
from knee.core.slo import Slo
from knee.core.units import NS_PER_MS
from knee.engine.config import EngineConfig, FrontEnd, step_cost_from
from knee.measure.point import make_point
from knee.measure.simulated import SimulatedTarget
from knee.measure.target import Measured, Offer
from knee.tune.config import Flags, SimulatedServer
from knee.tune.server import Running, Say, StartFailed

DEFAULTS = {"kv_cache_dtype": "auto", "gpu_memory_utilization": "0.92"}
"""What flags are where they are not given; the cache of the simulated server is sized for these."""

_NUMBERS = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "long_prefill_token_threshold")
_QUEUE = ("max_num_queued_reqs", "max_num_queued_tokens")


def engine_with(config: EngineConfig, flags: Mapping[str, str]) -> EngineConfig | None:
    """`config` with `flags` set; None where one of them is not in the model.

    `kv_cache_dtype` fp8 doubles the blocks; `gpu_memory_utilization` moves them in proportion, which leaves
    out that weights take a fixed part of the memory and so understates it.

    Raises:
        UsageError: no engine can run so.
    """
    changes: dict[str, object] = {}
    blocks = float(config.num_gpu_blocks - 1)
    for name, value in flags.items():
        if name in (*_NUMBERS, *_QUEUE) and value.isdecimal():
            changes[name] = int(value)
        elif name == "enable_prefix_caching" and value in ("true", "false"):
            changes[name] = value == "true"
        elif name == "api_server_count" and value.isdecimal():
            changes["front_end"] = msgspec.structs.replace(config.front_end, servers=int(value))
        elif name == "kv_cache_dtype":
            blocks *= 2 if value.startswith("fp8") else 1
        elif name == "gpu_memory_utilization":
            blocks *= float(value) / float(DEFAULTS[name])
        else:
            return None
    return msgspec.structs.replace(config, num_gpu_blocks=max(1, int(blocks)) + 1, **changes).checked()


def engine_of(server: SimulatedServer) -> EngineConfig:
    """The engine of a simulated server before any flag."""
    return EngineConfig(
        step_cost=step_cost_from(msgspec.structs.asdict(server)),
        front_end=FrontEnd(per_request_ns=round(server.front_request_ms * NS_PER_MS)),
        num_gpu_blocks=server.num_gpu_blocks,
        block_size=server.block_size,
        max_model_len=server.max_model_len,
        version=server.version,
    )


def simulated_point(measured: Measured, offer: Offer, slo: Slo) -> Point:
    """A point of the simulated engine."""
    return make_point(measured, offer, slo, simulated=True)


class SimulatedLauncher:
    """A fresh engine for every trial."""

    def __init__(self, server: SimulatedServer) -> None:
        self._engine = engine_of(server)

    def server(self, flags: Flags, log: Path, say: Say) -> AbstractContextManager[Running]:
        """As `Launcher.server`."""
        del log
        return self._running(flags, say)

    @contextlib.contextmanager
    def _running(self, flags: Flags, say: Say) -> Iterator[Running]:
        try:
            config = engine_with(self._engine, flags)
        except UsageError as error:
            raise StartFailed(error.what, error.hint) from error
        if config is None:
            raise UsageError(
                f"the simulated engine lacks one of {', '.join(flags)}", "docs/tune.md lists what it has"
            )
        say("  a simulated engine, in virtual time")
        yield Running(
            target=SimulatedTarget(config),
            make_point=simulated_point,
            facts=facts_of_engine(config, flags),
            cause=lambda: "",
            version=config.version,
            model="simulated",
            gpu="simulated",
        )


def facts_of_engine(config: EngineConfig, flags: Flags) -> Flags:
    """What a server of this configuration would tell: its flags and its cache, never its costs."""
    return {
        **flags,
        "max_num_seqs": str(config.max_num_seqs),
        "max_num_batched_tokens": str(config.max_num_batched_tokens),
        "max_model_len": str(config.max_model_len),
        "num_gpu_blocks": str(config.num_gpu_blocks),
        "block_size": str(config.block_size),
        "kv_cache_size_tokens": str(config.kv_tokens),
    }
