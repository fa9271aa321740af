"""What a start-up log says, as data."""

from typing import Literal

import msgspec

Status = Literal["ready", "sized", "failed", "unfinished"]
"""`ready`: the server listens; `sized`: the KV cache is known, but the end of the start is not in the log;
`failed`; `unfinished`: neither capacity nor failure is in the log."""

FailureKind = Literal[
    "context_too_long",
    "no_cache_memory",
    "other_processes",
    "sampler_out_of_memory",
    "graph_capture_out_of_memory",
    "loading_out_of_memory",
    "profiling_out_of_memory",
    "mamba_blocks",
    "bad_argument",
    "killed",
    "other",
]


class EngineKv(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The KV cache of one engine (data-parallel rank), whole-model tokens across tensor parallelism.

    `kv_tokens` is as printed, or blocks x `block_size`; `concurrency` is how many requests of `max_model_len`
    tokens fit. `lines` counts the capacity lines seen for this engine (pipeline stages print one each); the
    smallest was taken.
    """

    name: str
    kv_tokens: int | None = None
    kv_blocks: int | None = None
    block_size: int | None = None
    max_model_len: int | None = None
    concurrency: float | None = None
    device: str = ""
    lines: int = 1


class Memory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where one GPU's memory goes, in GiB: the worst of all workers. None where the log does not say."""

    total_gib: float | None = None
    utilization: float | None = None
    requested_gib: float | None = None
    free_gib: float | None = None
    weights_gib: float | None = None
    activation_gib: float | None = None
    non_torch_gib: float | None = None
    consumed_gib: float | None = None
    graphs_gib: float | None = None
    kv_gib: float | None = None


PhaseName = Literal["load", "weights", "compile", "profile", "graph capture", "engine", "total"]


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the start. Phases overlap: `engine` holds the profiling, the cache and the warm-up."""

    name: PhaseName
    seconds: float


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why the server did not start, and what to do.

    `cause` is vLLM's own sentence, `flag` what to set where that is known. `largest_context` is the largest
    `max_model_len` that fits; `estimated` marks one that vLLM did not print. `min_utilization` is the
    smallest `gpu_memory_utilization` that could work, `max_utilization` the largest.
    """

    kind: FailureKind
    cause: str
    remedy: str
    flag: str = ""
    largest_context: int | None = None
    estimated: bool = False
    min_utilization: float | None = None
    max_utilization: float | None = None
    need_gib: float | None = None
    available_gib: float | None = None


class StartupReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One start of one server; of several servers in one log the one that binds, `servers` counting them.

    `flags` are the non-default ones as vLLM printed them, secrets masked; `config` what the engine said of
    itself (`tensor_parallel_size`, `kv_cache_dtype`, …).
    """

    status: Status
    version: str = ""
    model: str = ""
    architecture: str = ""
    flags: dict[str, str] = {}
    config: dict[str, str] = {}
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    engines: tuple[EngineKv, ...] = ()
    memory: Memory = Memory()
    phases: tuple[Phase, ...] = ()
    failure: Failure | None = None
    servers: int = 1
    starts: int = 1
    notes: tuple[str, ...] = ()

    def seconds(self, name: str) -> float | None:
        """How long the phase `name` took, None where the log does not say."""
        return next((phase.seconds for phase in self.phases if phase.name == name), None)
