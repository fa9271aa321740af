"""The series on vLLM's `/metrics` page: names, types, labels and buckets, by version.

The canonical name of a series is the newest one without `vllm:` and `_total`, as in `knee.core.snapshot`. The
engine is V1 unless a caller says otherwise: V1 is the default from 0.8.0 and the only one from 0.11.0.
"""

import re
from functools import cache
from typing import Literal

import msgspec

from knee.catalog.load import read_data
from knee.catalog.version import Version, parse_version

Engine = Literal["V0", "V1"]
MetricType = Literal["counter", "gauge", "histogram", "summary"]

_PREFIX = re.compile(r"^(?:ray_)?vllm[:_]")
_SAMPLE = re.compile(r"_(?:bucket|sum|count)$")
_ENGINE_LABEL_SINCE = "0.8.4"


class Metric(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One series.

    `name` is as exposed (a histogram's without `_bucket`), `labels` without `le`. `v0_since` and `v1_since`
    are the first inspected release with it under either engine, "" where it never was. `deprecated`, `hidden`
    (only with --show-hidden-metrics-for-version) and `removed` are releases, or "". `renamed` marks an older
    name of the series `canonical`. `requires` says what must be on for it to be exposed, "" for always.
    """

    name: str
    canonical: str
    type: MetricType
    labels: tuple[str, ...] = ()
    v0_since: str = ""
    v1_since: str = ""
    deprecated: str = ""
    hidden: str = ""
    removed: str = ""
    renamed: bool = False
    buckets: str = ""
    requires: str = ""
    doc: str = ""
    notes: str = ""


class _File(msgspec.Struct, frozen=True):
    bucket_families: dict[str, tuple[float, ...]]
    cache_config_labels: dict[str, dict[str, str]]
    metrics: tuple[Metric, ...]


def all_metrics() -> tuple[Metric, ...]:
    """Every series, in the order of the 0.32.0 page, then those that a plain server does not show."""
    return read_data("metrics.json", _File).metrics


@cache
def _by_name() -> dict[str, Metric]:
    table: dict[str, Metric] = {}
    for item in all_metrics():
        table[_plain(item.name)] = item
    for item in all_metrics():
        if not item.renamed:
            table.setdefault(item.canonical, item)
    return table


def _plain(name: str) -> str:
    return _PREFIX.sub("", name)


def metric(name: str) -> Metric | None:
    """The series `name`, exposed or canonical, with or without prefix; None where there is none."""
    table = _by_name()
    plain = _plain(name)
    return table.get(plain) or table.get(f"{plain}_total")


@cache
def canonical_metric(exposed_name: str) -> str | None:
    """The canonical name of an exposed series or sample (`_bucket`, `_sum`, `_count`).

    None for what is no vLLM series: `_created` samples (time stamps of the client library), `python_…`,
    `process_…`. Accepts the names that Ray Serve gives (`ray_vllm_…`, `_` for `:`).
    """
    table = _by_name()
    plain = _plain(exposed_name)
    for candidate in (plain, _SAMPLE.sub("", plain)):
        if candidate in table:
            return table[candidate].canonical
    return None


def default_engine(version: str | Version) -> Engine:
    """The engine that a server of `version` runs unless told otherwise."""
    return "V1" if parse_version(version).reaches("0.8.0") else "V0"


def is_exposed(item: Metric, version: str | Version, engine: Engine | None = None) -> bool:
    """Whether a server of `version` shows the series, given that `item.requires` is met."""
    at = parse_version(version)
    since = item.v1_since if (engine or default_engine(at)) == "V1" else item.v0_since
    gone = item.hidden or item.removed
    return bool(since) and at.reaches(since) and not (gone and at.reaches(gone))


def exposed_metrics(
    version: str | Version, *, optional: bool = False, engine: Engine | None = None
) -> tuple[Metric, ...]:
    """The series that a server of `version` shows; with `optional` also those that some flag must turn on."""
    return tuple(
        item
        for item in all_metrics()
        if (optional or not item.requires) and is_exposed(item, version, engine)
    )


def exposed_names(canonical: str, version: str | Version, engine: Engine | None = None) -> tuple[str, ...]:
    """The names under which a server of `version` shows the series `canonical`, newest first.

    Two in the releases that showed a series under its old and its new name; their values must not be added.
    """
    named = [m for m in all_metrics() if m.canonical == canonical and is_exposed(m, version, engine)]
    return tuple(m.name for m in sorted(named, key=lambda m: m.renamed))


def labels_at(item: Metric, version: str | Version) -> tuple[str, ...]:
    """The label names of the series in `version`: `engine` stands on V1's from 0.8.4."""
    if parse_version(version).reaches(_ENGINE_LABEL_SINCE):
        return item.labels
    return tuple(label for label in item.labels if label != "engine")


def bucket_bounds(item: Metric, max_model_len: int = 8192) -> tuple[float, ...]:
    """Upper bounds of a histogram's buckets without the infinite one; () where they are not known.

    Histograms of token counts use the 1-2-5 series up to `max_model_len` (vllm/v1/metrics/loggers.py,
    build_1_2_5_buckets).
    """
    if item.buckets == "request_tokens":
        return tuple(
            float(mantissa * 10**exponent)
            for exponent in range(len(str(max_model_len)))
            for mantissa in (1, 2, 5)
            if mantissa * 10**exponent <= max_model_len
        )
    return read_data("metrics.json", _File).bucket_families.get(item.buckets, ())


def cache_config_labels(version: str | Version) -> dict[str, str]:
    """The labels of `vllm:cache_config_info` with the values of a recorded CPU server nearest to `version`.

    Recorded are 0.27.1 and 0.32.0; for other versions the set of labels is that of the nearest one not newer,
    or of the oldest.
    """
    recorded = read_data("metrics.json", _File).cache_config_labels
    at = parse_version(version)
    best = min(recorded, key=parse_version)
    for candidate in sorted(recorded, key=parse_version):
        if at.reaches(candidate):
            best = candidate
    return dict(recorded[best])
