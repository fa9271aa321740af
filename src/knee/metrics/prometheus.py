"""A Prometheus server as a source: the series it scraped, as the same snapshots that a page gives.

Series are asked for as they were scraped (`/api/v1/query_range`) and put together again into pages, one per
instance and instant, so that names, restarts and histograms go one way whatever the source. Rates and
quantiles are computed from the window, as everywhere here.
"""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec

from knee.core.clock import Clock
from knee.core.errors import TargetError, UsageError
from knee.core.snapshot import Snapshot
from knee.core.units import NS_PER_S
from knee.http1.client import fetch
from knee.metrics.exposition import Page, Sample
from knee.metrics.normalise import normalise

MAX_ANSWER_BYTES = 256 * 1024 * 1024
MAX_STEPS = 1000
LEAST_STEP_S = 1.0
TIMEOUT_S = 60.0

_NAMES = (
    "num_requests_running|num_requests_waiting|num_requests_waiting_by_reason|num_requests_swapped"
    "|kv_cache_usage_perc|gpu_cache_usage_perc|engine_sleep_state|cache_config_info"
    "|(num_preemptions|prompt_tokens|prompt_tokens_cached|generation_tokens|request_success|admission_rejections"
    "|prefix_cache_queries|prefix_cache_hits|gpu_prefix_cache_queries|gpu_prefix_cache_hits)_total"
    "|(time_to_first_token_seconds|inter_token_latency_seconds|time_per_output_token_seconds"
    "|request_queue_time_seconds|time_in_queue_requests|request_prefill_time_seconds|request_prompt_tokens"
    "|request_generation_tokens|iteration_tokens_total|e2e_request_latency_seconds"
    "|request_prefill_kv_computed_tokens)_(bucket|sum|count)"
)
SERIES = f"(ray_)?vllm[:_]({_NAMES})|process_start_time_seconds"
"""What a diagnosis reads, under all names that vLLM has given it."""

_INSTANCE = ("instance", "pod", "node", "job", "namespace")
_SCRAPE_LABELS = frozenset(
    {*_INSTANCE, "__name__", "container", "endpoint", "service", "cluster", "prometheus"}
)


class _Series(msgspec.Struct):
    metric: dict[str, str]
    values: list[tuple[float, str]] = []


class _Data(msgspec.Struct, frozen=True):
    result: list[_Series] = []


class _Answer(msgspec.Struct):
    status: str
    data: _Data = _Data()
    error: str = ""


def matchers(selector: str) -> str:
    """The label matchers that `selector` states, ready to stand in braces: `job="vllm",namespace="x"`.

    Raises:
        UsageError: it is not a list of matchers.
    """
    inside = selector.strip().removeprefix("{").removesuffix("}").strip().strip(",")
    one = r'\s*[a-zA-Z_][a-zA-Z0-9_]*\s*(=|!=|=~|!~)\s*"(?:[^"\\]|\\.)*"\s*'
    if inside and not re.fullmatch(rf"{one}(,{one})*", inside):
        raise UsageError(
            f"not a selector: {selector!r}", 'write label matchers like \'job="vllm",namespace="prod"\''
        )
    return inside


def query_range(
    url: str,
    selector: str,
    since_s: float,
    clock: Clock,
    *,
    step_s: float | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[Snapshot, ...]:
    """Snapshots of every instance that `selector` matches over the last `since_s`, `step_s` apart.

    Raises:
        UsageError: the selector cannot be understood.
        TargetError: Prometheus cannot be reached or refuses, or has no vLLM series there.
    """
    step = max(LEAST_STEP_S, since_s / MAX_STEPS, step_s or min(15.0, since_s / 20))
    chosen = matchers(selector)
    query = f'{{__name__=~"{SERIES}"{"," if chosen else ""}{chosen}}}'
    end = clock.wall_ns() / NS_PER_S
    asked = {"query": query, "start": f"{end - since_s:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"}
    series = _ask(url, "query_range", asked, headers).data.result
    pages: dict[tuple[float, str], list[Sample]] = {}
    for one in series:
        name, source = one.metric.get("__name__", ""), _source(one.metric)
        labels = {key: value for key, value in one.metric.items() if key not in _SCRAPE_LABELS}
        for at_s, value in one.values:
            pages.setdefault((at_s, source), []).append((name, labels, float(value)))
    snapshots = tuple(
        normalise(Page(samples, {}), round(at_s * NS_PER_S), source)
        for (at_s, source), samples in sorted(pages.items())
        if any(name != "process_start_time_seconds" for name, _, _ in samples)
    )
    if not snapshots:
        raise TargetError(
            f"{url} has no vLLM series for {{{chosen}}} in that time", _what_is_there(url, headers)
        )
    return snapshots


def _source(metric: dict[str, str]) -> str:
    return next((metric[label] for label in _INSTANCE if label in metric), "")


def _ask(url: str, path: str, asked: dict[str, str], headers: Mapping[str, str] | None) -> _Answer:
    address = f"{url.rstrip('/')}/api/v1/{path}"
    answer = fetch(
        f"{address}?{urlencode(asked)}", headers=headers, timeout_s=TIMEOUT_S, body_limit=MAX_ANSWER_BYTES
    )
    try:
        decoded = msgspec.json.decode(answer.body, type=_Answer)
    except msgspec.MsgspecError:
        raise TargetError(
            f"{address} answers {answer.status}, but not as Prometheus",
            "give the address of Prometheus itself",
        ) from None
    if decoded.status != "success":
        raise TargetError(
            f"Prometheus refuses: {decoded.error or answer.status}", "check --selector and --since"
        )
    return decoded


def _what_is_there(url: str, headers: Mapping[str, str] | None) -> str:
    """A hint: the jobs that have vLLM series, if there are any."""
    try:
        address = f"{url.rstrip('/')}/api/v1/label/job/values"
        match = urlencode({"match[]": '{__name__=~"vllm:num_requests_.+"}'})
        found: Any = fetch(f"{address}?{match}", headers=headers, timeout_s=TIMEOUT_S).json()
        jobs = [str(job) for job in found.get("data", [])][:5] if isinstance(found, dict) else []
    except TargetError:
        jobs = []
    return f"jobs with vLLM series: {', '.join(jobs)}" if jobs else "does it scrape a vLLM server at all?"
