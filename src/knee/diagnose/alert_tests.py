"""Unit tests of the alerts, for `promtool test rules`: each fires in its own scene, none in a healthy one."""

from typing import Any

from knee.diagnose.alerts import ITL, KV, PREFILL, QUEUE, RUNNING, TTFT, WAITING, alerts
from knee.diagnose.promql import Names, Thresholds

LABELS = 'job="vllm", instance="a:8000", engine="0", model_name="m"'
MINUTES = 40

Scene = dict[str, str]
"""Canonical series (histograms with their part) → values in promtool's notation, one a minute."""


def test_file(names: Names, limits: Thresholds, rules_file: str) -> dict[str, Any]:
    """The content of a test file for the rules in `rules_file`."""
    known = {rule["alert"] for rule in alerts(names, limits)}
    scenes = {name: scene for name, scene in _scenes(limits).items() if name in known}
    return {
        "rule_files": [rules_file],
        "evaluation_interval": "1m",
        "tests": [_test(names, limits, "", _healthy(limits))]
        + [_test(names, limits, name, _changed(_healthy(limits), scene)) for name, scene in scenes.items()],
    }


def _healthy(limits: Thresholds) -> Scene:
    """A server at half its knee: nothing waits, half the cache, all latencies well inside."""
    per_minute = 60 * (limits.rate or 4.0) / 2
    ttft, itl = (limits.ttft_s or 1.0) / 4, (limits.itl_s or 0.1) / 4
    return {
        RUNNING: "8x40",
        WAITING: "0x40",
        KV: "0.5x40",
        "num_preemptions": "3x40",
        "request_success": f"0+{per_minute:g}x40",
        "generation_tokens": "0+6000x40",
        "prompt_tokens": "0+6000x40",
        **_histogram(TTFT, ttft),
        **_histogram(QUEUE, ttft / 10),
        **_histogram(PREFILL, ttft * 0.8),
        **_histogram(ITL, itl),
    }


def _scenes(limits: Thresholds) -> dict[str, Scene]:
    """What differs from a healthy server where each alert must fire."""
    high = limits.waiting
    ttft, itl, rate = limits.ttft_s or 1.0, limits.itl_s or 0.1, limits.rate or 4.0
    return {
        "VllmQueueGrowing": {WAITING: f"{high + 1:g}+{max(1, high):g}x40"},
        "VllmStalled": {WAITING: "5x40", "generation_tokens": "900x40", "prompt_tokens": "900x40"},
        "VllmFrontEnd": {**_histogram(TTFT, 2.0), **_histogram(QUEUE, 0.1), **_histogram(PREFILL, 0.2)},
        "VllmKvFullPreempting": {KV: "0.99x40", "num_preemptions": "0+30x40"},
        "VllmKneeExceeded": {"request_success": f"0+{60 * rate * 1.5:g}x40"},
        "VllmTtftSloBroken": _histogram(TTFT, 4 * ttft),
        "VllmItlSloBroken": _histogram(ITL, 4 * itl),
        "VllmMetricRenamed": {KV: ""},
    }


def _changed(scene: Scene, change: Scene) -> Scene:
    """`scene` with the series that `change` names; of a histogram, all parts are replaced."""
    changed = {key.partition(":")[0] for key in change}
    return {key: values for key, values in scene.items() if key.partition(":")[0] not in changed} | change


def _histogram(name: str, seconds: float) -> Scene:
    """A histogram whose 60 observations a minute all take `seconds`."""
    return {
        f"{name}:sum": f"0+{60 * seconds:g}x40",
        f"{name}:count": "0+60x40",
        f"{name}:bucket:{seconds / 2:g}": "0x40",
        f"{name}:bucket:{seconds:g}": "0+60x40",
        f"{name}:bucket:+Inf": "0+60x40",
    }


def _test(names: Names, limits: Thresholds, firing: str, scene: Scene) -> dict[str, Any]:
    series = []
    for key, values in scene.items():
        canonical, _, rest = key.partition(":")
        part, _, le = rest.partition(":")
        if not names.has(canonical) or not values:
            continue
        further = f', le="{le}"' if le else ""
        further += ', finished_reason="stop"' if canonical == "request_success" else ""
        series.append(
            {
                "series": f"{names.name(canonical)}{'_' + part if part else ''}{{{LABELS}{further}}}",
                "values": values,
            }
        )
    # Every alert is checked in every scene: the one that must fire fires, the others stay silent.
    checks = [
        {"eval_time": f"{MINUTES - 5}m", "alertname": name, "exp_alerts": []}
        for name in dict.fromkeys(rule["alert"] for rule in alerts(names, limits))
        if name != firing and not _follows(firing, name)
    ]
    if firing:
        rule = next(
            rule
            for rule in alerts(names, limits)
            if rule["alert"] == firing and rule["labels"].get("metric", KV) == KV
        )
        checks.append(
            {"eval_time": f"{MINUTES - 5}m", "alertname": firing, "exp_alerts": [_expected(rule, scene)]}
        )
    return {
        "name": firing or "healthy",
        "interval": "1m",
        "input_series": series,
        "alert_rule_test": checks,
    }


def _follows(firing: str, other: str) -> bool:
    """Whether `other` may fire along: a broken latency and a grown queue come with more than one cause."""
    along = {
        "VllmFrontEnd": {"VllmTtftSloBroken"},
        "VllmTtftSloBroken": {"VllmFrontEnd"},
        "VllmQueueGrowing": {"VllmKneeExceeded"},
    }
    return other in along.get(firing, set())


def _expected(rule: dict[str, Any], scene: Scene) -> dict[str, Any]:
    where = {"job": "vllm"} if rule["alert"] == "VllmMetricRenamed" else {"job": "vllm", "instance": "a:8000"}
    summary = rule["annotations"]["summary"]
    if "{{ $value }}" in summary:
        start, _, step = scene[WAITING].removesuffix("x40").partition("+")
        summary = summary.replace("{{ $value }}", f"{float(start) + float(step) * (MINUTES - 5):g}")
    return {
        "exp_labels": {**where, **rule["labels"]},
        "exp_annotations": {**rule["annotations"], "summary": summary},
    }
