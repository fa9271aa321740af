"""Every log of the examples and captures, read as its header states."""

import io
from pathlib import Path
from typing import Any

import msgspec
import pytest

from knee.fit.capacity import smallest, usable_tokens
from knee.fit.log import read_log
from knee.fit.startup import StartupReport

SHARED = Path(__file__).parents[2].parent / "shared"


def read(name: str) -> StartupReport:
    return read_log(io.BytesIO((SHARED / name).read_bytes()), name)


def picked(report: StartupReport, names: dict[str, Any]) -> dict[str, Any]:
    """The values of dotted names, like `engines.0.kv_tokens`."""
    whole = msgspec.json.decode(msgspec.json.encode(report))
    found = {}
    for name in names:
        value: Any = whole
        for part in name.split("."):
            value = value[int(part)] if part.isdigit() else value.get(part)
            if value is None:
                break
        found[name] = value
    return found


READINGS: list[tuple[str, dict[str, Any]]] = [
    (
        "examples/01-v0-blocks-too-small.log",
        {
            "status": "failed",
            "engines.0.kv_blocks": 229,
            "engines.0.block_size": 16,
            "engines.0.kv_tokens": 3664,
            "failure.kind": "context_too_long",
            "failure.largest_context": 3664,
            "failure.flag": "--max-model-len 3664",
        },
    ),
    (
        "examples/02-v0-064-memory-profile-ok.log",
        {
            "status": "sized",
            "engines.0.kv_blocks": 1952,
            "engines.0.kv_tokens": 31232,
            "engines.0.concurrency": 1.56,
            "max_model_len": 20000,
            "memory.kv_gib": 3.81,
            "memory.total_gib": 23.58,
            "memory.utilization": 0.9,
        },
    ),
    (
        "examples/04-v0-066-a100-40g.log",
        {
            "engines.0.kv_tokens": 91056,
            "engines.0.concurrency": 11.12,
            "memory.activation_gib": 9.37,
            "memory.kv_gib": 11.12,
            "memory.weights_gib": 14.96,
            "memory.non_torch_gib": 0.1,
            "memory.total_gib": 39.5,
        },
    ),
    (
        "examples/05-v1-alpha-07-compile.log",
        {
            "engines.0.kv_tokens": 22096,
            "engines.0.concurrency": 10.79,
            "memory.weights_gib": 67.7229,
            "phases.0": {"name": "compile", "seconds": 54.73},
        },
    ),
    (
        "examples/07-v1-081-maxlen-no-estimate.log",
        {
            "failure.need_gib": 24.0,
            "failure.available_gib": 9.97,
            "failure.largest_context": 435_584,  # 435,598 rounded down to whole blocks
            "failure.estimated": True,
        },
    ),
    (
        "examples/08-v1-09-all-sliding-window.log",
        {"engines.0.kv_tokens": 2_198_512, "engines.0.concurrency": 178.68, "max_model_len": 16384},
    ),
    (
        "examples/10-v1-091-free-memory.log",
        {
            "failure.kind": "other_processes",
            "failure.available_gib": 31.44,
            "failure.need_gib": 45.01,
            "failure.max_utilization": 0.66,
            "engines": None,
        },
    ),
    (
        "examples/11-v1-010-tpu-maxlen-estimate.log",
        {"failure.largest_context": 5632, "failure.need_gib": 16.0, "failure.available_gib": 0.71},
    ),
    (
        "examples/13-v1-019-hybrid-token-mismatch.log",
        {"engines.0.kv_tokens": 290_864, "engines.0.concurrency": 33.04, "max_model_len": 32768},
    ),
    (
        "examples/14-v1-021-hybrid-fp8.log",
        {
            "engines.0.kv_tokens": 620_944,
            "engines.0.concurrency": 2.37,
            "max_num_seqs": 2,
            "flags.kv_cache_dtype": "fp8_e5m2",
            "flags.tensor_parallel_size": "2",
        },
    ),
    (
        "examples/16-v1-027-cudagraph-profiling.log",
        {
            "status": "unfinished",
            "engines": None,
            "memory.kv_gib": 6.87,
            "memory.graphs_gib": 0.36,
            "memory.utilization": 0.82,
        },
    ),
    (
        "examples/17-v1-028-merged-line-cpu-mislabelled.log",
        {
            "engines.0.kv_tokens": 23296,
            "engines.0.concurrency": 5.69,
            "engines.0.device": "CPU",
            "phases.0": {"name": "weights", "seconds": 0.42},
            "phases.1": {"name": "engine", "seconds": 0.28},
        },
    ),
    (
        "examples/19-v1-022plus-models-wording.log",
        {
            "failure.largest_context": 810_208,
            "failure.need_gib": 22.5,
            "failure.available_gib": 17.39,
            "failure.estimated": None,
        },
    ),
    ("examples/20-v1-preempt-approach.log", {"status": "unfinished", "engines": None}),
    ("examples/22-v1-stuck-waiting.log", {"status": "unfinished", "engines": None}),
    ("examples/23-v0-periodic.log", {"status": "unfinished", "engines": None}),
    (
        "captures/startup-default-0.32.0.log",
        {
            "status": "ready",
            "version": "0.32.0",
            "model": "./tiny",
            "architecture": "LlamaForCausalLM",
            "engines.0.kv_tokens": 524_288,
            "engines.0.concurrency": 256.0,
            "engines.0.device": "CPU",
            "max_model_len": 2048,
            "max_num_seqs": 128,
            "memory.kv_gib": 1.0,
            "phases": [
                {"name": "weights", "seconds": 0.03},
                {"name": "compile", "seconds": 49.0},
                {"name": "engine", "seconds": 52.66},
                {"name": "total", "seconds": 86.0},
            ],
        },
    ),
    (
        "captures/startup-default-warmcache.log",
        {"status": "ready", "phases.1": {"name": "compile", "seconds": 9.0}},
    ),
    (
        "captures/startup-compile-8k.log",
        {"status": "ready", "engines.0.concurrency": 64.0, "max_model_len": 8192},
    ),
    (
        "captures/startup-eager-0.27.1.log",
        {"status": "ready", "version": "0.27.1", "engines.0.kv_tokens": 524_288, "engines.0.device": "CPU"},
    ),
    (
        "captures/startup-eager-dummy-0.32.0.log",
        {"status": "ready", "flags.load_format": "dummy", "phases.1.seconds": 23.0},
    ),
    (
        "captures/startup-auto-kv-util0.08.log",
        {
            "status": "ready",
            "max_model_len": 8192,
            "engines.0.kv_tokens": 287_744,
            "memory.utilization": 0.08,
            "memory.requested_gib": 1.18,
            "memory.consumed_gib": 0.63,
            "memory.kv_gib": 0.55,
            "failure": None,
        },
    ),
    (
        "captures/startup-fail-ctx-llama8b-kv-shape.log",
        {
            "status": "failed",
            "failure.kind": "context_too_long",
            "failure.largest_context": 8064,
            "failure.need_gib": 4.0,
            "failure.available_gib": 0.98,
            "engines": None,
        },
    ),
    ("captures/startup-seqs4.log", {"status": "ready", "max_num_seqs": 4, "failure": None}),
    (
        "captures/startup-smallkv-preempt.log",
        {
            "status": "ready",
            "engines.0.kv_tokens": 3072,
            "engines.0.concurrency": 3.0,
            "max_num_seqs": 16,
            "max_num_batched_tokens": 1024,
        },
    ),
    ("captures/drain-completes.log", {"status": "ready", "flags.shutdown_timeout": "60", "failure": None}),
]


@pytest.mark.parametrize(("name", "reading"), READINGS, ids=[name for name, _ in READINGS])
def test_a_log_reads_as_stated(name: str, reading: dict[str, Any]) -> None:
    assert picked(read(name), reading) == reading


def test_every_log_has_a_reading() -> None:
    logs = {str(path.relative_to(SHARED)) for path in SHARED.glob("*/*.log")}
    assert logs == {name for name, _ in READINGS}


def test_the_concurrency_is_the_truth_for_a_hybrid_model_before_0_21() -> None:
    found = smallest(read("examples/13-v1-019-hybrid-token-mismatch.log"))
    assert found is not None
    _, tokens, note = found
    assert tokens == 1_082_654  # 33.04 x 32,768
    assert "290,864" in note
    assert "the concurrency is right" in note
    sliding = smallest(read("examples/08-v1-09-all-sliding-window.log"))
    assert sliding is not None
    assert sliding[1] == int(178.68 * 16384)


def test_printed_tokens_are_kept_where_they_agree_with_the_concurrency() -> None:
    for name in ("examples/02-v0-064-memory-profile-ok.log", "captures/startup-auto-kv-util0.08.log"):
        report = read(name)
        assert usable_tokens(report.engines[0], report.version) == (report.engines[0].kv_tokens, "")


def test_kv_memory_and_tokens_give_the_bytes_of_a_token() -> None:
    for name in ("examples/02-v0-064-memory-profile-ok.log", "examples/04-v0-066-a100-40g.log"):
        report = read(name)
        assert report.memory.kv_gib is not None
        assert report.engines[0].kv_tokens is not None
        per_token = report.memory.kv_gib * 2**30 / report.engines[0].kv_tokens
        assert abs(per_token - 131_072) < 150  # Llama-3.1-8B in bf16: 2 x 32 x 8 x 128 x 2
