"""Logs as they come: coloured, prefixed, interleaved, cut, enormous, or of something else."""

import io
import random
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knee.catalog.logs import log_line
from knee.core.errors import InputError
from knee.fit import lines
from knee.fit.handlers import HANDLERS
from knee.fit.log import read_log
from knee.fit.startup import StartupReport

SHARED = Path(__file__).parents[2].parent / "shared"
DEFAULT = (SHARED / "captures/startup-default-0.32.0.log").read_bytes()
FAILED = (SHARED / "captures/startup-fail-ctx-llama8b-kv-shape.log").read_bytes()
PROFILE = (SHARED / "examples/04-v0-066-a100-40g.log").read_bytes()


def read(data: bytes | str | Iterable[str]) -> StartupReport:
    if isinstance(data, bytes):
        return read_log(io.BytesIO(data))
    text = data if isinstance(data, str) else "\n".join(data) + "\n"
    return read_log(io.BytesIO(text.encode()))


def kv(tokens: int, process: str = "", *, times: float | None = None, length: int = 4096) -> str:
    shown = times if times is not None else tokens / length
    return (
        f"{process}INFO 09-06 20:23:33 [kv_cache_utils.py:2312] GPU KV cache size: {tokens:,} tokens, "
        f"Maximum concurrency for {length:,} tokens per request: {shown:.2f}x"
    )


@pytest.mark.parametrize("name", sorted(HANDLERS))
def test_every_kind_of_line_that_is_read_passes_the_prefilter(name: str) -> None:
    line = log_line(name)
    assert line is not None
    assert any(word in line.example.encode() for word in lines.WORDS) or name == "engine_dead"


@pytest.mark.parametrize("data", [DEFAULT, FAILED, PROFILE], ids=["0.32", "failed", "V0"])
def test_line_ends_colours_and_prefixes_change_nothing(data: bytes) -> None:
    plain = read(data)
    rows = data.splitlines()
    coloured = b"\n".join(b"\x1b[1;36m" + row.replace(b" ", b" \x1b[0;0m", 1) + b"\x1b[0m" for row in rows)
    assert read(data.replace(b"\n", b"\r\n")) == plain
    assert read(coloured + b"\n") == plain
    stamped = b"".join(b"2026-11-29T16:48:25.123456789Z " + row + b"\n" for row in rows)
    assert read(stamped) == plain
    for prefix in (b"[pod/vllm-7d9f-x2/server] ", b"vllm-1  | "):
        prefixed = read(b"".join(prefix + row + b"\n" for row in rows))
        assert (prefixed.status, prefixed.version, prefixed.failure) == (
            plain.status,
            plain.version,
            plain.failure,
        )
        assert [e.kv_tokens for e in prefixed.engines] == [e.kv_tokens for e in plain.engines]


@settings(deadline=None, max_examples=60)
@given(st.integers(0, len(DEFAULT)))
def test_a_cut_log_gives_the_right_number_or_none(end: int) -> None:
    try:
        report = read(DEFAULT[:end])
    except InputError:
        return
    assert {engine.kv_tokens for engine in report.engines} <= {524_288, None}
    assert {engine.concurrency for engine in report.engines} <= {256.0, None}
    assert report.max_model_len in (None, 2048)
    assert report.status in ("ready", "sized", "unfinished")


@pytest.mark.parametrize("line", [kv(23_296), "# GPU blocks: 5691, # CPU blocks: 2048", "# GPU blocks: 1381"])
def test_a_number_cut_in_the_middle_is_not_a_number(line: str) -> None:
    """At every byte of the line: the true number, or none."""
    before = "INFO 01-13 11:35:21 model_runner.py:1099] Loading model weights took 14.9595 GB\n"
    whole = read(before + line + "\n").engines[0].kv_tokens
    for end in range(len(line)):
        found = read(before + line[:end]).engines
        assert [engine.kv_tokens for engine in found] in ([], [whole], [None]), line[:end]


def test_a_cut_estimate_is_not_taken() -> None:
    text = (SHARED / "examples/11-v1-010-tpu-maxlen-estimate.log").read_text()
    for kept in (0, 1, 2, 3):
        failure = read(text[: text.rindex("5632") + kept]).failure
        assert failure is not None
        assert (failure.largest_context, failure.estimated) == (5808, True)  # linear: 131,072 x 0.71 / 16


@settings(deadline=None, max_examples=40)
@given(st.integers(64, 4096), st.sampled_from([DEFAULT, FAILED, PROFILE]))
def test_the_reading_does_not_depend_on_how_the_log_is_cut_into_pieces(size: int, data: bytes) -> None:
    expected = read(data)
    kept = lines.CHUNK_BYTES
    lines.CHUNK_BYTES = size
    try:
        assert read(data) == expected
    finally:
        lines.CHUNK_BYTES = kept


def test_data_parallel_ranks_are_engines_of_their_own_and_the_smallest_binds() -> None:
    report = read(
        [kv(90_000, f"(EngineCore_DP{rank} pid={100 + rank}) ") for rank in (0, 2)]
        + [kv(70_000, "(EngineCore_DP1 pid=101) ")]
    )
    assert [(engine.name, engine.kv_tokens) for engine in report.engines] == [
        ("DP0", 90_000),
        ("DP2", 90_000),
        ("DP1", 70_000),
    ]


def test_pipeline_stages_of_one_engine_bind_by_the_smallest() -> None:
    report = read([kv(90_000, "(EngineCore pid=1) "), kv(64_000, "(EngineCore pid=1) ")])
    assert [(engine.kv_tokens, engine.lines) for engine in report.engines] == [(64_000, 2)]
    assert report.engines[0].concurrency == pytest.approx(15.62)


def test_the_worst_worker_counts() -> None:
    available = "INFO 08-14 14:07:22 [gpu_worker.py:563] Available KV cache memory: {} GiB"
    report = read(
        [f"(Worker_TP{i} pid={i}) " + available.format(gib) for i, gib in enumerate((6.87, 6.5, 7.1))]
    )
    assert report.memory.kv_gib == 6.5


@settings(deadline=None, max_examples=25)
@given(st.randoms(use_true_random=False))
def test_interleaved_servers_with_prefixes_are_told_apart(generator: random.Random) -> None:
    one = [f"[pod/a-0/vllm] {row}" for row in DEFAULT.decode().splitlines()]
    two = [f"[pod/b-0/vllm] {row}" for row in PROFILE.decode().splitlines()]
    merged: list[str] = []
    while one or two:
        merged.append((one if one and (not two or generator.random() < 0.5) else two).pop(0))
    report = read(merged)
    assert report.servers == 2
    assert {engine.name: engine.kv_tokens for engine in report.engines} == {
        "pod/a-0/vllm:0".removeprefix("pod/"): 524_288,
        "b-0/vllm:0": 91_056,
    }


def test_of_several_servers_a_failed_one_is_shown() -> None:
    rows = [f"a-1  | {row}" for row in DEFAULT.decode().splitlines()]
    rows += [f"b-1  | {row}" for row in FAILED.decode().splitlines()]
    report = read(rows)
    assert report.status == "failed"
    assert report.failure is not None
    assert report.failure.largest_context == 8064


def test_the_last_of_several_starts_in_one_log_counts() -> None:
    report = read(FAILED.decode() + "\n" + DEFAULT.decode())
    assert (report.status, report.starts) == ("ready", 2)
    assert report.engines[0].kv_tokens == 524_288
    assert report.seconds("total") == 86.0


def test_a_start_after_one_that_was_killed_counts_alone() -> None:
    first = DEFAULT.decode().replace("524,288", "100,000").split("INFO:     Started server")[0]
    report = read(first + "KeyboardInterrupt: terminated\n" + DEFAULT.decode().replace("2963", "77"))
    assert (report.status, report.starts, report.failure) == ("ready", 2, None)
    assert [engine.kv_tokens for engine in report.engines] == [524_288]


def test_a_failure_that_a_terminal_wrapped_is_put_together() -> None:
    text = (SHARED / "examples/11-v1-010-tpu-maxlen-estimate.log").read_text().splitlines()[-1]
    for width in (100, 120, 200):
        wrapped = "\n".join(text[i : i + width] for i in range(0, len(text), width)) + "\n"
        failure = read("(EngineCore pid=1) INFO 06-01 09:22:30 [core.py:1] x\n" + wrapped).failure
        assert failure is not None
        assert failure.largest_context == 5632, width


OTHERS = {
    "SGLang": "[2026-01-01 10:00:00] server_args=ServerArgs(model_path='x')\nmax_total_num_tokens=1000",
    "Text Generation Inference": "2026-01-01T00:00:00Z  INFO text_generation_launcher: Args { model_id: x }",
    "llama.cpp": "llama_model_loader: loaded meta data with 29 key-value pairs\nllama_context: n_ctx = 4096",
    "TensorRT-LLM": "[TensorRT-LLM][INFO] Max KV cache blocks: 1000",
    "LMDeploy": "[TM][INFO] [BlockManager] max_block_count = 100",
}


@pytest.mark.parametrize("engine", OTHERS)
def test_another_engines_log_is_named_and_refused(engine: str) -> None:
    with pytest.raises(InputError, match=f"is a log of {engine}, not of vLLM"):
        read(OTHERS[engine])


@pytest.mark.parametrize("text", ["hello\nworld\n", "\x00\x01\x02" * 1000, "ValueError: x\n", '{"a": 1}\n'])
def test_what_is_no_log_of_vllm_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="does not look like a log of vLLM"):
        read(text)


@pytest.mark.parametrize("text", ["", "\n\n", "   \n"])
def test_an_empty_log_is_said_to_be_empty(text: str) -> None:
    with pytest.raises(InputError, match="is empty"):
        read(text)


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=3000))
def test_garbage_is_refused_and_never_a_traceback(data: bytes) -> None:
    with pytest.raises(InputError):
        read(data)


def test_a_line_of_many_megabytes_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "CHUNK_BYTES", 1 << 16)
    huge = b"x" * (2 << 20) + b" GPU KV cache size: 1 tokens\n"
    report = read(huge + kv(23_296).encode() + b"\n" + huge)
    assert [engine.kv_tokens for engine in report.engines] == [23_296]


def test_memory_stays_bounded_however_long_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "CHUNK_BYTES", 1 << 16)
    asked: list[int] = []

    class Endless:
        def __init__(self) -> None:
            self.left = 200

        def read(self, size: int, /) -> bytes:
            asked.append(size)
            self.left -= 1
            row = b'INFO:     10.0.0.1:4 - "POST /v1/completions HTTP/1.1" 200 OK\n'
            return (row * 1100)[:size] if self.left > 0 else b""

    with pytest.raises(InputError):
        read_log(Endless())
    assert set(asked) == {1 << 16}
    assert len(asked) == 200


def test_a_settled_log_is_passed_over_but_a_new_start_in_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "CHUNK_BYTES", 1 << 14)
    serving = 'INFO:     10.0.0.1:4 - "POST /v1/completions HTTP/1.1" 200 OK\n' * 2000
    stray = kv(1) + "\n"  # no server writes this line long after it was ready
    after = DEFAULT.decode() + serving + stray + serving
    assert read(after).engines[0].kv_tokens == 524_288
    over = "INFO:     Application shutdown complete.\n"
    again = DEFAULT.decode() + serving + over + serving + DEFAULT.decode().replace("524,288", "400,000")
    report = read(again)
    assert (report.starts, report.engines[0].kv_tokens) == (2, 400_000)


def test_a_second_server_without_prefixes_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "CHUNK_BYTES", 1 << 12)
    banner = "(APIServer pid={}) INFO 06-01 09:20:16 [utils.py:278] non-default args: {{'port': {}}}"
    ready = "INFO:     Application startup complete."
    filler = ["INFO:     nothing"] * 1000
    rows = [banner.format(1, 1), banner.format(2, 2), kv(90_000, "(EngineCore pid=11) "), ready, *filler]
    report = read([*rows, kv(70_000, "(EngineCore pid=12) "), ready, *filler])
    assert [engine.kv_tokens for engine in report.engines] == [90_000, 70_000]


def test_secrets_among_the_flags_are_masked() -> None:
    flags = (
        "{'api_key': ['sk-very-secret'], 'hf_token': 'hf_x', 'max_num_seqs': 8, 'weird': <object at 0x7f>}"
    )
    report = read([f"INFO 06-01 09:20:16 [utils.py:278] non-default args: {flags}", kv(23_296)])
    assert report.flags["api_key"] == report.flags["hf_token"] == "(masked)"
    assert report.max_num_seqs == 8
    assert "secret" not in repr(report)
    assert "hf_x" not in repr(report)
