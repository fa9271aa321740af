"""vLLM's flags: since when, until when, and what they default to."""

from functools import cache
from typing import Any, Literal

import msgspec

from knee.catalog.load import read_data
from knee.catalog.version import Version, parse_version

Tier = Literal["huge", "large", "a100_80g", "small", "cpu", "tpu_v6e", "tpu_v5e", "tpu_v5p"]
"""Devices that share batch defaults: `huge` 160 GiB and more (B200, MI300X), `large` 70 to 160 GiB (H100,
H200), A100-80G, which left `large` in 0.9.0, `small` all other GPUs, and devices of their own."""

Usage = Literal["server", "llm_class", "other"]
"""vLLM's usage context: the API server, the `LLM` class, anything else."""

Status = Literal["available", "deprecated", "no effect", "removed", "not yet"]

_BATCH_FLAGS = ("max_num_batched_tokens", "max_num_seqs")


class DefaultSince(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a flag defaults to from `since` on; `bounds` are pydantic's (`ge`, `gt`, `le`, `lt`)."""

    since: str
    value: Any
    bounds: dict[str, float] = {}


class Flag(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One flag of `vllm serve`.

    `since` and `removed` are the first inspected release with it and the first without it; `deprecated` and
    `no_effect_since` are releases, or "". `field` is the configuration field it sets. `defaults` is oldest
    first, and empty where the default was not inspected.
    """

    name: str
    since: str
    removed: str = ""
    deprecated: str = ""
    no_effect_since: str = ""
    replaced_by: str = ""
    alias_of: str = ""
    field: str = ""
    defaults: tuple[DefaultSince, ...] = ()
    notes: str = ""


class Default(msgspec.Struct, frozen=True, kw_only=True):
    """A default that is known; `note` says under which condition."""

    value: Any
    note: str = ""


class BatchDefault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The two batch limits that vLLM chooses by device and usage (vllm/engine/arg_utils.py)."""

    since: str
    tiers: tuple[str, ...]
    usage: tuple[Usage, ...]
    max_num_batched_tokens: int | None
    max_num_seqs: int | None
    note: str = ""


def all_flags() -> tuple[Flag, ...]:
    """Every flag, by name."""
    return read_data("flags.json", tuple[Flag, ...])


def batch_defaults() -> tuple[BatchDefault, ...]:
    """Every row of the batch limits, oldest first."""
    return read_data("batch_defaults.json", tuple[BatchDefault, ...])


@cache
def _by_name() -> dict[str, Flag]:
    return {item.name: item for item in all_flags()}


def flag(name: str) -> Flag | None:
    """The flag `name`, written `--max-num-seqs`, `max-num-seqs` or `max_num_seqs`; None where there is none.

    `--no-…` finds the flag that it turns off.
    """
    spelled = "--" + name.lstrip("-").replace("_", "-")
    return _by_name().get(spelled) or _by_name().get(spelled.replace("--no-", "--", 1))


def flag_status(item: Flag, version: str | Version) -> Status:
    """Whether a server of `version` takes the flag."""
    at = parse_version(version)
    if not at.reaches(item.since):
        return "not yet"
    states: tuple[tuple[str, Status], ...] = (
        (item.removed, "removed"),
        (item.no_effect_since, "no effect"),
        (item.deprecated, "deprecated"),
    )
    for since, status in states:
        if since and at.reaches(since):
            return status
    return "available"


def device_tier(name: str, memory_gib: float, version: str | Version) -> Tier:
    """The tier of the device called `name` with `memory_gib` of memory, as vLLM's own rule sorts it.

    vLLM looks at the name reported by the driver and at total memory (vllm/engine/arg_utils.py,
    get_batch_defaults); GB10 counts as small from 0.33.0.
    """
    lowered = name.lower()
    tpus: tuple[Tier, ...] = ("tpu_v6e", "tpu_v5e", "tpu_v5p")
    tpu = [name for name in tpus if name.removeprefix("tpu_") in lowered]
    tier: Tier
    if "cpu" in lowered.split():
        tier = "cpu"
    elif "tpu" in lowered and tpu:
        tier = tpu[0]
    elif memory_gib < 70 or ("gb10" in lowered.split() and parse_version(version).reaches("0.33.0")):
        tier = "small"
    elif "a100" in lowered:
        tier = "a100_80g"
    else:
        tier = "huge" if memory_gib >= 160 else "large"
    return tier


def flag_default(
    name: str,
    version: str | Version,
    tier: Tier | None = None,
    usage: Usage = "server",
    world_size: int = 1,
) -> Default | None:
    """What a server of `version` uses where `name` is not given; None where that is not known.

    `max_num_seqs` and `max_num_batched_tokens` depend on the device: without a `tier` they are known only for
    usage `other`. On CPU they grow with `world_size` (TP x PP). The values are before vLLM's adjustments:
    doubled by --performance-mode throughput, max_num_batched_tokens at least max_model_len where chunked
    prefill is off, each capped by the other.
    """
    found = flag(name)
    at = parse_version(version)
    if found is None or flag_status(found, at) in ("not yet", "removed"):
        return None
    target = flag(found.alias_of) if found.alias_of else found
    if target is None:
        return None
    plain = target.name.lstrip("-").replace("-", "_")
    if plain in _BATCH_FLAGS:
        return _batch_default(plain, at, tier, usage, world_size)
    known = [row for row in target.defaults if at.reaches(row.since)]
    return Default(value=known[-1].value) if known else None


def gpu_default(name: str, version: str | Version) -> Default | None:
    """The default on a GPU that is not named: where all of them have the same one; None otherwise."""
    gpus: tuple[Tier, ...] = ("huge", "large", "a100_80g", "small")
    found = [flag_default(name, version, tier) for tier in gpus]
    first = found[0]
    same = first is not None and all(item is not None and item.value == first.value for item in found)
    return first if same else None


def _batch_default(
    plain: str, at: Version, tier: Tier | None, usage: Usage, world_size: int
) -> Default | None:
    gpu = tier is not None and not tier.startswith(("cpu", "tpu"))
    rows = [
        (parse_version(row.since).release, tier in row.tiers, row)
        for row in batch_defaults()
        if usage in row.usage
        and at.reaches(row.since)
        and (tier in row.tiers or ("any" in row.tiers and (gpu or usage == "other")))
    ]
    if not rows:
        return None
    row = max(rows, key=lambda item: item[:2])[2]
    value = row.max_num_seqs if plain == "max_num_seqs" else row.max_num_batched_tokens
    if value is None:
        return None
    scale = world_size if tier == "cpu" else 1
    return Default(value=value * scale, note=row.note)
