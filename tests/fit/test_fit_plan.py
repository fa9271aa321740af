"""A model on a GPU: ranges, verdicts, levers and rooflines, and the text made of them."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from knee.catalog.accelerators import Accelerator, accelerator, all_accelerators
from knee.core.errors import UsageError
from knee.fit.config import read_model
from knee.fit.kv import Parallel, blocks_per_request
from knee.fit.markdown import plan_lines
from knee.fit.plan import GIB, MemoryPlan, Options, plan_memory, requests_that_fit
from knee.fit.question import answer_model
from knee.fit.shape import ModelShape
from knee.fit.traffic import Traffic

MODELS = Path(__file__).parents[1] / "data/models"
LLAMA = read_model(MODELS / "llama-3.1-8b.json")
H100 = accelerator("H100")


def plan(model: ModelShape = LLAMA, gpu: str = "H100", context: int = 32_768, **more: object) -> MemoryPlan:
    options = Options(context=context, version="0.33.0", **more)  # type: ignore[arg-type]
    return plan_memory(model, accelerator(gpu), options)


def test_defaults_come_from_the_catalog_by_version_and_device() -> None:
    assert (plan().utilization, plan().max_num_seqs, plan().max_num_batched_tokens) == (0.92, 1024, 8192)
    old = plan_memory(LLAMA, accelerator("A100-80GB"), Options(context=8192, version="0.11.0"))
    assert (old.utilization, old.max_num_seqs, old.max_num_batched_tokens) == (0.9, 256, 2048)
    given = plan(utilization=0.5, max_num_seqs=7, max_num_batched_tokens=512)
    assert (given.utilization, given.max_num_seqs, given.max_num_batched_tokens) == (0.5, 7, 512)


def test_a_public_start_lies_in_the_range() -> None:
    """vllm pull request 10511: Llama-3-8B on H100 at 0.9: 53.29 GiB of cache; with TP 2 weights of 7.48."""
    found = plan_memory(LLAMA, H100, Options(context=8192, version="0.8.0", utilization=0.9))
    assert found.kv_gib.low < 53.29 < found.kv_gib.high
    assert round(found.requested_gib, 1) == 71.2


def test_graph_memory_is_reserved_from_0_20_on_and_not_when_eager() -> None:
    before = plan_memory(LLAMA, H100, Options(context=8192, version="0.19.0", utilization=0.9))
    after = plan_memory(LLAMA, H100, Options(context=8192, version="0.20.0", utilization=0.9))
    assert before.kv_gib.low - after.kv_gib.low == pytest.approx(2.1)
    eager = plan_memory(
        LLAMA, H100, Options(context=8192, version="0.20.0", utilization=0.9, enforce_eager=True)
    )
    assert eager.kv_gib == before.kv_gib


def test_verdicts() -> None:
    assert plan().verdict == "fits"
    assert plan(gpu="L4").verdict == "borderline"
    assert plan(gpu="T4").verdict == "does not fit"
    assert plan(gpu="T4").largest_context.high == 0
    assert plan(gpu="L4", context=8192).verdict == "fits"


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(sorted(MODELS.glob("*.json"))),
    st.sampled_from(all_accelerators()),
    st.integers(1, 32_768),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from(["auto", "fp8"]),
)
def test_ranges_are_ordered_and_what_fits_fits(
    path: Path, gpu: Accelerator, context: int, tp: int, kv: str
) -> None:
    model = read_model(path)
    assume(model.attention_heads % tp == 0 and context <= model.max_position)
    options = Options(context=context, version="0.33.0", parallel=Parallel(tp=tp), kv_dtype=kv)
    found = plan_memory(model, gpu, options)
    for span in (found.kv_gib, found.blocks, found.largest_context, found.activations_gib, found.concurrency):
        assert span.low <= span.high
    each = requests_that_fit(found, context)
    for count, blocks in ((each.low, found.blocks.low), (each.high, found.blocks.high)):
        assert count * blocks_per_request(found.kv, context) <= max(0, blocks - 1)
    assert (found.verdict == "fits") == (each.low >= 1)
    assert (found.verdict == "does not fit") == (each.high < 1)
    taken = found.weights_gib + found.activations_gib.high + found.non_torch_gib.high + found.graphs_gib.high
    assert taken + max(0.0, found.kv_gib.low) <= max(taken, found.requested_gib) + 1e-9


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"context": 0}, "at least 1"),
        ({"context": 200_000}, "beyond the model's 131,072"),
        ({"context": 10, "parallel": Parallel(tp=3)}, "cannot be split over 3 GPUs"),
        ({"context": 10, "parallel": Parallel(tp=0)}, "at least 1"),
        ({"context": 10, "parallel": Parallel(pp=64)}, "cannot be split over 64 stages"),
        ({"context": 10, "utilization": 1.5}, "between 0 and 1"),
        ({"context": 10, "kv_dtype": "int3"}, "not a KV cache type"),
        ({"context": 10, "version": "new"}, "not a version"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        plan_memory(LLAMA, H100, Options(**{"version": "0.33.0", **options}))  # type: ignore[arg-type]


def test_levers_say_how_much_each_buys() -> None:
    answer = answer_model(LLAMA, H100, Options(context=32_768, version="0.33.0"), tokens=6000)
    times = {lever.flag: lever.times for lever in answer.levers}
    assert times["--kv-cache-dtype fp8"] == pytest.approx(2, abs=0.05)
    assert times["--tensor-parallel-size 2"] == pytest.approx(2.3, abs=0.1)
    assert 1 < (times["weights in fp8"] or 0) < (times["weights in int4"] or 0) < 1.3
    assert times["--max-model-len 16384"] == 1
    for lever in answer.levers:
        assert lever.note
    quantized = read_model(MODELS / "llama-3.1-70b-w8a8.json")
    none = answer_model(quantized, H100, Options(context=32_768, version="0.33.0", kv_dtype="fp8"))
    assert not [lever.flag for lever in none.levers if lever.flag.startswith(("weights", "--kv-cache-dtype"))]
    assert none.verdict.startswith("does not fit")
    assert [lever.times for lever in none.levers] == [None] * len(none.levers)


def test_rooflines_are_bandwidth_and_arithmetic() -> None:
    roof = answer_model(LLAMA, H100, Options(context=8192, version="0.33.0")).roofline
    assert roof.step_ms == pytest.approx((16.06e9 - 128_256 * 4096 * 2) / 3.35e12 * 1e3, rel=0.01)
    assert roof.context_token_ms == pytest.approx(131_072 / 3.35e12 * 1e3)
    assert roof.prefill_token_ms == pytest.approx(2 * 7.505e9 / 989.4e12 * 1e3, rel=0.01)
    step = roof.step_ms + roof.sequences * roof.context * roof.context_token_ms
    assert roof.decode_step_ms == pytest.approx(step)
    fp8 = answer_model(
        read_model(MODELS / "deepseek-v3.json"),
        accelerator("H200"),
        Options(context=8192, version="0.33.0", parallel=Parallel(tp=8)),
    ).roofline
    assert "1978.9 TFLOP/s FP8" in fp8.basis


def traffic(*pairs: tuple[int, int]) -> Traffic:
    prompt, output = np.asarray(pairs, dtype=np.int64).T
    return Traffic(name="test", prompt=prompt, output=output)


def test_a_workload_gives_its_tail_and_the_count_to_set() -> None:
    mixed = traffic(*[(500, 100)] * 95, *[(20_000, 1000)] * 5)
    answer = answer_model(LLAMA, H100, Options(context=32_768, version="0.33.0"), traffic=mixed)
    assert (answer.tokens, answer.basis) == (600, "p95 of test")
    assert answer.tail is not None
    assert answer.tail.full_length < answer.requests.low  # the five long ones in a hundred count
    assert answer.recommended == int(answer.tail.full_length * 0.9)
    short = answer_model(LLAMA, H100, Options(context=4096, version="0.33.0"), traffic=mixed)
    assert any("5.0% of the workload is longer than the context" in note for note in short.notes)
    with pytest.raises(UsageError, match="every request of test is longer"):
        answer_model(LLAMA, H100, Options(context=100, version="0.33.0"), traffic=mixed)


def test_the_answer_is_markdown_and_json() -> None:
    options = Options(context=32_768, version="0.33.0", parallel=Parallel(tp=2))
    answer = answer_model(LLAMA, H100, options, tokens=6000)
    lines = plan_lines(answer)
    assert lines[0] == f"**{answer.verdict}**"
    tables = [line for line in lines if line.startswith("|")]
    assert len({line.count("|") for line in tables[:10]}) == 1
    text = "\n".join(lines)
    for wanted in ("assumed range", "lower bounds, calibrate", "exact count", "2 x H100 (TP 2, PP 1, DP 1)"):
        assert wanted in text
    read = msgspec.json.decode(msgspec.json.encode(answer))
    assert read["memory"]["weights_gib"] == pytest.approx(7.48, abs=0.01)
    assert read["fits"] is True


def test_notes_say_what_is_unusual() -> None:
    options = Options(context=8192, version="0.33.0", parallel=Parallel(tp=8))
    hybrid = answer_model(
        read_model(MODELS / "qwen3.5-27b.json"), H100, Options(context=8192, version="0.33.0")
    )
    assert any("blocks of 784 tokens" in note for note in hybrid.notes)
    heads = answer_model(read_model(MODELS / "qwen3-30b-a3b.json"), H100, options)
    assert any("4 KV heads on 8 GPUs" in note for note in heads.notes)
    many = answer_model(LLAMA, H100, msgspec.structs.replace(options, parallel=Parallel(dp=4)))
    assert any("4 engines, each with a cache of its own" in note for note in many.notes)
    packed = answer_model(
        read_model(MODELS / "gpt-oss-20b.json"), H100, Options(context=8192, version="0.33.0")
    )
    assert any("mxfp4" in note for note in packed.notes)
    assert packed.memory.kv_gib.low * GIB > 0
