"""A metrics page of any vLLM version → a `Snapshot` under one set of names.

What it guards against, each seen in public dashboards and exporters: a missing metric read as 0; an old and
a new name of one metric added together; `num_requests_waiting_by_reason` added to `num_requests_waiting`;
`*_created` time stamps read as data; the histogram `iteration_tokens_total` read as a counter.
"""

import math

import msgspec

from knee.core.errors import InputError
from knee.core.snapshot import EngineSnapshot, Histogram, Snapshot
from knee.metrics.exposition import Labels, Page, Sample, parse_exposition
from knee.metrics.names import family_of

_KEPT_OF_PROCESS = frozenset({"process_cpu_seconds", "process_start_time_seconds", "http_requests"})
"""Series without the vllm prefix that say something about the server."""

_OWN_LABELS = frozenset({"engine", "model_name", "le"})
_SHARES = frozenset({"kv_cache_usage_perc"})


class _Engine(msgspec.Struct):
    """One engine while its page is read; `renamed` holds the keys that came under an old name."""

    gauges: dict[str, float] = {}
    counters: dict[str, float] = {}
    buckets: dict[tuple[str, bool], list[tuple[float, float]]] = {}
    sums: dict[tuple[str, bool], float] = {}
    counts: dict[tuple[str, bool], float] = {}
    info: dict[str, str] = {}
    old: set[str] = set()


def parse_page(text: str, at_ns: int, source: str = "") -> Snapshot:
    """The snapshot that a `/metrics` page shows.

    `at_ns` is when it was taken and `source` where it came from (shown to people: no secrets).

    Raises:
        InputError: there is not one vLLM metric in it, or it is absurdly large.
    """
    return normalise(parse_exposition(text), at_ns, source)


def normalise(page: Page, at_ns: int, source: str = "") -> Snapshot:
    """The snapshot of a parsed page; see `parse_page`."""
    engines: dict[str, _Engine] = {}
    of_server: list[Sample] = []
    model_name = ""
    for sample in page.samples:
        name, labels, _ = sample
        family = family_of(name)
        if family.skip or (not family.vllm and family.canonical not in _KEPT_OF_PROCESS):
            continue
        engine = labels.get("engine")
        if engine is None and (not family.vllm or "model_name" not in labels or family.of_server):
            of_server.append(sample)
            continue
        model_name = model_name or labels.get("model_name", "")
        _store(engines.setdefault(engine or "0", _Engine()), page, sample)
    if not engines and any(family_of(name).vllm for name, _, _ in of_server):
        engines["0"] = _Engine()
    if not engines:
        raise _no_engine(page, source)
    # Series of the whole server carry no engine label; they stand with the first engine: sums stay right.
    first = engines[min(engines, key=_engine_order)]
    for sample in of_server:
        _store(first, page, sample)
    warnings = _remarks(page)
    done = {key: _finish(engines[key], warnings) for key in sorted(engines, key=_engine_order)}
    return Snapshot(
        at_ns=at_ns,
        engines=done,
        source=source,
        model_name=model_name,
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _remarks(page: Page) -> list[str]:
    """What a reader should know about the names on the page."""
    families = {family_of(name) for name, _, _ in page.samples}
    remarks = sorted(f"{f.family} is the old name of {f.canonical}" for f in families if f.renamed)
    unknown = sorted({f.canonical for f in families if f.vllm and not f.kind and not f.skip})
    if unknown:
        remarks.append(f"{len(unknown)} vLLM metrics are new here: {', '.join(unknown[:3])}")
    if page.n_unreadable:
        remarks.append(f"{page.n_unreadable} lines could not be read, the first: {page.unreadable[0]!r}")
    return remarks


def _engine_order(label: str) -> tuple[int, str]:
    return (int(label) if label.isdecimal() and len(label) < 10 else 1 << 40, label)


def _store(engine: _Engine, page: Page, sample: Sample) -> None:
    """Put one sample where it belongs; what is not a number is missing."""
    name, labels, value = sample
    if math.isnan(value):
        return
    family = family_of(name)
    if family.canonical == "cache_config_info":
        engine.info.update(
            {k: v for k, v in labels.items() if k not in ("engine", "model_name") and v != "None"}
        )
        return
    key = family.canonical + _further(labels)
    kind = _kind(page, name, labels)
    if kind == "bucket":
        le = _bound(labels.get("le", ""))
        if le is not None:
            engine.buckets.setdefault((key, family.renamed), []).append((le, value))
    elif kind == "sum":
        engine.sums[key, family.renamed] = value
    elif kind == "count":
        engine.counts[key, family.renamed] = value
    elif kind in ("counter", "gauge"):
        target = engine.counters if kind == "counter" else engine.gauges
        if family.renamed and key in target and key not in engine.old:
            return  # the new name is there: it is the same thing, counted once
        (engine.old.add if family.renamed else engine.old.discard)(key)
        target[key] = value


def _kind(page: Page, name: str, labels: Labels) -> str:
    """`counter`, `gauge`, `bucket`, `sum`, `count`, or "" for what is not kept.

    What the page states goes before what the catalogue knows, and that before what the name suggests.
    """
    family = family_of(name)
    plain = name.removesuffix("_total")  # OpenMetrics states a counter's type without the ending
    kind = page.types.get(name) or page.types.get(family.family) or page.types.get(plain) or family.kind
    if not kind and family.part:
        kind = "summary" if "quantile" in labels else "histogram"
    if kind == "histogram":
        return family.part
    if kind in ("counter", "gauge"):
        return kind
    return "" if kind == "summary" else "counter" if name.endswith("_total") else "gauge"


def _further(labels: Labels) -> str:
    """The labels beside engine, model and bucket, in the order of their names: `{capacity}`."""
    if len(labels) == 2 and "engine" in labels and "model_name" in labels:  # the common case, made quick
        return ""
    further = [labels[key] for key in sorted(labels) if key not in _OWN_LABELS]
    return "{" + ",".join(further) + "}" if further else ""


def _bound(text: str) -> float | None:
    try:
        bound = float(text)
    except ValueError:
        return None
    return None if math.isnan(bound) else bound


def _finish(engine: _Engine, warnings: list[str]) -> EngineSnapshot:
    for name in _SHARES & engine.gauges.keys():
        if not 0 <= engine.gauges[name] <= 1.0001:
            warnings.append(f"{name} is {engine.gauges[name]:g}, not a share between 0 and 1; left out")
            del engine.gauges[name]
    histograms: dict[str, Histogram] = {}
    for (key, renamed), pairs in engine.buckets.items():
        if renamed and (key, False) in engine.buckets:
            continue
        finite = sorted(pair for pair in pairs if math.isfinite(pair[0]))
        infinite = [count for bound, count in pairs if bound == math.inf]
        largest = max([count for _, count in pairs], default=0.0)
        histograms[key] = Histogram(
            bounds=tuple(bound for bound, _ in finite),
            counts=tuple(count for _, count in finite),
            count=engine.counts.get((key, renamed), infinite[0] if infinite else largest),
            sum=engine.sums.get((key, renamed), math.nan),
        )
    return EngineSnapshot(
        gauges=engine.gauges, counters=engine.counters, histograms=histograms, info=engine.info
    )


def _no_engine(page: Page, source: str) -> InputError:
    where = source or "the page"
    names = {name.split(":")[0] for name, _, _ in page.samples if ":" in name}
    if not page.samples:
        return InputError(
            f"{where} gives no metrics page", "a vLLM server has one at http://HOST:PORT/metrics"
        )
    if names:
        return InputError(
            f"{where} has no vLLM metrics, but metrics of {', '.join(sorted(names)[:3])}",
            "only vLLM is understood",
        )
    return InputError(
        f"{where} has metrics, but none of vLLM", "a vLLM server started with --disable-log-stats shows none"
    )
