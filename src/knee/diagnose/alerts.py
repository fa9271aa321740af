"""Prometheus recording and alerting rules for one vLLM version, with thresholds from a measured knee."""

from typing import Any

from knee.diagnose.promql import EACH, Names, Thresholds

RUNNING, WAITING, KV = "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"
TTFT, ITL = "time_to_first_token_seconds", "inter_token_latency_seconds"
QUEUE, PREFILL = "request_queue_time_seconds", "request_prefill_time_seconds"

Rule = dict[str, Any]


def rule_groups(names: Names, limits: Thresholds) -> dict[str, Any]:
    """The content of a rules file. What the version does not show is left out, with what rests on it.

    One group, because rules of one group are evaluated in order: alerts see what was just recorded.
    """
    rules = recordings(names, limits) + alerts(names, limits)
    return {"groups": [{"name": "knee", "interval": "15s", "rules": rules}]}


def recordings(names: Names, limits: Thresholds) -> list[Rule]:
    """Recording rules: one value a replica (`job`, `instance`), under one name whatever the version."""
    made: list[tuple[str, str, tuple[str, ...]]] = [
        ("knee:waiting:sum", f"sum by ({EACH}) ({{{WAITING}}})", (WAITING,)),
        ("knee:running:sum", f"sum by ({EACH}) ({{{RUNNING}}})", (RUNNING,)),
        ("knee:kv_usage:max", f"max by ({EACH}) ({{{KV}}})", (KV,)),
    ]
    rules = [
        {"record": record, "expr": text.replace(f"{{{series[0]}}}", names.series(series[0]))}
        for record, text, series in made
        if names.has(series[0])
    ]
    for record, counter in (
        ("knee:preemptions:rate5m", "num_preemptions"),
        ("knee:requests:rate5m", "request_success"),
        ("knee:generation_tokens:rate5m", "generation_tokens"),
        ("knee:prompt_tokens:rate5m", "prompt_tokens"),
    ):
        if names.has(counter):
            rules.append({"record": record, "expr": names.rate(counter)})
    for record, histogram in (
        ("knee:ttft_seconds:mean5m", TTFT),
        ("knee:queue_seconds:mean5m", QUEUE),
        ("knee:prefill_seconds:mean5m", PREFILL),
    ):
        if names.has(histogram):
            rules.append({"record": record, "expr": names.mean(histogram)})
    for record, histogram, q in (
        ("knee:ttft_seconds:slo5m", TTFT, limits.ttft_q),
        ("knee:itl_seconds:slo5m", ITL, limits.itl_q),
    ):
        if names.has(histogram):
            rules.append({"record": record, "expr": names.quantile(q, histogram)})
    return rules


def alerts(names: Names, limits: Thresholds) -> list[Rule]:
    """Alerting rules over the recorded values."""
    rules = [
        _alert(
            "VllmQueueGrowing",
            f"knee:waiting:sum > {limits.waiting:g} and deriv(knee:waiting:sum[10m]) > 0",
            "5m",
            "warning",
            "requests wait and the queue grows: {{ $value }} waiting",
            "run `knee diagnose` against the server; bound the queue just above the knee",
        ),
        _alert(
            "VllmStalled",
            "(knee:running:sum + knee:waiting:sum) > 0 and knee:generation_tokens:rate5m == 0 "
            "and knee:prompt_tokens:rate5m == 0",
            "2m",
            "critical",
            "requests are there and nothing is computed; /health may still answer 200",
            "look at the server's log; `knee diagnose` tells a stall from a request that can never run",
        ),
        _alert(
            "VllmFrontEnd",
            "(knee:ttft_seconds:mean5m - knee:queue_seconds:mean5m - knee:prefill_seconds:mean5m) "
            "> 0.4 * knee:ttft_seconds:mean5m and knee:ttft_seconds:mean5m > 0.1",
            "10m",
            "warning",
            "time to first token goes by outside the engine",
            "raise --api-server-count",
        ),
    ]
    if names.has(KV):
        rules.append(_kv_alert(limits))
    return rules + _knee_alerts(limits) + _renamed_alerts(names)


def _kv_alert(limits: Thresholds) -> Rule:
    return _alert(
        "VllmKvFullPreempting",
        f"knee:kv_usage:max > {limits.kv:g} and knee:preemptions:rate5m > 0",
        "5m",
        "warning",
        "the KV cache is full and running requests start again",
        "lower --max-num-seqs to KV tokens / tokens per request, or give the cache more memory",
    )


def _knee_alerts(limits: Thresholds) -> list[Rule]:
    """What only a measured knee can say."""
    rules: list[Rule] = []
    if limits.rate is not None:
        rules.append(
            _alert(
                "VllmKneeExceeded",
                f"knee:requests:rate5m + deriv(knee:waiting:sum[5m]) > {limits.rate:.4g}",
                "5m",
                "warning",
                f"more requests come than the knee of {limits.rate:.4g}/s of one replica",
                "add replicas, or shed load at the gateway",
            )
        )
    for alert, record, bound, text in (
        ("VllmTtftSloBroken", "knee:ttft_seconds:slo5m", limits.ttft_s, f"TTFT p{limits.ttft_q * 100:g}"),
        ("VllmItlSloBroken", "knee:itl_seconds:slo5m", limits.itl_s, f"ITL p{limits.itl_q * 100:g}"),
    ):
        if bound is not None:
            rules.append(
                _alert(
                    alert,
                    f"{record} > {bound:g}",
                    "5m",
                    "warning",
                    f"{text} is above {bound:g} s",
                    "`knee diagnose`",
                )
            )
    return rules


def _renamed_alerts(names: Names) -> list[Rule]:
    """Something of vLLM is there, but not under the name that these rules read: an upgrade renamed it."""
    rules: list[Rule] = []
    present = f"count by (job) ({names.series(RUNNING)})"
    for canonical, part in ((KV, ""), (ITL, "count"), (QUEUE, "count")):
        if names.has(canonical):
            rules.append(
                _alert(
                    "VllmMetricRenamed",
                    f"{present} unless count by (job) ({names.series(canonical, part)})",
                    "10m",
                    "warning",
                    f"{names.name(canonical)} is gone though the server runs: alerts on it cannot fire",
                    "write the rules again with `knee rules --vllm-version`",
                    metric=canonical,
                )
            )
    return rules


def _alert(  # noqa: PLR0917 - read like a rule: name, expression, how long, how bad, what, what to do
    name: str, expr: str, hold: str, severity: str, summary: str, action: str, **labels: str
) -> Rule:
    return {
        "alert": name,
        "expr": expr,
        "for": hold,
        "labels": {"severity": severity, **labels},
        "annotations": {"summary": summary, "action": action},
    }
