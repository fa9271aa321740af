"""Which pods a selector takes, and how many replicas an object has."""

from typing import Any

from knee.deploy.manifests import Manifest, dig
from knee.deploy.pods import Objects, Pods, key_of


def matches(selector: Any, labels: dict[str, Any]) -> bool:
    """Whether a label selector (`matchLabels`, `matchExpressions`) takes `labels`; an empty one takes all."""
    if not isinstance(selector, dict):
        return False
    wanted = selector.get("matchLabels")
    if isinstance(wanted, dict) and any(labels.get(key) != value for key, value in wanted.items()):
        return False
    return all(_expression(item, labels) for item in selector.get("matchExpressions") or [])


def _expression(item: Any, labels: dict[str, Any]) -> bool:
    if not isinstance(item, dict):
        return False
    key, values = item.get("key"), item.get("values") or []
    held: dict[str, bool] = {
        "In": labels.get(str(key)) in values,
        "NotIn": labels.get(str(key)) not in values,
        "Exists": key in labels,
        "DoesNotExist": key not in labels,
    }
    return held.get(str(item.get("operator")), False)


def selected(objects: Objects, chooser: Manifest, selector: Any) -> list[Pods]:
    """The pods of `chooser`'s namespace that `selector` takes."""
    return [
        pods for pods in objects.by_namespace.get(chooser.namespace, ()) if matches(selector, pods.labels)
    ]


def scalers_of(objects: Objects, owner: Manifest) -> list[Manifest]:
    """The autoscalers whose target is `owner`."""
    return objects.scalers.get(key_of(owner), [])


def bounds(scaler: Manifest) -> tuple[int, int]:
    """Fewest and most replicas of an autoscaler; KEDA's defaults are 0 and 100, an HPA's minimum 1."""
    spec = dig(scaler.body, "spec")
    if scaler.kind == "ScaledObject":
        return _whole(dig(spec, "minReplicaCount"), 0), _whole(dig(spec, "maxReplicaCount"), 100)
    return _whole(dig(spec, "minReplicas"), 1), _whole(dig(spec, "maxReplicas"), 1)


def smallest_replicas(objects: Objects, owner: Manifest) -> int:
    """The fewest replicas that `owner` runs with."""
    scalers = scalers_of(objects, owner)
    return min(
        (bounds(scaler)[0] for scaler in scalers), default=_whole(dig(owner.body, "spec", "replicas"), 1)
    )


def largest_replicas(objects: Objects, owner: Manifest) -> int:
    """The most replicas that `owner` runs with."""
    scalers = scalers_of(objects, owner)
    return max(
        (bounds(scaler)[1] for scaler in scalers), default=_whole(dig(owner.body, "spec", "replicas"), 1)
    )


def _whole(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default
