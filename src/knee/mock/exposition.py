"""The `/metrics` page of a vLLM version, from the engine's own counts.

Names, types, labels, help texts and buckets come from the catalog; the order and the form of the lines are
those of the Prometheus client library for Python (text format 0.0.4 with `_created` series), which vLLM uses.
"""

import math
from collections.abc import Iterator

import msgspec

from knee.catalog.metrics import (
    Metric,
    bucket_bounds,
    cache_config_labels,
    exposed_metrics,
    labels_at,
)
from knee.catalog.version import parse_version
from knee.core.snapshot import EngineSnapshot
from knee.engine.config import EngineConfig

CONTENT_TYPE = b"text/plain; version=1.0.0; charset=utf-8"

_VALUES = {
    "num_requests_waiting_by_reason": ("reason", ("capacity", "deferred")),
    "engine_sleep_state": ("sleep_state", ("awake", "weights_offloaded", "discard_all")),
    "prompt_tokens_by_source": ("source", ("local_compute", "local_cache_hit", "external_kv_transfer")),
    "prompt_tokens_cached_by_source": ("source", ("device", "host", "p2p", "disk", "external_unspecified")),
    "admission_rejections": ("reason", ("max_num_queued_reqs", "max_num_queued_tokens")),
}
"""The further label of a series and the values it takes (recorded from 0.32.0)."""

_FINISH_REASONS = (("0.20.0", 5), ("0.14.0", 4), ("0.8.0", 3))
_REASONS = ("stop", "length", "abort", "error", "repetition")
_ALIASES = {"prompt_tokens_cached_by_source{device}": "prompt_tokens_cached"}
_ALWAYS = {"engine_sleep_state{awake}": 1.0}
_BLOCKS_BEFORE = "0.9.0"
"""Before it, prefix cache counters counted blocks."""


class _Plain(msgspec.Struct, frozen=True):
    """A sample: the text before its value, and where its value is in a snapshot."""

    text: str
    key: str


class _Buckets(msgspec.Struct, frozen=True):
    """The samples of a histogram: the texts before the values of its buckets, of count and of sum."""

    bounds: tuple[float, ...]
    buckets: tuple[str, ...]
    count: str
    sum: str
    key: str


class Exposition:
    """Lays the page out once, and fills in values as often as asked."""

    def __init__(self, engine: EngineConfig, model: str, version: str, created_s: float) -> None:
        self.version = version
        self._engine = engine
        self._model = model
        self._created = number_text(created_s)
        self._in_blocks = not parse_version(version).reaches(_BLOCKS_BEFORE)
        self._parts: list[str | _Plain | _Buckets] = []
        for item in exposed_metrics(version):
            if item.name.startswith("vllm:"):
                self._lay_out(item)

    def render(self, snapshot: EngineSnapshot) -> bytes:
        """The `vllm:` part of the page."""
        lines: list[str] = []
        for part in self._parts:
            if isinstance(part, str):
                lines.append(part)
            elif isinstance(part, _Plain):
                lines.append(f"{part.text} {number_text(self._value(snapshot, part.key))}\n")
            else:
                _fill(lines, part, snapshot)
        return "".join(lines).encode()

    def _value(self, snapshot: EngineSnapshot, key: str) -> float:
        key = _ALIASES.get(key, key)
        value = snapshot.counters.get(key, snapshot.gauges.get(key, _ALWAYS.get(key, 0.0)))
        if self._in_blocks and key in ("prefix_cache_queries", "prefix_cache_hits"):
            value //= self._engine.block_size
        return float(value)

    def _lay_out(self, item: Metric) -> None:
        self._parts.append(f"# HELP {item.name} {item.doc}\n# TYPE {item.name} {item.type}\n")
        if item.canonical == "cache_config_info":
            self._parts.append(_sample(item.name, self._cache_config()) + " 1.0\n")
            return
        combinations = list(self._label_sets(item))
        if item.type == "histogram":
            self._parts += [self._histogram(item, labels) for labels, _ in combinations]
        else:
            self._parts += [_Plain(_sample(item.name, labels), key) for labels, key in combinations]
        if item.type in ("counter", "histogram"):
            name = item.name.removesuffix("_total") if item.type == "counter" else item.name
            lines = [f"{_sample(name + '_created', labels)} {self._created}\n" for labels, _ in combinations]
            self._parts.append(
                f"# HELP {name}_created {item.doc}\n# TYPE {name}_created gauge\n" + "".join(lines)
            )

    def _label_sets(self, item: Metric) -> Iterator[tuple[dict[str, str], str]]:
        """Every set of labels of a series, with the key of its value in a snapshot."""
        base = {name: value for name, value in (("engine", "0"), ("model_name", self._model))
                if name in labels_at(item, self.version)}  # fmt: skip
        if item.canonical == "request_success":
            shown = next((n for since, n in _FINISH_REASONS if parse_version(self.version).reaches(since)), 3)
            label, values = "finished_reason", _REASONS[:shown]
        elif item.canonical in _VALUES:
            label, values = _VALUES[item.canonical]
        else:
            yield base, item.canonical
            return
        for value in values:
            yield {**base, label: value}, f"{item.canonical}{{{value}}}"

    def _histogram(self, item: Metric, labels: dict[str, str]) -> _Buckets:
        bounds = bucket_bounds(item, self._engine.max_model_len)
        edges = [number_text(bound) for bound in (*bounds, float("inf"))]
        return _Buckets(
            bounds,
            tuple(_sample(item.name + "_bucket", {**labels, "le": edge}) for edge in edges),
            _sample(item.name + "_count", labels),
            _sample(item.name + "_sum", labels),
            item.canonical,
        )

    def _cache_config(self) -> dict[str, str]:
        engine, labels = self._engine, cache_config_labels(self.version)
        own = {
            "block_size": engine.block_size,
            "effective_attention_block_size": engine.block_size,
            "num_gpu_blocks": engine.num_gpu_blocks,
            "enable_prefix_caching": engine.enable_prefix_caching,
            "kv_cache_size_tokens": engine.num_gpu_blocks * engine.block_size,
            "kv_cache_max_concurrency": engine.num_gpu_blocks / -(-engine.max_model_len // engine.block_size),
            "kv_cache_memory_bytes": None,
            "gpu_memory_utilization": 0.92 if parse_version(self.version).reaches("0.20.0") else 0.9,
        }
        labels |= {name: str(value) for name, value in own.items() if name in labels}
        return {**labels, "engine": "0"}


def _fill(lines: list[str], part: _Buckets, snapshot: EngineSnapshot) -> None:
    found = snapshot.histograms.get(part.key)
    counts = found.counts if found is not None and found.bounds == part.bounds else (0.0,) * len(part.bounds)
    total = found.count if found is not None else 0.0
    for text, count in zip(part.buckets, (*counts, total), strict=True):
        lines.append(f"{text} {number_text(count)}\n")
    lines.append(f"{part.count} {number_text(total)}\n")
    lines.append(f"{part.sum} {number_text(found.sum if found is not None else 0.0)}\n")


def _sample(name: str, labels: dict[str, str]) -> str:
    """A sample's name and labels, in the order and with the escapes of the client library."""
    if not labels:
        return name
    escaped = {
        key: value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
        for key, value in sorted(labels.items())
    }
    return name + "{" + ",".join(f'{key}="{value}"' for key, value in escaped.items()) + "}"


def number_text(value: float) -> str:
    """A number as the client library writes it: Python's digits, Go's choice of when to use an exponent."""
    if math.isinf(value) or math.isnan(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    text = repr(float(value))
    dot = text.find(".")
    if value > 0 and dot > 6:
        mantissa = f"{text[0]}.{text[1:dot]}{text[dot + 1 :]}".rstrip("0.")
        return f"{mantissa}e+{dot - 1:02d}"
    return text
