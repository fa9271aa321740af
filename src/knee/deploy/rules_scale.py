"""Rules about autoscaling: on queue signals, under names that exist, and never blind."""

import re
from collections.abc import Iterator
from typing import Any

from knee.catalog.load import releases
from knee.catalog.metrics import exposed_names, is_exposed
from knee.deploy.finding import Found, Rule
from knee.deploy.manifests import Manifest, Mapping, Sequence, dig, items
from knee.deploy.pods import SCALERS, Key, Objects, key_of, target_of
from knee.deploy.selection import bounds, scalers_of
from knee.deploy.series import known, series_in

_UTILISATION = re.compile(
    r"DCGM_FI|gpu_util|gpu_duty_cycle|duty_cycle|container_cpu|node_cpu|nvidia_smi_util", re.IGNORECASE
)
_AGGREGATED = re.compile(
    r"\b(sum|max|min|avg|count|quantile|histogram_quantile|topk|scalar)\b\s*(by|without|\()"
)
_MODEL_LABEL = re.compile(r"[{,]\s*model\s*(=|!=|=~|!~)")


def _of_engines(objects: Objects) -> set[Key]:
    return {key_of(engine.owner) for engine in objects.engines}


def _queries(scaler: Manifest) -> Iterator[tuple[int, Any, str]]:
    for index, trigger in enumerate(items(dig(scaler.body, "spec", "triggers"))):
        if dig(trigger, "type") == "prometheus":
            yield index, trigger, str(dig(trigger, "metadata", "query") or "")


def scale_signal(objects: Objects) -> Iterator[Found]:
    """Utilisation is high whenever the server has any load."""
    ours = _of_engines(objects)
    for scaler in objects.of(*SCALERS):
        if target_of(scaler) not in ours:
            continue
        spec = scaler.body.get("spec")
        key = "triggers" if scaler.kind == "ScaledObject" else "metrics"
        for index, item in enumerate(items(dig(spec, key))):
            resource = str(dig(item, "resource", "name") or dig(item, "containerResource", "name") or "")
            kind = str(dig(item, "type") or "")
            named = " ".join(str(dig(item, *path) or "") for path in _NAMES)
            if resource in ("cpu", "memory") or kind in ("cpu", "memory") or _UTILISATION.search(named):
                yield scaler, ("spec", key, index), f"scales on {resource or named.strip() or kind}"


_NAMES = (
    ("pods", "metric", "name"),
    ("external", "metric", "name"),
    ("object", "metric", "name"),
    ("metadata", "query"),
)


def scale_query(objects: Objects) -> Iterator[Found]:
    """KEDA wants one element; vLLM's label is model_name."""
    for scaler in objects.of("ScaledObject"):
        for index, trigger, query in _queries(scaler):
            path = ("spec", "triggers", index, "metadata")
            if not any(True for _ in series_in(query)):
                continue
            if not _AGGREGATED.search(query):
                yield scaler, (*path, "query"), "no sum() over the series of replicas and engines"
            if _MODEL_LABEL.search(query):
                yield scaler, (*path, "query"), "label model; vLLM's is model_name"
            if dig(trigger, "metadata", "metricName") is not None:
                yield scaler, (*path, "metricName"), "metricName was removed in KEDA 2.12"


def metric_name(objects: Objects) -> Iterator[Found]:
    """A name that the server does not show reads as no load."""
    versions = {engine.version for engine in objects.engines if engine.version}
    version = versions.pop() if len(versions) == 1 else releases().inspected[-1]
    for manifest in objects.manifests:
        for path, text in _texts(manifest.body, ()):
            for found in series_in(text):
                entry = known(found.name)
                if found.pattern or entry is None or is_exposed(entry[0], version):
                    continue
                instead = exposed_names(entry[0].canonical, version)
                what = f"; it shows {instead[0]}{entry[1]}" if instead else ""
                yield manifest, path, f"{found.name} is not shown by vLLM {version}{what}"


def _texts(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(item, (*path, key))
    elif isinstance(value, Sequence):
        for index, item in enumerate(value):
            yield from _texts(item, (*path, index))
    elif isinstance(value, str) and "vllm" in value:
        yield path, value


def scale_blind(objects: Objects) -> Iterator[Found]:
    """By default KEDA reads an empty answer as zero load."""
    ours = _of_engines(objects)
    for scaler in objects.of("ScaledObject"):
        for index, trigger, query in _queries(scaler):
            meant = target_of(scaler) in ours or any(True for _ in series_in(query))
            if meant and str(dig(trigger, "metadata", "ignoreNullValues")).lower() != "false":
                yield scaler, ("spec", "triggers", index, "metadata"), "ignoreNullValues is true by default"


def scale_bounds(objects: Objects) -> Iterator[Found]:
    """Bounds that contradict each other, or that nobody chose."""
    ours = _of_engines(objects)
    for scaler in objects.of(*SCALERS):
        low, high = bounds(scaler)
        if low > high:
            yield scaler, ("spec",), f"at least {low} and at most {high} replicas"
        idle = dig(scaler.body, "spec", "idleReplicaCount")
        if isinstance(idle, int) and idle >= low:
            yield (
                scaler,
                ("spec", "idleReplicaCount"),
                f"idleReplicaCount {idle} is not below the minimum {low}",
            )
        unset = scaler.kind == "ScaledObject" and dig(scaler.body, "spec", "minReplicaCount") is None
        if unset and target_of(scaler) in ours:
            yield (
                scaler,
                ("spec",),
                "minReplicaCount is 0 by default: the next request waits for a whole start",
            )


def two_scalers(objects: Objects) -> Iterator[Found]:
    """Two autoscalers on one target undo each other."""
    for owner in {id(pods.owner): pods.owner for pods in objects.pods}.values():
        scalers = scalers_of(objects, owner)
        for scaler in scalers[1:]:
            first = scalers[0]
            yield scaler, ("spec", "scaleTargetRef"), f"{first.kind}/{first.name} scales {owner.name} too"


def replicas_pinned(objects: Objects) -> Iterator[Found]:
    """Every apply sets the number back that the autoscaler chose."""
    for owner in {id(pods.owner): pods.owner for pods in objects.pods}.values():
        replicas = dig(owner.body, "spec", "replicas")
        if replicas is not None and scalers_of(objects, owner):
            yield owner, ("spec", "replicas"), f"replicas {replicas} beside an autoscaler"


RULES = (
    Rule(
        id="scale-signal",
        sentence="Utilisation is high at moderate and excessive load alike; it cannot tell when to scale.",
        fix="scale on vllm:num_requests_waiting or queue time, with a threshold from the knee",
        check=scale_signal,
    ),
    Rule(
        id="scale-query",
        sentence="The query fails or matches nothing: KEDA takes exactly one element.",
        fix='sum(vllm:num_requests_waiting{model_name="…"}), and no metricName',
        check=scale_query,
    ),
    Rule(
        id="metric-name",
        sentence="This vLLM does not show the metric, so the query returns nothing.",
        fix="the name that the version shows: knee upgrade plan --scan DIR",
        check=metric_name,
    ),
    Rule(
        id="scale-blind",
        sentence="When the metric disappears KEDA reads zero load and scales down to the minimum.",
        fix='ignoreNullValues: "false", and a fallback with behavior currentReplicasIfHigher',
        check=scale_blind,
    ),
    Rule(
        id="scale-bounds",
        sentence="The bounds of the autoscaler contradict each other or were left to chance.",
        fix="minimum and maximum, both written down",
        check=scale_bounds,
    ),
    Rule(
        id="two-scalers",
        sentence="Two autoscalers set the replicas of one object against each other.",
        fix="one autoscaler with several triggers",
        check=two_scalers,
    ),
    Rule(
        id="replicas-pinned",
        sentence="Every apply sets the number of replicas back against the autoscaler.",
        fix="leave spec.replicas out",
        check=replicas_pinned,
    ),
)
