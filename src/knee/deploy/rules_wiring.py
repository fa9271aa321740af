"""Rules about how the objects hang together: selectors, ports, and the shape of each one."""

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from knee.deploy.finding import Found, Rule
from knee.deploy.manifests import Manifest, dig, items
from knee.deploy.pods import Engine, Objects, Pods
from knee.deploy.schema import faults
from knee.deploy.selection import matches, selected

Path = tuple[str | int, ...]

_CHOOSERS = ("Service", "PodMonitor", "PodDisruptionBudget", "InferencePool")
_DEFAULT_PORT = 8000


def schema(objects: Objects) -> Iterator[Found]:
    """What an API server in strict mode would refuse."""
    for manifest in objects.manifests:
        for path, what in faults(manifest):
            yield manifest, path, what


def _selector(chooser: Manifest) -> Any:
    found = dig(chooser.body, "spec", "selector")
    return {"matchLabels": found} if chooser.kind == "Service" and found else found


def selector(objects: Objects) -> Iterator[Found]:
    """A selector that takes no pod does nothing, silently."""
    for pods in objects.pods:
        own = dig(pods.owner.body, "spec", "selector")
        if pods.owner.kind not in ("Pod", "Job") and isinstance(own, dict) and not matches(own, pods.labels):
            yield pods.owner, ("spec", "selector"), "it does not take the pods of its own template"
    beside: dict[tuple[str, str], list[str]] = {}
    for pods in objects.pods:
        beside.setdefault(_place(pods.owner), []).append(pods.owner.name)
    for chooser in objects.of(*_CHOOSERS):
        here = beside.get(_place(chooser))
        wanted = _selector(chooser)
        if here and isinstance(wanted, dict) and not selected(objects, chooser, wanted):
            names = ", ".join(sorted(set(here))[:5])
            yield chooser, ("spec", "selector"), f"it takes no pod of {names}"


def _place(manifest: Manifest) -> tuple[str, str]:
    """Namespace and folder: a tree of many deployments holds Services for pods that are not in it."""
    return manifest.namespace, str(PurePath(manifest.file).parent)


def port(objects: Objects) -> Iterator[Found]:
    """A port by a name that no container has, or by a number on which vLLM does not listen."""
    for engine in objects.engines:
        for name in ("startupProbe", "livenessProbe", "readinessProbe"):
            wanted = dig(engine.container, name, "httpGet", "port")
            if wanted is not None and not _listens(engine, wanted):
                yield engine.owner, (*engine.path, name, "httpGet", "port"), f"{name} asks port {wanted}"
    for chooser in objects.of("Service", "PodMonitor", "InferencePool"):
        chosen = selected(objects, chooser, _selector(chooser))
        for path, wanted in _ports(chooser):
            if chosen and not any(_has(objects, pods, wanted) for pods in chosen):
                yield chooser, path, f"port {wanted} of {chosen[0].owner.name}"


def _ports(chooser: Manifest) -> Iterator[tuple[Path, Any]]:
    key = {"Service": "ports", "PodMonitor": "podMetricsEndpoints", "InferencePool": "targetPorts"}[
        chooser.kind
    ]
    for index, item in enumerate(items(dig(chooser.body, "spec", key))):
        if chooser.kind == "Service":
            target = dig(item, "targetPort")
            wanted = target if target is not None else dig(item, "port")
        else:
            wanted = dig(item, "portNumber" if dig(item, "portNumber") else "port") or dig(item, "number")
        if wanted is not None:
            yield ("spec", key, index), wanted


def _has(objects: Objects, pods: Pods, wanted: Any) -> bool:
    engines = [engine for engine in objects.engines if engine.pods is pods]
    if any(_listens(engine, wanted) for engine in engines):
        return True
    declared = [
        item
        for container in items(pods.spec.get("containers"))
        for item in items(dig(container, "ports"))
        if isinstance(item, dict)
    ]
    if isinstance(wanted, int):
        others = len(items(pods.spec.get("containers"))) > len(engines)
        return any(item.get("containerPort") == wanted for item in declared) or others
    return any(item.get("name") == wanted for item in declared)


def _listens(engine: Engine, wanted: Any) -> bool:
    """Whether vLLM listens on `wanted`, a number or the name of one of the container's ports."""
    numbers = {engine.number("--port", _DEFAULT_PORT), engine.number("--data-parallel-supervisor-port", 0)}
    text = engine.value("--port")
    if text is not None and not text.isdecimal():
        return True  # $(PORT): known only to the cluster
    named = {
        item.get("name"): item.get("containerPort")
        for item in items(engine.container.get("ports"))
        if isinstance(item, dict)
    }
    return named.get(wanted) in numbers if isinstance(wanted, str) else wanted in numbers


RULES = (
    Rule(
        id="schema",
        sentence="The API server in strict mode refuses the object.",
        fix="the field or type that Kubernetes' schema names",
        check=schema,
    ),
    Rule(
        id="selector",
        sentence="The selector takes none of the pods that are defined beside it.",
        fix="the labels of the pod template",
        check=selector,
    ),
    Rule(
        id="port",
        sentence="Nothing listens on the port.",
        fix="the name of the container's port, or the number of --port (8000 by default)",
        check=port,
    ),
)
