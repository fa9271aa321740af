"""KV arithmetic against worked values of public logs, of recorded servers, and against itself."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knee.core.errors import UsageError
from knee.fit.config import read_model, shape_of
from knee.fit.kv import (
    KvPlan,
    Parallel,
    blocks_in,
    blocks_per_request,
    concurrency,
    kv_dtype_bytes,
    kv_tokens,
    kv_tokens_before_0_21,
    largest_context,
    plan_kv,
)
from knee.fit.quantized import plain
from knee.fit.shape import KvLayers, ModelShape, Parameters

SHARED = Path(__file__).parents[2].parent / "shared"
MODELS = Path(__file__).parents[1] / "data/models"
GIB = 2**30


def shape(*kv: KvLayers, heads: int = 64) -> ModelShape:
    return ModelShape(
        architecture="Test",
        layers=sum(item.count for item in kv),
        hidden_size=64,
        intermediate_size=64,
        attention_heads=heads,
        kv_heads=max(item.kv_heads for item in kv),
        vocab_size=64,
        max_position=1 << 20,
        dtype_bytes=2,
        kv=kv,
        parameters=Parameters(embedding=1, head=1, attention=1),
        quantization=plain(2),
    )


def full(count: int, heads: int = 8, size: int = 128) -> KvLayers:
    return KvLayers(kind="full", count=count, kv_heads=heads, key_dim=size, value_dim=size)


def sliding(count: int, window: int, heads: int = 8, size: int = 128) -> KvLayers:
    return KvLayers(kind="sliding", count=count, kv_heads=heads, key_dim=size, value_dim=size, window=window)


LLAMA = plan_kv(shape(full(32)), Parallel())


def test_blocks_times_block_size_are_tokens() -> None:
    """127,626 x 16 = 2,042,016."""
    assert kv_tokens_before_0_21(LLAMA, 127_626) == 2_042_016
    cpu = plan_kv(shape(full(4, 2, 64)), Parallel(), block_size=128)
    assert kv_tokens_before_0_21(cpu, 5461) == 699_008


def test_all_layers_with_a_sliding_window() -> None:
    """2,198,512 tokens, window 4096, budget 8192, context 16,384: 137,407 / 769 = 178.68 (vllm PR 19029)."""
    plan = plan_kv(shape(sliding(32, 4096)), Parallel(), in_flight_tokens=8192)
    assert kv_tokens_before_0_21(plan, 137_407) == 2_198_512
    assert blocks_per_request(plan, 16_384) == 769
    assert round(concurrency(plan, 137_407, 16_384), 2) == 178.68


def test_full_attention_concurrency_counts_whole_blocks() -> None:
    """29,220 / 313 = 93.35."""
    assert blocks_per_request(LLAMA, 5000) == 313
    assert round(concurrency(LLAMA, 29_220, 5000), 2) == 93.35


def test_the_bytes_of_a_long_context() -> None:
    """48 layers x 4 heads x 128 x 2 x 2 B x 262,144 = 24.0 GiB."""
    plan = plan_kv(shape(full(48, 4)), Parallel())
    assert plan.bytes_per_token * 262_144 == 24 * GIB
    assert LLAMA.bytes_per_token * 131_072 == 16 * GIB  # tpu-inference PR 223: 16.00 GiB


@pytest.mark.parametrize(("tp", "heads"), [(1, 8), (2, 4), (4, 2), (8, 1), (16, 1), (32, 1)])
def test_heads_are_replicated_once_there_are_more_gpus_than_heads(tp: int, heads: int) -> None:
    plan = plan_kv(shape(full(32)), Parallel(tp=tp))
    assert plan.bytes_per_token == 2 * 32 * heads * 128 * 2


def test_mla_keeps_one_latent_vector_on_every_gpu() -> None:
    model = read_model(MODELS / "deepseek-v3.json")
    for tp in (1, 8, 16):
        assert plan_kv(model, Parallel(tp=tp)).bytes_per_token == 61 * (512 + 64) * 2
    assert plan_kv(model, Parallel(tp=8), kv_dtype="fp8").bytes_per_token == 61 * 576


def test_pipeline_stages_keep_their_own_layers_and_the_largest_counts() -> None:
    assert plan_kv(shape(full(61)), Parallel(pp=4)).bytes_per_token == LLAMA.bytes_per_token / 32 * 16


def test_fp8_halves_the_bytes_and_an_unknown_type_is_refused() -> None:
    assert plan_kv(shape(full(32)), Parallel(), kv_dtype="fp8").bytes_per_token == LLAMA.bytes_per_token / 2
    with pytest.raises(UsageError, match="not a KV cache type: 'int3'"):
        kv_dtype_bytes("int3", 2)


@pytest.mark.parametrize(
    ("name", "tp", "kv_dtype", "block_size", "padded"),
    [
        ("qwen3.5-27b", 1, "auto", 784, 0.13),
        ("qwen3.5-27b", 1, "fp8", 1568, 0.13),
        ("qwen3.5-9b", 1, "auto", 528, 0.76),
        ("qwen3.5-9b", 1, "fp8", 1056, 0.76),
        ("qwen3-next-80b-a3b", 2, "auto", 544, 1.49),
    ],
)
def test_a_state_as_large_as_a_page_makes_blocks_large(
    name: str, tp: int, kv_dtype: str, block_size: int, padded: float
) -> None:
    """Public logs: "Setting attention block size to 784 tokens", "Padding mamba page size by 0.13%"."""
    model = read_model(MODELS / f"{name}.json")
    plan = plan_kv(model, Parallel(tp=tp), kv_dtype=kv_dtype)
    assert plan.block_size == block_size
    states = next(item.count for item in model.kv if item.kind == "state")
    assert round((plan.page_bytes / (plan.state_bytes / states) - 1) * 100, 2) == padded


def test_a_model_of_states_alone_holds_one_block_a_request() -> None:
    plan = plan_kv(
        shape(KvLayers(kind="state", count=24, conv_elements=1000, ssm_elements=10_000)), Parallel()
    )
    assert plan.bytes_per_token == 0
    assert blocks_per_request(plan, 1) == blocks_per_request(plan, 100_000) == 1
    assert plan.block_bytes == 24 * (2 * 1000 + 4 * 10_000)


def test_a_hybrid_model_prints_tokens_that_its_concurrency_contradicts() -> None:
    """vllm issue 40691 (0.19): 290,864 tokens, and 33.04 requests of 32,768."""
    plan = plan_kv(read_model(MODELS / "qwen3.5-27b.json"), Parallel())
    assert [group.kind for group in plan.groups] == ["full", "state", "state", "state"]
    assert blocks_per_request(plan, 32_768) == 42 + 3
    assert kv_tokens_before_0_21(plan, 1487) == 290_864
    assert round(concurrency(plan, 1487, 32_768), 2) == 33.04
    assert kv_tokens(plan, 1487, 32_768) == 1_082_800


def test_groups_of_a_sliding_window_hybrid_are_padded() -> None:
    plan = plan_kv(read_model(MODELS / "gemma-3-27b.json"), Parallel(), in_flight_tokens=8192)
    assert [(group.kind, group.layers) for group in plan.groups] == [("sliding", 10)] * 6 + [("full", 10)]
    assert plan.padding_layers == 8
    assert blocks_per_request(plan, 131_072) == 131_072 // 16 + 6 * (-(-(1023 + 8192) // 16) + 1)


def test_equal_kinds_make_two_groups_and_nearly_equal_ones_no_more() -> None:
    even = plan_kv(read_model(MODELS / "gpt-oss-20b.json"), Parallel(), in_flight_tokens=2048)
    assert [(group.kind, group.layers, group.window) for group in even.groups] == [
        ("sliding", 12, 128),
        ("full", 12, 0),
    ]
    nearly = plan_kv(shape(full(10), sliding(12, 512)), Parallel())
    assert [(group.kind, group.layers, group.padding) for group in nearly.groups] == [
        ("full", 12, 2),
        ("sliding", 12, 0),
    ]


def test_without_the_hybrid_manager_windows_pay_for_the_whole_context() -> None:
    model = read_model(MODELS / "gemma-3-27b.json")
    plan = plan_kv(model, Parallel(), hybrid=False)
    assert [(group.kind, group.layers) for group in plan.groups] == [("full", 62)]
    assert blocks_per_request(plan, 131_072) == 8192


TINY = shape_of(json.loads((SHARED / "captures/model/config.json").read_text()))
KV_SHAPE = plan_kv(shape(full(32)), Parallel(), block_size=128)


@pytest.mark.parametrize(
    ("plan", "kv_bytes", "blocks", "context", "tokens"),
    [
        (plan_kv(TINY, Parallel(), block_size=128), GIB, 4096, 2048, 524_288),
        (plan_kv(TINY, Parallel(), block_size=128), 6 << 20, 24, 1024, 3072),
        (plan_kv(TINY, Parallel(), block_size=128), int(0.549 * GIB), 2248, 8192, 287_744),
        (KV_SHAPE, GIB, 64, 8064, 8192),
    ],
    ids=["1 GiB", "6 MiB", "0.55 GiB", "8B shape"],
)
def test_recorded_servers_size_their_cache_alike(
    plan: KvPlan, kv_bytes: int, blocks: int, context: int, tokens: int
) -> None:
    assert blocks_in(plan, kv_bytes) == blocks
    assert kv_tokens(plan, blocks, context) == tokens


def test_the_largest_context_of_a_recorded_start() -> None:
    """32,768 asked of 1 GiB: vLLM said 4.0 GiB needed, 0.98 available, 8,064 at most; then 64 / 63."""
    assert KV_SHAPE.bytes_per_token * 32_768 == 4 * GIB
    assert largest_context(KV_SHAPE, 64, 32_768) == 8064
    assert round(63 * KV_SHAPE.block_bytes / GIB, 2) == 0.98
    assert concurrency(KV_SHAPE, 64, 8064) == 1.0158730158730158


@pytest.mark.parametrize(
    ("name", "kv_gib", "tokens"),
    [
        ("qwen2.5-1.5b", 0.56, 20_992),
        ("llama-3.1-8b", 19.92, 163_168),
        ("llama-3.1-8b", 3.81, 31_232),
        ("llama-3.1-8b", 11.12, 91_056),
    ],
)
def test_public_logs_give_the_same_tokens_for_their_gigabytes(name: str, kv_gib: float, tokens: int) -> None:
    """Within half of the last digit of the printed GiB and one block."""
    plan = plan_kv(read_model(MODELS / f"{name}.json"), Parallel())
    made = [kv_tokens_before_0_21(plan, blocks_in(plan, (kv_gib + half) * GIB)) for half in (-0.0051, 0.0051)]
    assert made[0] - 16 <= tokens <= made[1] + 16


KINDS = st.lists(
    st.one_of(
        st.builds(full, st.integers(1, 40), st.sampled_from([1, 2, 8]), st.sampled_from([64, 128])),
        st.builds(
            sliding,
            st.integers(1, 40),
            st.integers(16, 5000),
            st.sampled_from([8]),
            st.sampled_from([128]),
        ),
    ),
    min_size=1,
    max_size=2,
)


@given(KINDS, st.integers(2, 200_000), st.integers(1, 1 << 18), st.sampled_from([0, 2048, 8192]))
def test_the_largest_context_fits_and_the_next_does_not(
    kinds: list[KvLayers], blocks: int, limit: int, in_flight: int
) -> None:
    plan = plan_kv(shape(*kinds), Parallel(), in_flight_tokens=in_flight)
    best = largest_context(plan, blocks, limit)
    assert 0 <= best <= limit
    assert best == 0 or blocks_per_request(plan, best) <= blocks - 1
    assert best == limit or blocks_per_request(plan, best + 1) > blocks - 1


@given(KINDS, st.integers(1, 1 << 18), st.integers(1, 1 << 18))
def test_a_longer_request_never_holds_fewer_blocks(kinds: list[KvLayers], one: int, other: int) -> None:
    plan = plan_kv(shape(*kinds), Parallel(), in_flight_tokens=2048)
    short, long = sorted((one, other))
    assert blocks_per_request(plan, short) <= blocks_per_request(plan, long)
    off = plan_kv(shape(*kinds), Parallel(), in_flight_tokens=2048, hybrid=False)
    assert plan.bytes_per_token == off.bytes_per_token


@given(KINDS, st.integers(0, 40), st.sampled_from([1, 2, 4, 8]), st.sampled_from(["auto", "fp8"]))
def test_groups_hold_every_layer_and_blocks_stay_within_memory(
    kinds: list[KvLayers], gib: int, tp: int, kv_dtype: str
) -> None:
    plan = plan_kv(shape(*kinds), Parallel(tp=tp), kv_dtype=kv_dtype)
    held = sum(group.layers for group in plan.groups) - plan.padding_layers
    assert held == sum(item.count for item in kinds)
    assert blocks_in(plan, gib * GIB) * plan.block_bytes <= gib * GIB
