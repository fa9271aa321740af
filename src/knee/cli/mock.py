"""`knee mock`: a simulated vLLM server to talk to."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from knee.cli import engine_options as engine
from knee.cli.app import log
from knee.core.errors import InputError

if TYPE_CHECKING:
    from knee.mock.config import MockConfig

Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")]
Model = Annotated[str, typer.Option("--model", "--served-model-name", help="Name of the model.")]
Version = Annotated[str, typer.Option(help="vLLM version to look like, 0.8.0 or later.")]
Speed = Annotated[float, typer.Option(help="Divide every cost by this.")]
StreamInterval = Annotated[int, typer.Option(help="Tokens a streamed chunk waits for.")]
Eager = Annotated[bool, typer.Option(help="Leave compilation out of the start-up.")]
ShutdownTimeout = Annotated[int, typer.Option(help="Seconds to drain after SIGTERM; 0 aborts at once.")]
StartupSeconds = Annotated[float, typer.Option(help="How long the port stays closed.")]
LoadTracking = Annotated[bool, typer.Option(help="Let /load count.")]
IdHeaders = Annotated[bool, typer.Option(help="Answer with X-Request-Id.")]
Timings = Annotated[bool, typer.Option(help="Answer with timings.")]
DevMode = Annotated[bool, typer.Option(help="Serve /server_info and /reset_prefix_cache.")]
EosAfter = Annotated[int, typer.Option(help="The model ends an answer after this many tokens; 0 never.")]
Seed = Annotated[int, typer.Option(help="Seed of the texts.")]
Faults = Annotated[
    list[str] | None,
    typer.Option(
        help="KIND[=VALUE][@START[+LENGTH]], may be repeated: slow=3@10s+5s, stall, crash, dead, cut=5, "
        "metrics-latency=2s, metrics-version=0.10.0."
    ),
]
AccessLog = Annotated[bool, typer.Option(help="Log every answered request.")]
LogFile = Annotated[Path | None, typer.Option("--log", help="Write the server's log here instead of stderr.")]


def mock(
    *,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    model: Model = "mock",
    version: Version = "0.32.0",
    step_ms: engine.StepMs = 7.0,
    seq_ms: engine.SeqMs = 0.10,
    prefill_token_ms: engine.PrefillTokenMs = 0.018,
    context_token_ms: engine.ContextTokenMs = 0.0,
    prefill_step_ms: engine.PrefillStepMs = 0.0,
    front_request_ms: engine.FrontRequestMs = 0.0,
    front_token_ms: engine.FrontTokenMs = 0.0,
    api_server_count: engine.ApiServers = 1,
    speed: Speed = 1.0,
    max_num_seqs: engine.MaxNumSeqs = 128,
    max_num_batched_tokens: engine.MaxNumBatchedTokens = 4096,
    max_model_len: engine.MaxModelLen = 8192,
    num_gpu_blocks: engine.NumGpuBlocks = 65_537,
    block_size: engine.BlockSize = 16,
    enable_prefix_caching: engine.PrefixCaching = True,
    long_prefill_token_threshold: engine.LongPrefill = 0,
    watermark: engine.Watermark = 0.0,
    scheduling_policy: engine.Scheduling = "fcfs",
    max_num_queued_reqs: engine.MaxQueuedReqs = None,
    max_num_queued_tokens: engine.MaxQueuedTokens = None,
    stream_interval: StreamInterval = 1,
    enforce_eager: Eager = False,
    shutdown_timeout: ShutdownTimeout = 0,
    startup_seconds: StartupSeconds = 0.0,
    enable_server_load_tracking: LoadTracking = False,
    enable_request_id_headers: IdHeaders = False,
    enable_per_request_metrics: Timings = False,
    dev_mode: DevMode = False,
    eos_after: EosAfter = 512,
    seed: Seed = 0,
    fault: Faults = None,
    access_log: AccessLog = False,
    log_file: LogFile = None,
) -> int:
    """Run a simulated vLLM server until Ctrl-C or SIGTERM.

    It answers in vLLM's words at the pace of a simulated engine (7 ms a step, 0.10 ms a sequence, 0.018 ms a
    prefill token unless told otherwise). When the port is open, "ready" and the address stand on stderr.
    """
    return _serve(_config(locals()), host, port, log_file)


def _config(flags: dict[str, Any]) -> "MockConfig":
    """The server that the command's parameters describe, by their names."""
    import msgspec

    from knee.core.units import s_to_ns
    from knee.mock.config import MockConfig
    from knee.mock.faults import parse_fault

    named = {field.name for field in msgspec.structs.fields(MockConfig)} & flags.keys()
    return MockConfig(
        engine=engine.engine_from(flags),
        startup_ns=s_to_ns(flags["startup_seconds"]),
        faults=tuple(parse_fault(text) for text in flags["fault"] or ()),
        **{name: flags[name] for name in sorted(named)},
    ).checked()


def _serve(config: "MockConfig", host: str, port: int, log_file: Path | None) -> int:
    from knee.mock.serving import serve_until_stopped

    def serve(out: TextIO) -> int:
        ready = f"(simulated vLLM {config.version})"
        return serve_until_stopped(
            config, host, port, log=out, opened=lambda url: log(f"ready: {url} {ready}")
        )

    if log_file is None:
        return serve(sys.stderr)
    try:
        out = log_file.open("a", buffering=1)
    except OSError as error:
        raise InputError(f"cannot write the log to {log_file}: {error.strerror}") from error
    with out:
        return serve(out)
