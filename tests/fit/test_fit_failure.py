"""Why a start failed, and the remedy with its numbers; public cases where one is known."""

import io

import pytest

from knee.fit.log import read_log
from knee.fit.startup import Failure, StartupReport

NEED = (
    "ValueError: To serve at least one request with the model's max seq len ({asked}), ({need} GiB KV cache "
    "is needed, which is larger than the available KV cache memory ({have} GiB). {estimate}Try increasing "
    "`gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
)
V0_PROFILE = (
    "INFO 01-13 11:35:23 worker.py:241] the current vLLM instance can use total_gpu_memory ({total}GiB) x "
    "gpu_memory_utilization ({util}) = {want}GiB"
)
MEMORY = (
    "INFO 01-13 11:35:23 worker.py:241] model weights take {w}GiB; non_torch_memory takes 0.10GiB; PyTorch "
)
MEMORY += "activation peak memory takes {a}GiB; the rest of the memory reserved for KV Cache is {kv}GiB."
FAILED = "(EngineCore pid=1) ERROR 08-14 14:07:22 [core.py:1510] EngineCore failed to start."
INIT = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
LOADED = "(Worker pid=2) INFO 08-14 14:07:20 [x.py:1] Model loading took 15.0 GiB memory and 4.1 seconds"
SIZED = "(EngineCore pid=1) INFO 08-14 14:07:22 [kv_cache_utils.py:1] GPU KV cache size: 23,296 tokens"
CAPTURING = (
    "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  46%|#### | 31/67 [00:08<00:09,  3.71it/s]"
)
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.97 GiB. GPU 0 has a total of 79.19"


def report(*rows: str) -> StartupReport:
    return read_log(io.BytesIO(("\n".join(rows) + "\n").encode()))


def failure(*rows: str) -> Failure:
    found = report(*rows).failure
    assert found is not None
    return found


@pytest.mark.parametrize(("asked", "tokens"), [(4096, 3664), (32_768, 7344), (56_000, 43_328)])
def test_v0_says_in_tokens_what_fits(asked: int, tokens: int) -> None:
    """vllm issue 2418, Qwen3 issue 295, vllm issue 11391."""
    found = failure(
        f"ValueError: The model's max seq len ({asked}) is larger than the maximum number of tokens that can "
        f"be stored in KV cache ({tokens}). Try increasing `gpu_memory_utilization`."
    )
    assert (found.kind, found.largest_context) == ("context_too_long", tokens)
    assert found.flag == f"--max-model-len {tokens}"


def test_the_utilization_that_would_keep_the_context_is_told() -> None:
    """talos issue 2018: 1.9 GiB at 0.90 where 2.45 are needed; 0.93 fits on 23.58 GiB."""
    found = failure(
        V0_PROFILE.format(total=23.58, util=0.90, want=21.22),
        NEED.format(asked=32768, need=2.45, have=1.9, estimate=""),
    )
    assert found.min_utilization == 0.93
    assert "--gpu-memory-utilization 0.93 to keep 32,768" in found.remedy
    assert found.largest_context == 25_408
    assert found.estimated


def test_the_utilization_of_a_nearly_full_device() -> None:
    """club-3090 issue 323: 0.07 GiB at 0.92 of 23.58; 0.95 gave 0.78 GiB, 0.03 x 23.58 = 0.71 more."""
    rows = V0_PROFILE.format(total=23.58, util=0.92, want=21.69)
    assert failure(rows, NEED.format(asked=31_129, need=0.78, have=0.07, estimate="")).min_utilization == 0.96
    assert failure(rows, NEED.format(asked=31_129, need=0.77, have=0.07, estimate="")).min_utilization == 0.95


def test_without_the_total_memory_no_utilization_is_invented() -> None:
    found = failure(NEED.format(asked=32768, need=2.45, have=1.9, estimate=""))
    assert found.min_utilization is None
    assert "0.55 GiB more KV memory" in found.remedy


def test_vllms_own_estimate_is_kept() -> None:
    text = "Based on the available memory, the estimated maximum model length is 34736. "
    found = failure(NEED.format(asked=262_144, need="24.0", have=3.18, estimate=text))
    assert (found.largest_context, found.estimated) == (34_736, False)


def test_no_memory_for_blocks_gives_the_least_utilization() -> None:
    rows = [
        V0_PROFILE.format(total=39.5, util=0.5, want=19.75),
        MEMORY.format(w=14.96, a=6.0, kv=-1.31),
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.",
    ]
    found = failure(*rows)
    assert found.kind == "no_cache_memory"
    assert found.min_utilization == 0.54  # 0.5 + 1.31 / 39.5
    assert found.flag == "--gpu-memory-utilization 0.54"


def test_no_memory_for_blocks_in_v1_names_the_missing_gigabytes() -> None:
    found = failure(
        "(Worker pid=2) INFO 08-14 14:07:22 [gpu_worker.py:563] Available KV cache memory: -0.92 GiB",
        FAILED,
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.",
        INIT,
    )
    assert found.min_utilization is None
    assert "0.92 GiB are missing" in found.remedy


def test_no_utilization_is_enough_where_the_weights_are_too_large() -> None:
    found = failure(
        V0_PROFILE.format(total=23.58, util=0.9, want=21.22),
        MEMORY.format(w=26.0, a=1.0, kv=-5.9),
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.",
    )
    assert "no utilization is enough" in found.remedy
    assert found.flag == ""


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([OOM], "loading_out_of_memory"),
        ([LOADED, OOM], "profiling_out_of_memory"),
        ([LOADED, SIZED, CAPTURING, OOM], "graph_capture_out_of_memory"),
        ([LOADED, SIZED, OOM, INIT], "graph_capture_out_of_memory"),
    ],
    ids=["loading", "profiling", "capturing", "after the cache"],
)
def test_where_memory_ran_out_decides_the_remedy(rows: list[str], kind: str) -> None:
    """vllm issue 57475: at 0.98 the graphs fail after the cache was sized; 0.97 boots."""
    version = (
        "(APIServer pid=1) INFO 08-14 14:07:00 [x.py:1] non-default args: {'gpu_memory_utilization': 0.98}"
    )
    found = failure(version, *rows)
    assert found.kind == kind
    if kind == "graph_capture_out_of_memory":
        assert "--gpu-memory-utilization (now 0.98) by 0.01 to 0.03" in found.remedy


def test_the_samplers_warm_up_points_at_max_num_seqs() -> None:
    found = failure(
        LOADED,
        OOM,
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please "
        "try lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine.",
        INIT,
    )
    assert found.kind == "sampler_out_of_memory"
    assert "lower --max-num-seqs below 1024" in found.remedy


def test_mamba_blocks_bound_the_sequences() -> None:
    """kaito issue 2319."""
    found = failure("ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (614)", INIT)
    assert (found.kind, found.flag) == ("mamba_blocks", "--max-num-seqs 614")


def test_the_root_cause_further_up_is_found() -> None:
    found = failure(
        "(APIServer pid=1) WARNING 08-14 14:07:00 [x.py:1] OSError: [Errno 2] no such file: falling back",
        FAILED,
        "(EngineCore pid=1) ERROR 08-14 14:07:22 [core.py:1510] Traceback (most recent call last):",
        "(EngineCore pid=1) ERROR 08-14 14:07:22 [x.py:1] RuntimeError: NCCL error: unhandled system error",
        INIT,
    )
    assert (found.kind, found.cause) == ("other", "RuntimeError: NCCL error: unhandled system error")


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("--num-scheduler-steps 8", "--num-scheduler-steps was removed in 0.10.1"),
        ("--disable-log-requests", "was removed in 0.17.0; use --no-enable-log-requests"),
        ("--max-num-queued-reqs 4", "--max-num-queued-reqs came with 0.29.0"),
        ("--max-mum-seqs 4", "no flag that the catalog knows"),
    ],
)
def test_a_refused_flag_is_looked_up(flag: str, says: str) -> None:
    found = failure(
        "(APIServer pid=1) INFO 08-14 14:07:00 [x.py:1] vLLM API server version 0.11.0",
        f"vllm: error: unrecognized arguments: {flag}",
    )
    assert found.kind == "bad_argument"
    assert says in found.remedy


def test_a_start_that_was_killed_points_at_the_probe() -> None:
    found = failure(LOADED, "KeyboardInterrupt: terminated")
    assert found.kind == "killed"
    assert "failureThreshold" in found.remedy


BREAKDOWN = (
    "(Worker_TP0 pid=223) INFO 08-22 04:42:13 [gpu_worker.py:789] Free memory on device (30.27/31.4 GiB) on "
    "startup. Desired GPU memory utilization is (0.92, 28.88 GiB). Actual usage is {used}, and 0.09 GiB for "
    "CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory=12917635953` (12 GiB) "
    "to fit into requested memory, or `--kv-cache-memory=14405811712` (13.4 GiB) to fully utilize gpu memory."
)


@pytest.mark.parametrize(
    ("used", "weights", "non_torch", "consumed"),
    [
        (
            "14.5 GiB for weight, 1.59 GiB for peak activation, 0.53 GiB for non-torch memory",
            14.5,
            0.53,
            None,
        ),
        (
            "15.03 GiB for consumed memory (weights + non-torch), 1.59 GiB for peak activation",
            None,
            None,
            15.03,
        ),
    ],
    ids=["0.10.2", "0.27"],
)
def test_the_memory_breakdown_is_read_in_both_wordings(
    used: str, weights: float | None, non_torch: float | None, consumed: float | None
) -> None:
    text = BREAKDOWN.format(used=used)
    for rows in ([text], [text.replace(". Actual", ".\nActual")]):
        memory = report(LOADED.replace("15.0", "1.0"), *rows, SIZED).memory
        assert (memory.total_gib, memory.utilization, memory.requested_gib) == (31.4, 0.92, 28.88)
        assert (memory.activation_gib, memory.graphs_gib, memory.free_gib) == (1.59, 0.09, 30.27)
        assert (memory.non_torch_gib, memory.consumed_gib) == (non_torch, consumed)
        assert memory.weights_gib == (weights or 1.0)


def test_what_fails_after_the_server_was_ready_is_no_failed_start() -> None:
    found = report(
        LOADED,
        SIZED,
        "INFO:     Application startup complete.",
        "(EngineCore pid=1) ERROR 08-14 15:00:00 [core.py:1] EngineCore encountered a fatal error.",
        OOM,
    )
    assert (found.status, found.failure) == ("ready", None)
    assert any("after the server was ready" in note for note in found.notes)


def test_an_exception_that_the_start_survived_is_no_failure() -> None:
    found = report("RuntimeError: optional kernel not built", LOADED, SIZED)
    assert (found.status, found.failure) == ("sized", None)


def test_a_request_that_failed_later_is_no_failed_start() -> None:
    """The end of the start is not in the log, and the server was already serving."""
    found = report(
        LOADED, SIZED, "(APIServer pid=1) ERROR 08-14 15:00:00 [x.py:1] ValueError: prompt too long"
    )
    assert (found.status, found.failure) == ("sized", None)
