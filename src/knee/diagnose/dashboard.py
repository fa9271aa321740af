"""A Grafana dashboard over vLLM's own series, with the thresholds of a measured knee.

Panels follow the order in which a person asks: is it good, does it queue, what is full, where does time go.
Format: Grafana's dashboard JSON model, schema version 39 (Grafana 10.4 and later read it).
"""

from typing import Any

import msgspec

from knee.diagnose.alerts import ITL, KV, PREFILL, QUEUE, RUNNING, TTFT, WAITING
from knee.diagnose.promql import EACH, Names, Thresholds

SCHEMA_VERSION = 39
WIDTH, HEIGHT = 12, 8
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """`queries` are (legend, PromQL); `bound` draws a red line from there on."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...] = ()
    bound: float | None = None
    description: str = ""


def dashboard(names: Names, limits: Thresholds, title: str = "vLLM at the knee") -> dict[str, Any]:
    """The dashboard's JSON. Panels whose series the version does not show are left out."""
    shown = msgspec.structs.replace(
        names, selector=_join(names.selector, 'job=~"$job", instance=~"$instance"')
    )
    return {
        "title": title,
        "uid": "knee-vllm",
        "tags": ["vllm", "knee"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables(names)},
        "panels": [_panel(i, panel) for i, panel in enumerate(panels(shown, limits))],
    }


def panels(names: Names, limits: Thresholds) -> list[Panel]:
    """The panels, in order."""

    def rate(canonical: str, legend: str = "{{instance}}", by: str = EACH) -> tuple[str, str, str]:
        return legend, canonical, names.rate(canonical, by=by) if names.has(canonical) else ""

    def gauge(canonical: str, how: str) -> tuple[str, str, str]:
        text = f"{how} by ({EACH}) ({names.series(canonical)})" if names.has(canonical) else ""
        return "{{instance}}", canonical, text

    made: list[Panel | None] = [
        _latency(names, "Time to first token", TTFT, limits.ttft_q, limits.ttft_s),
        _latency(names, "Gap between tokens", ITL, limits.itl_q, limits.itl_s),
        _of(
            names,
            Panel(
                title="Requests/s of a replica",
                unit="reqps",
                bound=limits.rate,
                description="The line is the knee: the highest rate at which the SLO was shown to hold.",
            ),
            rate("request_success"),
        ),
        _of(
            names,
            Panel(
                title="Waiting",
                unit="short",
                bound=limits.waiting,
                description="Scale on this, not on GPU usage.",
            ),
            gauge(WAITING, "sum"),
        ),
        _of(names, Panel(title="Running", unit="short"), gauge(RUNNING, "sum")),
        _of(
            names,
            Panel(title="KV cache usage (fullest engine)", unit="percentunit", bound=limits.kv),
            gauge(KV, "max"),
        ),
        _of(names, Panel(title="Preemptions/s", unit="short"), rate("num_preemptions")),
        _where_time_goes(names),
        _of(
            names,
            Panel(title="Tokens/s", unit="short"),
            rate("generation_tokens", "output {{instance}}"),
            rate("prompt_tokens", "prompt {{instance}}"),
        ),
        _hits(names),
        _of(
            names,
            Panel(title="Ends by reason", unit="reqps"),
            rate("request_success", "{{finished_reason}}", "finished_reason"),
        ),
        _of(
            names,
            Panel(title="Refused by queue limit", unit="reqps"),
            rate("admission_rejections", "{{reason}}", "reason"),
        ),
    ]
    return [panel for panel in made if panel is not None]


def _of(names: Names, panel: Panel, *queries: tuple[str, str, str]) -> Panel | None:
    """`panel` with the queries (legend, series, PromQL) whose series the version shows; None without any."""
    kept = tuple((legend, query) for legend, canonical, query in queries if names.has(canonical))
    return msgspec.structs.replace(panel, queries=kept) if kept else None


def _latency(names: Names, title: str, canonical: str, q: float, bound: float | None) -> Panel | None:
    if not names.has(canonical):
        return None
    shares = sorted({0.5, q, 0.99})
    return Panel(
        title=title,
        unit="s",
        queries=tuple(
            (f"p{share * 100:g} {{{{instance}}}}", names.quantile(share, canonical)) for share in shares
        ),
        bound=bound,
        description="Quantiles of a histogram: no finer than its buckets.",
    )


def _where_time_goes(names: Names) -> Panel | None:
    if not (names.has(TTFT) and names.has(QUEUE) and names.has(PREFILL)):
        return None
    ttft, queue, prefill = (names.mean(name) for name in (TTFT, QUEUE, PREFILL))
    return Panel(
        title="Where the time to first token goes (means)",
        unit="s",
        queries=(
            ("queue {{instance}}", queue),
            ("prefill {{instance}}", prefill),
            ("front end {{instance}}", f"({ttft}) - ({queue}) - ({prefill})"),
        ),
        description="What is neither queue nor prefill goes by in HTTP, tokenization and streaming.",
    )


def _hits(names: Names) -> Panel | None:
    if not names.has("prefix_cache_hits"):
        return None
    rate = f"{names.rate('prefix_cache_hits')} / {names.rate('prefix_cache_queries')}"
    return Panel(title="Prefix cache hit rate", unit="percentunit", queries=(("{{instance}}", rate),))


def _variables(names: Names) -> list[dict[str, Any]]:
    running, of_job = names.series(RUNNING), names.series(RUNNING, further='job=~"$job"')
    return [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
        _variable("job", f"label_values({running}, job)"),
        _variable("instance", f"label_values({of_job}, instance)"),
    ]


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(index: int, panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.bound is not None:
        steps.append({"color": "red", "value": panel.bound})
    return {
        "id": index + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": {"x": WIDTH * (index % 2), "y": HEIGHT * (index // 2), "w": WIDTH, "h": HEIGHT},
        "targets": [
            {"refId": chr(ord("A") + i), "datasource": _SOURCE, "expr": expr, "legendFormat": legend}
            for i, (legend, expr) in enumerate(panel.queries)
        ],
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "min": 0,
                "thresholds": {"mode": "absolute", "steps": steps},
                "custom": {"thresholdsStyle": {"mode": "line" if panel.bound is not None else "off"}},
            },
            "overrides": [],
        },
    }


def _join(*parts: str) -> str:
    return ", ".join(part for part in parts if part)
