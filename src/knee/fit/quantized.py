"""Bytes a parameter under the quantization that a config.json names, or that a flag asks for."""

from collections.abc import Iterable
from typing import Any

from knee.core.errors import InputError, UsageError
from knee.fit.shape import Quantization

_FP8 = 1 + 4 / (128 * 128)
_MXFP4 = 0.5 + 1 / 32
_NVFP4 = 0.5 + 1 / 16


def _grouped(bits: float, group: int, zero_bits: float) -> float:
    """`bits` a weight, with a two-byte scale and a zero point for each group of `group` weights."""
    return bits / 8 + (2 + zero_bits / 8) / group


FLAGS: dict[str, float] = {
    "fp8": _FP8,
    "int8": 1.0,
    "int4": _grouped(4, 128, 0),
    "mxfp4": _MXFP4,
    "nvfp4": _NVFP4,
}
"""What `--quantization` may ask for instead of the configuration's: bytes a parameter of linear layers."""


def asked_for(name: str, dtype_bytes: int) -> Quantization:
    """All linear layers stored as `name`.

    Raises:
        UsageError: there is no such type here.
    """
    if name in ("none", "auto"):
        return plain(dtype_bytes)
    if name not in FLAGS:
        raise UsageError(f"not a quantization: {name!r}", f"known: none, {', '.join(FLAGS)}")
    return _all(name, FLAGS[name])


def plain(dtype_bytes: int) -> Quantization:
    """Not quantized."""
    return _all("", dtype_bytes)


def _all(name: str, size: float) -> Quantization:
    return Quantization(name=name, linear_bytes=size, attention_bytes=size, expert_bytes=size)


def from_config(config: dict[str, Any] | None, dtype_bytes: int) -> Quantization:
    """What `quantization_config` says.

    Raises:
        InputError: it names a method that is not known here.
    """
    if not config:
        return plain(dtype_bytes)
    method = str(config.get("quant_method", "")).lower()
    size = _bytes_of(method, config)
    skipped = [str(name) for key in _SKIP_KEYS for name in _names(config.get(key))]
    keeps_attention = any("attn" in name or "attention" in name for name in skipped)
    return Quantization(
        name=method,
        linear_bytes=size,
        attention_bytes=dtype_bytes if keeps_attention else size,
        expert_bytes=size,
    )


_SKIP_KEYS = ("ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules")


def _names(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list | tuple) else ()


def _bytes_of(method: str, config: dict[str, Any]) -> float:
    bits = config.get("bits") or config.get("w_bit")
    group = config.get("group_size") or config.get("q_group_size") or 128
    group = group if isinstance(group, int) and group > 0 else 128
    if method in ("awq", "gptq", "auto-round", "auto_round", "moe_wna16", "gptq_marlin", "awq_marlin"):
        width = float(bits or 4)
        return _grouped(width, group, width)
    if method in ("fp8", "fbgemm_fp8"):
        return _FP8
    if method == "mxfp4":
        return _MXFP4
    if method == "bitsandbytes":
        return _grouped(4, 64, 0) if config.get("load_in_4bit") else 1.0
    if method in ("modelopt", "modelopt_fp4"):
        algorithm = str(
            config.get("quant_algo") or (config.get("quantization") or {}).get("quant_algo") or ""
        )
        return _NVFP4 if "FP4" in algorithm.upper() else _FP8
    if method == "compressed-tensors":
        return _compressed(config)
    raise InputError(
        f"quantization method {method or '?'!r} is not known here",
        "give --quantization none, fp8, int8, int4, mxfp4 or nvfp4 to say how the weights are stored",
    )


def _compressed(config: dict[str, Any]) -> float:
    groups = config.get("config_groups") or {}
    first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = (first or {}).get("weights") or {}
    bits, kind = weights.get("num_bits"), str(weights.get("type", "int"))
    if not isinstance(bits, int):
        raise InputError(
            "quantization_config of kind compressed-tensors without weights.num_bits", "give --quantization"
        )
    group = weights.get("group_size") or 0
    if bits == 4 and kind == "float":
        return _NVFP4
    return _grouped(bits, group, 0) if isinstance(group, int) and group > 0 else bits / 8
