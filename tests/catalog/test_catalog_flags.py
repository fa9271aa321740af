import json
from pathlib import Path
from typing import Any

import pytest

from knee.catalog.flags import (
    Flag,
    all_flags,
    batch_defaults,
    device_tier,
    flag,
    flag_default,
    flag_status,
)
from knee.catalog.load import releases
from knee.catalog.version import parse_version

SHARED = Path(__file__).parents[2].parent / "shared"


@pytest.mark.parametrize("item", all_flags(), ids=lambda item: item.name)
def test_every_entry_is_consistent(item: Flag) -> None:
    assert item.name.startswith("--")
    assert flag(item.name) is item
    assert flag(item.name.removeprefix("--").replace("-", "_")) is item
    states = [flag_status(item, version) for version in releases().inspected]
    order = ["not yet", "available", "deprecated", "no effect", "removed"]
    assert states == sorted(states, key=order.index)
    assert ("removed" in states) == bool(item.removed)
    since = [parse_version(row.since) for row in item.defaults]
    assert since == sorted(since)
    assert len(set(since)) == len(since)
    for one, other in zip(item.defaults, item.defaults[1:], strict=False):
        assert (one.value, one.bounds) != (other.value, other.bounds)
    if item.alias_of:
        assert flag(item.alias_of) is not None
    if item.replaced_by:
        successor = flag(item.replaced_by.split()[0])  # a value may follow it
        assert successor is not None
        assert parse_version(successor.removed or "99") > parse_version(item.removed or item.since)


def test_names_are_unique() -> None:
    assert len({item.name for item in all_flags()}) == len(all_flags())


@pytest.mark.parametrize(
    ("name", "version", "tier", "usage", "value"),
    [
        ("gpu_memory_utilization", "0.19.1", None, "server", 0.9),
        ("gpu_memory_utilization", "0.20.0", None, "server", 0.92),
        ("device_memory_utilization", "0.32.0", None, "server", 0.92),
        ("--max-num-seqs", "0.6.6", "small", "server", 256),
        ("--max-num-seqs", "0.8.0", "small", "server", 1024),
        ("--max-num-seqs", "0.8.5", "a100_80g", "server", 1024),
        ("--max-num-seqs", "0.9.0.1", "a100_80g", "server", 256),
        ("--max-num-seqs", "0.32.0", "large", "server", 1024),
        ("--max-num-batched-tokens", "0.32.0", "large", "server", 8192),
        ("--max-num-batched-tokens", "0.32.0", "large", "llm_class", 16384),
        ("--max-num-batched-tokens", "0.27.1", "huge", "server", 8192),
        ("--max-num-batched-tokens", "0.28.0", "huge", "server", 16384),
        ("--max-num-batched-tokens", "0.32.0", "small", "server", 2048),
        ("--max-num-batched-tokens", "0.32.0", "tpu_v6e", "server", 1024),
        ("--max-num-seqs", "0.32.0", "cpu", "server", 128),
        ("--max-num-seqs", "0.32.0", None, "other", 128),
        ("--async-scheduling", "0.13.0", None, "server", False),
        ("--shutdown-timeout", "0.32.0", None, "server", 0),
        ("--swap-space", "0.17.0", None, "server", 4),
    ],
)
def test_defaults_by_version_device_and_usage(
    name: str, version: str, tier: Any, usage: Any, value: object
) -> None:
    found = flag_default(name, version, tier, usage)
    assert found is not None
    assert found.value == value


def test_cpu_defaults_grow_with_the_world_size() -> None:
    found = flag_default("max_num_seqs", "0.32.0", "cpu", world_size=2)
    assert found is not None
    assert found.value == 256


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("--max-num-seqs", "0.32.0"),  # depends on the device, which is not given
        ("--swap-space", "0.18.0"),  # removed
        ("--max-num-queued-reqs", "0.28.0"),  # not yet
        ("--no-such-flag", "0.32.0"),
        ("--tool-call-parser", "0.32.0"),  # its default was not inspected
    ],
)
def test_an_unknown_default_is_none_and_not_a_guess(name: str, version: str) -> None:
    assert flag_default(name, version) is None


@pytest.mark.parametrize(
    ("device", "memory_gib", "version", "tier"),
    [
        ("NVIDIA H100 80GB HBM3", 79.2, "0.32.0", "large"),
        ("NVIDIA A100-SXM4-80GB", 79.3, "0.32.0", "a100_80g"),
        ("NVIDIA A100-SXM4-40GB", 39.5, "0.32.0", "small"),
        ("NVIDIA B200", 178.3, "0.32.0", "huge"),
        ("NVIDIA L4", 22.0, "0.32.0", "small"),
        ("NVIDIA GB10", 119.7, "0.32.0", "large"),
        ("NVIDIA GB10", 119.7, "0.33.0", "small"),
        ("cpu", 16.0, "0.32.0", "cpu"),
        ("TPU v6e", 32.0, "0.32.0", "tpu_v6e"),
    ],
)
def test_devices_fall_into_the_tiers_of_vllms_rule(
    device: str, memory_gib: float, version: str, tier: str
) -> None:
    assert device_tier(device, memory_gib, version) == tier


def test_a_negated_flag_is_the_flag_it_turns_off() -> None:
    assert flag("--no-enable-prefix-caching") is flag("--enable-prefix-caching")


def test_rows_of_batch_defaults_are_oldest_first() -> None:
    since = [parse_version(row.since) for row in batch_defaults()]
    assert since[0] == parse_version("0.5.4")
    assert {version.release for version in since} <= {
        parse_version(text).release[:3] for text in releases().inspected
    } | {(0, 9)}


def test_every_flag_of_the_facts_is_carried_over() -> None:
    facts: dict[str, Any] = json.loads((SHARED / "facts/vllm-facts.json").read_text())
    for version, names in facts["flags_added_by_version"].items():
        for name in names:
            item = flag(name)
            assert item is not None
            assert parse_version(item.since).release[:2] == parse_version(version).release[:2]
    for version, names in facts["flags_removed_by_version"].items():
        for name in names:
            item = flag(name)
            assert item is not None
            assert item.removed == version
