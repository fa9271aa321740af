"""`knee mock`: a simulated vLLM server to talk to."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from knee.cli.app import log


def mock(
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8000,
    model: Annotated[str, typer.Option("--model", "--served-model-name", help="Name of the model.")] = "mock",
    version: Annotated[str, typer.Option(help="vLLM version to look like, 0.8.0 or later.")] = "0.32.0",
    step_ms: Annotated[float, typer.Option(help="Fixed part of a step, ms.")] = 7.0,
    seq_ms: Annotated[float, typer.Option(help="Per sequence in a step, ms.")] = 0.10,
    prefill_token_ms: Annotated[float, typer.Option(help="Per prefill token in a step, ms.")] = 0.018,
    context_token_ms: Annotated[float, typer.Option(help="Per token of context read in a step, ms.")] = 0.0,
    speed: Annotated[float, typer.Option(help="Divide every cost by this.")] = 1.0,
    max_num_seqs: Annotated[int, typer.Option(help="Sequences that run at once.")] = 128,
    max_num_batched_tokens: Annotated[int, typer.Option(help="Token budget of a step.")] = 4096,
    max_model_len: Annotated[int, typer.Option(help="Longest prompt and output together.")] = 8192,
    num_gpu_blocks: Annotated[
        int, typer.Option("--num-gpu-blocks-override", help="KV blocks, the null block included.")
    ] = 65_537,
    block_size: Annotated[int, typer.Option(help="Tokens a KV block holds.")] = 16,
    enable_prefix_caching: Annotated[bool, typer.Option(help="Keep KV blocks of known prompts.")] = True,
    long_prefill_token_threshold: Annotated[
        int, typer.Option(help="Most prefill tokens a request gets a step.")
    ] = 0,
    watermark: Annotated[float, typer.Option(help="Share of KV blocks kept free on admission.")] = 0.0,
    scheduling_policy: Annotated[
        Literal["fcfs", "priority"], typer.Option(help="Order of waiting requests.")
    ] = "fcfs",
    max_num_queued_reqs: Annotated[
        int | None, typer.Option(help="Refuse requests (503) when this many are unfinished.")
    ] = None,
    max_num_queued_tokens: Annotated[
        int | None, typer.Option(help="Refuse requests (503) when this many prompt tokens wait.")
    ] = None,
    stream_interval: Annotated[int, typer.Option(help="Tokens a streamed chunk waits for.")] = 1,
    enforce_eager: Annotated[bool, typer.Option(help="Leave compilation out of the start-up.")] = False,
    shutdown_timeout: Annotated[
        int, typer.Option(help="Seconds to drain after SIGTERM; 0 aborts at once.")
    ] = 0,
    startup_seconds: Annotated[float, typer.Option(help="How long the port stays closed.")] = 0.0,
    enable_server_load_tracking: Annotated[bool, typer.Option(help="Let /load count.")] = False,
    enable_request_id_headers: Annotated[bool, typer.Option(help="Answer with X-Request-Id.")] = False,
    enable_per_request_metrics: Annotated[bool, typer.Option(help="Answer with timings.")] = False,
    dev_mode: Annotated[
        bool, typer.Option(help="Serve /server_info and /reset_prefix_cache (VLLM_SERVER_DEV_MODE=1).")
    ] = False,
    eos_after: Annotated[
        int, typer.Option(help="The model ends an answer after this many tokens; 0 never does.")
    ] = 512,
    seed: Annotated[int, typer.Option(help="Seed of the texts.")] = 0,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            help="KIND[=VALUE][@START[+LENGTH]], may be repeated: slow=3@10s+5s, stall, crash, dead, "
            "cut=5, metrics-latency=2s, metrics-version=0.10.0."
        ),
    ] = None,
    access_log: Annotated[bool, typer.Option(help="Log every answered request.")] = False,
    log_file: Annotated[
        Path | None, typer.Option("--log", help="Write the server's log here instead of stderr.")
    ] = None,
) -> int:
    """Run a simulated vLLM server until Ctrl-C or SIGTERM.

    It answers in vLLM's words at the pace of a simulated engine (7 ms a step, 0.10 ms a sequence, 0.018 ms a
    prefill token unless told otherwise). When the port is open, "ready" and the address stand on stderr.
    """  # fmt: skip
    from knee.core.errors import InputError
    from knee.core.units import NS_PER_MS, s_to_ns
    from knee.engine.config import EngineConfig, StepCost
    from knee.mock.config import MockConfig
    from knee.mock.faults import parse_fault
    from knee.mock.serving import serve_until_stopped

    engine = EngineConfig(
        step_cost=StepCost(
            fixed_ns=round(step_ms * NS_PER_MS),
            per_seq_ns=round(seq_ms * NS_PER_MS),
            per_prefill_token_ns=round(prefill_token_ms * NS_PER_MS),
            per_context_token_ns=round(context_token_ms * NS_PER_MS),
        ),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        num_gpu_blocks=num_gpu_blocks,
        block_size=block_size,
        enable_prefix_caching=enable_prefix_caching,
        long_prefill_token_threshold=long_prefill_token_threshold,
        watermark=watermark,
        scheduling_policy=scheduling_policy,
        max_num_queued_reqs=max_num_queued_reqs,
        max_num_queued_tokens=max_num_queued_tokens,
        version=version,
    )
    config = MockConfig(
        engine=engine,
        model=model,
        speed=speed,
        seed=seed,
        eos_after=eos_after,
        startup_ns=s_to_ns(startup_seconds),
        shutdown_timeout=shutdown_timeout,
        stream_interval=stream_interval,
        enforce_eager=enforce_eager,
        enable_server_load_tracking=enable_server_load_tracking,
        enable_request_id_headers=enable_request_id_headers,
        enable_per_request_metrics=enable_per_request_metrics,
        dev_mode=dev_mode,
        access_log=access_log,
        faults=tuple(parse_fault(text) for text in fault or ()),
    ).checked()
    try:
        out = log_file.open("a", buffering=1) if log_file is not None else sys.stderr
    except OSError as error:
        raise InputError(f"cannot write the log to {log_file}: {error.strerror}") from error
    try:
        return serve_until_stopped(
            config, host, port, log=out, opened=lambda url: log(f"ready: {url} (simulated vLLM {version})")
        )
    finally:
        if log_file is not None:
            out.close()
