"""What a running server says of its capacity, from the pages it answers with.

These functions read answers; fetching them is the command's business. Everything but `/metrics` is
optional: a server without `/server_info` (it needs VLLM_SERVER_DEV_MODE=1) still gives its cache.
"""

import re
from typing import Any

from knee.catalog.flags import gpu_default
from knee.core.errors import TargetError, UsageError
from knee.fit.startup import EngineKv, Memory, StartupReport

_CACHE_INFO = re.compile(r"^(?:ray_)?vllm[:_]cache_config_info\{(?P<labels>.*)\}\s+\S+", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_SECTIONS = ("model_config", "cache_config", "parallel_config", "scheduler_config")


def report_of(
    metrics: str,
    *,
    models: dict[str, Any] | None = None,
    version: str = "",
    server_info: dict[str, Any] | None = None,
    name: str = "the server",
) -> StartupReport:
    """A report from `/metrics`, `/v1/models`, `/version` and `/server_info?config_format=json`.

    Raises:
        TargetError: the metrics page holds no cache configuration, so this is no vLLM that shows its metrics.
    """
    found = [dict(_LABEL.findall(match["labels"])) for match in _CACHE_INFO.finditer(metrics)]
    if not found:
        raise TargetError(
            f"{name} shows no vllm:cache_config_info on /metrics",
            "is it vLLM, 0.6.0 or newer, and started without --disable-log-stats?",
        )
    info = _sections(server_info)
    length = _model_length(models) or _whole(info.get("max_model_len"))
    engines = tuple(_engine(labels, length) for labels in found)
    first = found[0]
    return StartupReport(
        status="ready",
        version=version,
        model=_model_name(models),
        flags={},
        config={
            key: str(info[key])
            for key in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "dtype")
            if info.get(key) is not None
        }
        | {"kv_cache_dtype": first.get("cache_dtype", "auto")},
        max_model_len=length,
        max_num_seqs=_whole(info.get("max_num_seqs")) or _default_cap(version),
        max_num_batched_tokens=_whole(info.get("max_num_batched_tokens")),
        engines=engines,
        memory=Memory(utilization=_number(first.get("gpu_memory_utilization"))),
        notes=_notes(first, info),
    )


def _engine(labels: dict[str, str], max_model_len: int | None) -> EngineKv:
    """One engine.

    `kv_cache_size_tokens` (0.24 and newer) is right for every model; blocks x block size is not.
    """
    blocks, size = _whole(labels.get("num_gpu_blocks")), _whole(labels.get("block_size"))
    tokens = _whole(labels.get("kv_cache_size_tokens"))
    if tokens is None and blocks is not None and size is not None:
        tokens = blocks * size
    return EngineKv(
        name=labels.get("engine", "0"),
        kv_tokens=tokens,
        kv_blocks=blocks,
        block_size=size,
        max_model_len=max_model_len,
        concurrency=_number(labels.get("kv_cache_max_concurrency")),
    )


def _notes(labels: dict[str, str], info: dict[str, Any]) -> tuple[str, ...]:
    notes = []
    if _whole(labels.get("kv_cache_size_tokens")) is None:
        notes.append(
            "tokens are blocks x block size, which overstates models with several kinds of layers; "
            "vLLM 0.24 and newer say it exactly"
        )
    if not info:
        notes.append("/server_info is off (VLLM_SERVER_DEV_MODE=1 turns it on): flags are not known")
    return tuple(notes)


def _sections(server_info: dict[str, Any] | None) -> dict[str, Any]:
    whole = (server_info or {}).get("vllm_config")
    if not isinstance(whole, dict):
        return {}
    merged: dict[str, Any] = {}
    for section in _SECTIONS:
        part = whole.get(section)
        merged |= part if isinstance(part, dict) else {}
    return merged


def _models(models: dict[str, Any] | None) -> list[dict[str, Any]]:
    data = (models or {}).get("data")
    return [item for item in data if isinstance(item, dict)] if isinstance(data, list) else []


def _model_length(models: dict[str, Any] | None) -> int | None:
    return next((_whole(item.get("max_model_len")) for item in _models(models)), None)


def _model_name(models: dict[str, Any] | None) -> str:
    return next((str(item.get("id", "")) for item in _models(models)), "")


def _default_cap(version: str) -> int | None:
    """The default of max_num_seqs where every GPU has the same."""
    try:
        found = gpu_default("max_num_seqs", version)
    except UsageError:
        return None
    return int(found.value) if found else None


def _whole(value: Any) -> int | None:
    found = _number(value)
    return int(found) if found is not None and found == int(found) else None


def _number(value: Any) -> float | None:
    """A number from a label; vLLM writes the text None for what is not set."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
