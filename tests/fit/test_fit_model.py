"""Configurations to shapes, and weights against what vLLM printed in public logs."""

import json
from pathlib import Path
from typing import Any

import pytest

from knee.core.errors import InputError, UsageError
from knee.fit.config import read_model, shape_of
from knee.fit.kv import Parallel
from knee.fit.quantized import FLAGS, asked_for, from_config
from knee.fit.weights import active_bytes, weight_bytes

MODELS = Path(__file__).parents[1] / "data/models"
GIB = 2**30
LLAMA: dict[str, Any] = json.loads((MODELS / "llama-3.1-8b.json").read_text())


@pytest.mark.parametrize(
    ("name", "tp", "printed_gib", "source"),
    [
        ("llama-3.1-8b", 1, 14.96, "vllm pull request 10511"),
        ("llama-3.1-8b", 2, 7.48, "vllm pull request 10511"),
        ("llama-3.1-8b", 1, 14.9595, "vllm issue 12330"),
        ("llama-3.1-8b", 1, 14.9888, "vllm issue 10517"),
        ("llama-3.1-70b-w8a8", 1, 67.7229, "vllm pull request 12569"),
        ("qwen2.5-1.5b", 1, 2.89, "a public repository's start-up log"),
        ("qwen3-30b-a3b", 2, 28.4767, "a public repository's start-up log"),
        ("qwen3-30b-a3b", 4, 14.2474, "vllm issue 17469"),
    ],
)
def test_weights_are_within_one_percent_of_the_log(
    name: str, tp: int, printed_gib: float, source: str
) -> None:
    assert source
    ours = weight_bytes(read_model(MODELS / f"{name}.json"), Parallel(tp=tp)) / GIB
    assert abs(ours / printed_gib - 1) < 0.01


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("llama-3.1-8b", 8.03, 7.50),
        ("qwen3-30b-a3b", 30.53, 3.04),
        ("qwen2.5-1.5b", 1.54, 1.54),
        ("deepseek-v3", 671.03, 36.6),
        ("gpt-oss-20b", 20.9, 3.6),
        ("gemma-3-27b", 27.0, 27.0),
        ("bamba-9b", 9.78, 9.25),
        ("nemotron-h-8b", 8.10, 7.56),
        ("qwen3-next-80b-a3b", 79.7, 3.6),
    ],
)
def test_parameters_are_those_the_models_are_named_for(name: str, billions: float, active: float) -> None:
    parameters = read_model(MODELS / f"{name}.json").parameters
    assert parameters.total / 1e9 == pytest.approx(billions, rel=0.01)
    assert parameters.active / 1e9 == pytest.approx(active, rel=0.06)


def test_tensor_parallelism_splits_all_but_small_parts() -> None:
    model = read_model(MODELS / "llama-3.1-8b.json")
    whole = weight_bytes(model, Parallel())
    for tp in (2, 4, 8):
        part = weight_bytes(model, Parallel(tp=tp))
        assert whole / tp <= part < 1.01 * whole / tp
    beyond = weight_bytes(model, Parallel(tp=16)) * 16
    assert beyond > whole + 32 * 2 * 4096 * 8 * 128 * 2 * 0.9  # the KV projections are there twice


def test_a_pipeline_stage_holds_its_layers_and_one_end() -> None:
    model = read_model(MODELS / "llama-3.1-8b.json")
    whole, half = weight_bytes(model, Parallel()), weight_bytes(model, Parallel(pp=2))
    assert whole / 2 <= half < whole * 0.55


def test_more_tokens_read_more_experts() -> None:
    model = read_model(MODELS / "qwen3-30b-a3b.json")
    read = [active_bytes(model, Parallel(), tokens) for tokens in (1, 8, 64, 1024)]
    assert read == sorted(read)
    assert read[0] < 0.15 * read[-1]
    assert read[-1] <= weight_bytes(model, Parallel())


@pytest.mark.parametrize(
    ("config", "linear"),
    [
        (None, 2.0),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 0.5 + 2.5 / 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 1 + 3 / 128),
        ({"quant_method": "fp8"}, 1.0),
        ({"quant_method": "mxfp4"}, 0.53),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 0.56),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 0.53),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8}}}}, 1.0),
    ],
)
def test_bytes_a_parameter_of_known_quantizations(config: dict[str, Any] | None, linear: float) -> None:
    assert from_config(config, 2).linear_bytes == pytest.approx(linear, abs=0.005)


def test_what_is_kept_unquantized_is_counted_so() -> None:
    skipped = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    found = from_config(skipped, 2)
    assert (found.attention_bytes, found.expert_bytes) == (2, 0.53125)


@pytest.mark.parametrize("name", [*FLAGS, "none"])
def test_a_quantization_can_be_asked_for(name: str) -> None:
    size = weight_bytes(shape_of(LLAMA, quantization=asked_for(name, 2)), Parallel()) / GIB
    assert 4.5 < size < 15


def test_an_unknown_quantization_is_refused() -> None:
    with pytest.raises(InputError, match="'squeeze' is not known here"):
        from_config({"quant_method": "squeeze"}, 2)
    with pytest.raises(UsageError, match="not a quantization: 'int3'"):
        asked_for("int3", 2)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({}, "names no architecture"),
        ({"architectures": []}, "names no architecture"),
        ({"architectures": ["FooForCausalLM"]}, "'FooForCausalLM' is not known here, so no number is given"),
        ({"architectures": ["LlamaForCausalLM"]}, "num_hidden_layers is None, not a whole number"),
        ({**LLAMA, "hidden_size": "big"}, "hidden_size is 'big', not a whole number"),
        ({**LLAMA, "num_hidden_layers": -1}, "num_hidden_layers is -1"),
        ({**LLAMA, "layer_types": ["full_attention"]}, "layer_types: 1 entries for 32 layers"),
        ({**LLAMA, "architectures": ["BambaForCausalLM"]}, "attn_layer_indices is None, not a list"),
        ({**LLAMA, "architectures": ["NemotronHForCausalLM"]}, "hybrid_override_pattern is ''"),
        ({**LLAMA, "architectures": ["GraniteMoeHybridForCausalLM"]}, "layer_types are"),
        ({**LLAMA, "layer_types": ["magic"] * 32}, r"unknown kinds \['magic'\]"),
    ],
)
def test_a_configuration_that_cannot_be_counted_is_refused(config: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        shape_of(config)


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff\xfe", b"null"])
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(InputError):
        read_model(tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        read_model(tmp_path / "nothing.json")


def test_encoders_are_said_not_to_be_counted() -> None:
    assert "only the language model is counted" in read_model(MODELS / "gemma-3-27b.json").notes[0]
