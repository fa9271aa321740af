import json
import re
from pathlib import Path
from typing import Any

import pytest

from knee.catalog.load import releases
from knee.catalog.metrics import (
    Metric,
    all_metrics,
    bucket_bounds,
    cache_config_labels,
    canonical_metric,
    exposed_metrics,
    exposed_names,
    is_exposed,
    labels_at,
    metric,
)
from knee.catalog.version import parse_version

SHARED = Path(__file__).parents[2].parent / "shared"
_TYPE = re.compile(r"^# TYPE (\S+) (\w+)$", re.MULTILINE)


@pytest.mark.parametrize("item", all_metrics(), ids=lambda item: item.name)
def test_every_entry_is_consistent(item: Metric) -> None:
    since = [parse_version(text) for text in (item.v0_since, item.v1_since) if text]
    ends = [parse_version(text) for text in (item.deprecated, item.hidden, item.removed) if text]
    assert since
    assert ends == sorted(ends)
    assert not ends or max(since) < ends[0]
    assert metric(item.name) is item
    assert canonical_metric(item.name) == item.canonical
    holder = metric(item.canonical)
    assert holder is not None
    assert not holder.renamed
    assert holder.canonical == item.canonical
    assert not item.renamed or item.name != holder.name
    assert item.type == "histogram" or not item.buckets
    if item.buckets:
        bounds = bucket_bounds(item)
        assert list(bounds) == sorted(set(bounds))
        assert len(bounds) >= 5
    for engine in ("V0", "V1"):
        begin = item.v1_since if engine == "V1" else item.v0_since
        shown = [is_exposed(item, version, engine) for version in releases().inspected]
        assert any(shown) == bool(begin)
        assert "".join("#" if on else "." for on in shown).strip(".") == "#" * sum(shown)


def test_names_are_unique_and_two_series_share_a_name_only_by_renaming() -> None:
    assert len({item.name for item in all_metrics()}) == len(all_metrics())
    current = [item.canonical for item in all_metrics() if not item.renamed]
    assert len(set(current)) == len(current)


@pytest.mark.parametrize(("version", "page"), [("0.27.1", "0.27.1"), ("0.32.0", "0.32.0")])
def test_the_page_of_a_recorded_server_is_what_the_catalog_says(version: str, page: str) -> None:
    rows = [line.split() for line in (SHARED / f"captures/metric-table-{page}.txt").read_text().splitlines()]
    recorded = {row[0]: row[1] for row in rows if row[0].startswith("vllm:")}
    told = {item.name: item.type for item in exposed_metrics(version) if item.name.startswith("vllm:")}
    assert told == recorded
    for row in rows:
        item = metric(row[0])
        if item is not None and row[0] != "vllm:cache_config_info" and len(row) > 2:
            assert set(labels_at(item, version)) == set(row[2].split(",")) - {"le"}


@pytest.mark.parametrize("page", sorted(SHARED.glob("examples/*.prom")), ids=lambda path: path.name)
def test_every_series_of_the_example_pages_is_known(page: Path) -> None:
    named = [name for name, _ in _TYPE.findall(page.read_text()) if not name.endswith("_created")]
    assert named
    assert [name for name in named if canonical_metric(name) is None] == []


def test_the_buckets_of_a_recorded_page_are_those_of_the_catalog() -> None:
    page = (SHARED / "captures/metrics-before.txt").read_text()
    checked = 0
    for item in exposed_metrics("0.32.0"):
        if item.name.startswith("vllm:") and item.type == "histogram":
            found = re.findall(rf'^{item.name}_bucket\{{[^}}]*le="([\d.e+]+)"', page, re.MULTILINE)
            assert bucket_bounds(item, 2048) == tuple(float(text) for text in found), item.name
            checked += 1
    assert checked == 16


def test_a_renamed_series_keeps_its_canonical_name_across_versions() -> None:
    name = "kv_cache_usage_perc"
    old, new = "vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc"
    shown = {v: exposed_names(name, v) for v in ("0.5.4", "0.8.5", "0.9.2", "0.10.2", "0.11.0", "0.33.0")}
    assert shown == {
        "0.5.4": (old,),
        "0.8.5": (old,),
        "0.9.2": (new, old),
        "0.10.2": (new, old),
        "0.11.0": (new,),
        "0.33.0": (new,),
    }
    assert canonical_metric("vllm:time_per_output_token_seconds_bucket") == "inter_token_latency_seconds"
    assert canonical_metric("vllm:request_time_per_output_token_seconds_sum") == (
        "request_time_per_output_token_seconds"
    )
    assert canonical_metric("ray_vllm_num_requests_running") == "num_requests_running"
    assert canonical_metric("vllm:iteration_tokens_total_sum") == "iteration_tokens"


@pytest.mark.parametrize(
    "name",
    ["vllm:prompt_tokens_created", "python_info", "process_cpu_seconds_total", "vllm:made_up", "sglang:x"],
)
def test_what_is_no_series_of_vllm_has_no_canonical_name(name: str) -> None:
    assert canonical_metric(name) is None


def test_the_engine_label_came_with_0_8_4() -> None:
    running = metric("num_requests_running")
    assert running is not None
    assert labels_at(running, "0.8.0") == ("model_name",)
    assert set(labels_at(running, "0.8.4")) == {"model_name", "engine"}


def test_labels_of_the_cache_configuration_are_those_recorded() -> None:
    assert len(cache_config_labels("0.32.0")) == 36
    assert "kv_cache_size_tokens" in cache_config_labels("0.27.1")
    assert cache_config_labels("0.30.0") == cache_config_labels("0.27.1")


def test_every_metric_of_the_facts_is_carried_over() -> None:
    facts: list[dict[str, Any]] = json.loads((SHARED / "facts/vllm-facts.json").read_text())["metrics"]
    for fact in facts:
        item = metric(fact["name"])
        assert item is not None, fact["name"]
        assert (item.type, item.removed) == (fact["type"], fact["removed"] or "")
