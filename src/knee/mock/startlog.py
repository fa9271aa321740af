"""The lines that a starting vLLM server writes, in the wording of its version.

The memory figures are of an imagined device: a model of the shape of Llama 3.1 8B in bfloat16 (128 KiB of KV
cache a token) on a GPU just large enough for the KV cache that was asked for.
"""

from collections.abc import Iterator

import msgspec

from knee.catalog.version import Version, parse_version
from knee.core.units import NS_PER_S
from knee.mock.config import MockConfig

KV_BYTES_PER_TOKEN = 131_072
WEIGHTS_GIB, ACTIVATION_GIB, OTHER_GIB, GRAPHS_GIB = 14.99, 1.23, 0.14, 0.55
ROUTES = (
    ("/load", "GET"), ("/version", "GET"), ("/health", "GET"), ("/metrics", "GET"), ("/tokenize", "POST"),
    ("/detokenize", "POST"), ("/v1/models", "GET"), ("/ping", "GET"), ("/ping", "POST"),
    ("/v1/chat/completions", "POST"), ("/v1/completions", "POST"),
)  # fmt: skip


class Line(msgspec.Struct, frozen=True):
    """A line, due when `share` of the start-up time is over; without a `source` it has no prefix."""

    share: float
    process: str
    source: str
    text: str


def starting(config: MockConfig, host: str, port: int) -> Iterator[Line]:
    """All lines up to the opening of the port, in order."""
    at = parse_version(config.version)
    yield from _banner(config, at, host, port)
    yield from _loading(config, at)
    yield from _capacity(config, at)
    yield from _opening(at, host, port)


def ready() -> Iterator[Line]:
    """What follows when the port is open."""
    yield Line(1, "", "", "INFO:     Application startup complete.")


def _banner(config: MockConfig, at: Version, host: str, port: int) -> Iterator[Line]:
    if at.reaches("0.15.0"):
        shapes = (
            "       █     █     █▄   ▄█",
            f" ▄▄ ▄█ █     █     █ ▀▄▀ █  version {config.version}",
            f"  █▄█▀ █     █     █     █  model   {config.model}",
            "   ▀▀  ▀▀▀▀▀ ▀▀▀▀▀ ▀     ▀",
        )
        for text in ("", *shapes, ""):
            yield Line(0, "APIServer", "api_utils.py:347", text)
    else:
        yield Line(0, "APIServer", "api_server.py:1787", f"vLLM API server version {config.version}")
    if at.reaches("0.9.0"):
        flags = {
            "model_tag": config.model,
            "host": host,
            "port": port,
            "model": config.model,
            **_flags(config),
        }
        yield Line(0, "APIServer", "api_utils.py:286", f"non-default args: {flags}")
    engine = config.engine
    yield Line(0.02, "APIServer", "model.py:733", "Resolved architecture: LlamaForCausalLM")
    yield Line(0.02, "APIServer", "model.py:2152", f"Using max model len {engine.max_model_len}")
    budget = engine.max_num_batched_tokens
    text = f"Chunked prefill is enabled with max_num_batched_tokens={budget}."
    yield Line(0.03, "APIServer", "scheduler.py:307", text)


def _flags(config: MockConfig) -> dict[str, object]:
    """The flags that a vLLM of this configuration was started with."""
    engine = config.engine
    flags: dict[str, object] = {
        "max_model_len": engine.max_model_len,
        "block_size": engine.block_size,
        "max_num_batched_tokens": engine.max_num_batched_tokens,
        "max_num_seqs": engine.max_num_seqs,
        "enable_prefix_caching": engine.enable_prefix_caching,
    }
    optional = {
        "max_num_queued_reqs": engine.max_num_queued_reqs,
        "max_num_queued_tokens": engine.max_num_queued_tokens,
        "long_prefill_token_threshold": engine.long_prefill_token_threshold,
        "scheduling_policy": engine.scheduling_policy if engine.scheduling_policy != "fcfs" else "",
        "enforce_eager": config.enforce_eager,
        "shutdown_timeout": config.shutdown_timeout,
    }
    return flags | {name: value for name, value in optional.items() if value}


def _loading(config: MockConfig, at: Version) -> Iterator[Line]:
    name, seconds = config.model, config.startup_ns / NS_PER_S
    yield Line(
        0.05,
        "EngineCore",
        "core.py:133",
        f"Initializing a V1 LLM engine (v{config.version}) with config: model='{name}', "
        f"speculative_config=None, tokenizer='{name}', skip_tokenizer_init=False, tokenizer_mode=auto, "
        f"revision=None, trust_remote_code=False, dtype=torch.bfloat16, "
        f"max_seq_len={config.engine.max_model_len}, download_dir=None, load_format=auto, "
        f"tensor_parallel_size=1, pipeline_parallel_size=1, "
        f"disable_custom_all_reduce=False, quantization=None, enforce_eager={config.enforce_eager}, "
        f"kv_cache_dtype=auto, device_config=cuda, seed={config.seed}, served_model_name={name}, "
        f"enable_prefix_caching={config.engine.enable_prefix_caching}, enable_chunked_prefill=True",
    )
    yield Line(0.08, "EngineCore", "gpu_model_runner.py:3659", f"Starting to load model {name}...")
    loading = 0.32 * seconds
    yield Line(0.4, "EngineCore", "default_loader.py:501", f"Loading weights took {loading:.2f} seconds")
    unit = "GiB memory and" if at.reaches("0.11.1") else "GiB and" if at.reaches("0.8.4") else "GB and"
    text = f"Model loading took {WEIGHTS_GIB:.4f} {unit} {loading:.6f} seconds"
    yield Line(0.4, "EngineCore", "gpu_model_runner.py:3746", text)
    if not config.enforce_eager:
        yield Line(
            0.5, "EngineCore", "backends.py:585", f"Dynamo bytecode transform time: {0.1 * seconds:.2f} s"
        )
        text = f"Compiling a graph for general shape takes {0.2 * seconds:.2f} s"
        yield Line(0.7, "EngineCore", "backends.py:321", text)
        took = "took" if at.reaches("0.18.0") else "takes"
        yield Line(0.7, "EngineCore", "monitor.py:48", f"torch.compile {took} {0.3 * seconds:.2f} s in total")


def _capacity(config: MockConfig, at: Version) -> Iterator[Line]:
    engine, seconds = config.engine, config.startup_ns / NS_PER_S
    tokens = engine.num_gpu_blocks * engine.block_size
    kv_gib = tokens * KV_BYTES_PER_TOKEN / 2**30
    if at.reaches("0.9.1"):
        shown = f"{round(kv_gib, 2)}" if at.reaches("0.14.0") else f"{kv_gib:.2f}"
        yield Line(0.75, "EngineCore", "gpu_worker.py:563", f"Available KV cache memory: {shown} GiB")
    device = "GPU KV cache size"
    concurrency = engine.num_gpu_blocks / -(-engine.max_model_len // engine.block_size)
    size = f"{device}: {tokens:,} tokens"
    at_once = f"Maximum concurrency for {engine.max_model_len:,} tokens per request: {concurrency:.2f}x"
    if at.reaches("0.28.0"):
        yield Line(0.75, "EngineCore", "kv_cache_utils.py:2327", f"{size}, {at_once}")
    else:
        yield Line(0.75, "EngineCore", "kv_cache_utils.py:1733", size)
        yield Line(0.75, "EngineCore", "kv_cache_utils.py:1734", at_once)
    graphs_gib = 0.0
    if not config.enforce_eager:
        graphs_gib = GRAPHS_GIB
        text = f"Graph capturing finished in {round(0.15 * seconds)} secs, took {graphs_gib:.2f} GiB"
        yield Line(0.93, "EngineCore", "gpu_model_runner.py:4100", text)
    if at.reaches("0.10.2"):
        yield Line(0.94, "EngineCore", "gpu_worker.py:715", _memory(at, kv_gib, graphs_gib))
    unit = "s" if at.reaches("0.20.0") else "seconds"
    took = f"init engine (profile, create kv cache, warmup model) took {0.55 * seconds:.2f} {unit}"
    yield Line(0.95, "EngineCore", "core.py:402", took)


def _memory(at: Version, kv_gib: float, graphs_gib: float) -> str:
    """Where the memory went (vllm/v1/worker/gpu_worker.py, from 0.10.2)."""
    utilization = 0.92 if at.reaches("0.20.0") else 0.9
    wanted = kv_gib + WEIGHTS_GIB + ACTIVATION_GIB + OTHER_GIB + (graphs_gib if at.reaches("0.20.0") else 0.0)
    total = wanted / utilization
    if at.reaches("0.27.0"):
        usage = f"{round(WEIGHTS_GIB + OTHER_GIB, 2)} GiB for consumed memory (weights + non-torch), "
        usage += f"{ACTIVATION_GIB} GiB for peak activation"
    else:
        usage = f"{WEIGHTS_GIB} GiB for weight, {ACTIVATION_GIB} GiB for peak activation, "
        usage += f"{OTHER_GIB} GiB for non-torch memory"
    kept, all_of_it = round(kv_gib * 2**30), round((kv_gib + total - wanted) * 2**30)
    return (
        f"Free memory on device ({total - 0.5:.2f}/{total:.2f} GiB) on startup. Desired GPU memory "
        f"utilization is ({utilization}, {wanted:.2f} GiB). Actual usage is {usage}, and {graphs_gib} GiB "
        f"for CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory={kept}` "
        f"({kv_gib:.2f} GiB) to fit into requested memory, or `--kv-cache-memory={all_of_it}` "
        f"({all_of_it / 2**30:.2f} GiB) to fully utilize gpu memory. Current kv cache memory in use is "
        f"{kv_gib:.2f} GiB."
    )


def _opening(at: Version, host: str, port: int) -> Iterator[Line]:
    name = "vLLM server" if at.reaches("0.15.0") else "vLLM API server"
    yield Line(0.99, "APIServer", "entry.py:140", f"Starting {name} on http://{host}:{port}")
    yield Line(0.99, "APIServer", "launcher.py:186", "Available routes are:")
    for path, methods in ROUTES:
        yield Line(0.99, "APIServer", "launcher.py:195", f"Route: {path}, Methods: {methods}")
    yield Line(1, "", "", "INFO:     Waiting for application startup.")
