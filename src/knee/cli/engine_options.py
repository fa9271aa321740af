"""A simulated engine, from flags in vLLM's spelling and its step cost in milliseconds."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from knee.engine.config import EngineConfig

StepMs = Annotated[float, typer.Option(help="Fixed part of a step, ms.")]
SeqMs = Annotated[float, typer.Option(help="Per sequence in a step, ms.")]
PrefillTokenMs = Annotated[float, typer.Option(help="Per prefill token in a step, ms.")]
PrefillStepMs = Annotated[float, typer.Option(help="Per step with any prefill in it, ms.")]
ContextTokenMs = Annotated[float, typer.Option(help="Per token of context read in a step, ms.")]
MaxNumSeqs = Annotated[int, typer.Option(help="Sequences that run at once.")]
MaxNumBatchedTokens = Annotated[int, typer.Option(help="Token budget of a step.")]
MaxModelLen = Annotated[int, typer.Option(help="Longest prompt and output together.")]
NumGpuBlocks = Annotated[
    int,
    typer.Option("--num-gpu-blocks", "--num-gpu-blocks-override", help="KV blocks, the null block included."),
]
BlockSize = Annotated[int, typer.Option(help="Tokens a KV block holds.")]
PrefixCaching = Annotated[bool, typer.Option(help="Keep KV blocks of known prompts.")]
LongPrefill = Annotated[int, typer.Option(help="Most prefill tokens a request gets a step; 0 is no limit.")]
Watermark = Annotated[float, typer.Option(help="Share of KV blocks kept free on admission.")]
Scheduling = Annotated[Literal["fcfs", "priority"], typer.Option(help="Order of waiting requests.")]
MaxQueuedReqs = Annotated[
    int | None, typer.Option(help="Refuse requests (503) when this many are unfinished.")
]
MaxQueuedTokens = Annotated[
    int | None, typer.Option(help="Refuse requests (503) when this many prompt tokens wait for prefill.")
]
ApiServers = Annotated[int, typer.Option("--api-server-count", help="Front-end processes.")]
FrontRequestMs = Annotated[float, typer.Option(help="Front end per request (HTTP, tokenization), ms.")]
FrontTokenMs = Annotated[float, typer.Option(help="Front end per token that goes out, ms.")]
VllmVersion = Annotated[str, typer.Option(help="Scheduler rules and defaults of this version, like 0.32.0.")]
Like = Annotated[
    Path | None,
    typer.Option(help="Take engine and workload from a run, or what knee calibrate saved."),
]


def engine_from(flags: dict[str, Any]) -> "EngineConfig":
    """The engine that a command's parameters describe, by their names; others are left aside.

    A cost that is not among them is 0, any other field then has its default.
    """
    import msgspec

    from knee.core.units import NS_PER_MS
    from knee.engine.config import EngineConfig, FrontEnd, step_cost_from

    front = FrontEnd(
        servers=flags.get("api_server_count", 1),
        per_request_ns=round(flags.get("front_request_ms", 0.0) * NS_PER_MS),
        per_token_ns=round(flags.get("front_token_ms", 0.0) * NS_PER_MS),
    )
    named = {field.name for field in msgspec.structs.fields(EngineConfig)} & flags.keys()
    return EngineConfig(
        step_cost=step_cost_from(flags), front_end=front, **{name: flags[name] for name in sorted(named)}
    )
