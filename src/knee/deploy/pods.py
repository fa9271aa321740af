"""What the rules look at: the pods of a set of manifests, and which containers serve vLLM."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from knee.deploy.arguments import Given, flags_in, is_serve, split
from knee.deploy.manifests import Manifest, dig, items

Path = tuple[str | int, ...]

SCALERS = ("HorizontalPodAutoscaler", "ScaledObject")

_TEMPLATES: dict[str, Path] = {
    "Pod": ("spec",),
    "Deployment": ("spec", "template", "spec"),
    "StatefulSet": ("spec", "template", "spec"),
    "DaemonSet": ("spec", "template", "spec"),
    "ReplicaSet": ("spec", "template", "spec"),
    "Rollout": ("spec", "template", "spec"),
    "Job": ("spec", "template", "spec"),
}
_NOT_ENGINES = re.compile(r"router|operator|sim\b|simulator|controller|gateway|exporter|webui", re.IGNORECASE)
_VERSION = re.compile(r"v?(\d+\.\d+(?:\.\d+)?(?:\.post\d+|rc\d+)?)(?:$|[-_+])")


class Pods(msgspec.Struct, frozen=True, kw_only=True):
    """The pods that one object makes; `path` leads to their spec."""

    owner: Manifest
    path: Path
    spec: dict[str, Any]
    labels: dict[str, Any]


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """A container that serves vLLM; `path` leads to it. `version` is "" where the image does not tell."""

    pods: Pods
    path: Path
    container: dict[str, Any]
    given: tuple[Given, ...]
    version: str

    @property
    def owner(self) -> Manifest:
        """The object that makes the pods."""
        return self.pods.owner

    def value(self, *names: str) -> str | None:
        """The last value given for one of the flags `names`: "" for a bare flag, None where there is none."""
        found = [given.value or "" for given in self.given if given.name in names]
        return found[-1] if found else None

    def number(self, name: str, default: int) -> int:
        """The value of a flag as a whole number, or `default` where it is none."""
        text = self.value(name)
        return int(text) if text is not None and text.isdecimal() else default


Key = tuple[str, str, str]
"""Kind, name and namespace of an object."""


class Objects(msgspec.Struct, frozen=True, kw_only=True):
    """All manifests that are checked together, and what is known beside them.

    The tables (`scalers` by what they scale, `by_namespace` of pods) let thousands of objects take seconds.
    """

    manifests: tuple[Manifest, ...]
    pods: tuple[Pods, ...]
    engines: tuple[Engine, ...]
    by_kind: dict[str, list[Manifest]]
    scalers: dict[Key, list[Manifest]]
    by_namespace: dict[str, list[Pods]]
    startup_s: float | None = None

    def of(self, *kinds: str) -> Iterator[Manifest]:
        """The manifests of these kinds."""
        return (manifest for kind in kinds for manifest in self.by_kind.get(kind, ()))


def key_of(manifest: Manifest) -> Key:
    """What a reference to the object names."""
    return manifest.kind, manifest.name, manifest.namespace


def target_of(scaler: Manifest) -> Key:
    """What an autoscaler scales."""
    target = dig(scaler.body, "spec", "scaleTargetRef")
    return str(dig(target, "kind") or "Deployment"), str(dig(target, "name") or ""), scaler.namespace


def gather(manifests: list[Manifest], startup_s: float | None = None) -> Objects:
    """The pods and engines in `manifests`."""
    pods = tuple(found for manifest in manifests if (found := _pods(manifest)) is not None)
    by_kind: dict[str, list[Manifest]] = {}
    scalers: dict[Key, list[Manifest]] = {}
    for manifest in manifests:
        by_kind.setdefault(manifest.kind, []).append(manifest)
        if manifest.kind in SCALERS:
            scalers.setdefault(target_of(manifest), []).append(manifest)
    by_namespace: dict[str, list[Pods]] = {}
    for found in pods:
        by_namespace.setdefault(found.owner.namespace, []).append(found)
    return Objects(
        manifests=tuple(manifests),
        pods=pods,
        engines=tuple(engine for found in pods for engine in _engines(found)),
        by_kind=by_kind,
        scalers=scalers,
        by_namespace=by_namespace,
        startup_s=startup_s,
    )


def _pods(manifest: Manifest) -> Pods | None:
    path = _TEMPLATES.get(manifest.kind)
    spec = dig(manifest.body, *path) if path else None
    if path is None or not isinstance(spec, dict):
        return None
    labels = dig(manifest.body, *path[:-1], "metadata", "labels")
    return Pods(owner=manifest, path=path, spec=spec, labels=labels if isinstance(labels, dict) else {})


def _engines(pods: Pods) -> Iterator[Engine]:
    for index, container in enumerate(items(pods.spec.get("containers"))):
        if not isinstance(container, dict):
            continue
        image = str(container.get("image", ""))
        words = words_of(container)
        if not serves(image, words):
            continue
        yield Engine(
            pods=pods,
            path=(*pods.path, "containers", index),
            container=container,
            given=tuple(flags_in(words)),
            version=version_of(image),
        )


def serves(image: str, words: list[str]) -> bool:
    """Whether a container with this image and command line serves vLLM."""
    text = " ".join(words)
    if is_serve(text):
        return True
    repository = image.rsplit("@", 1)[0].rsplit("/", 1)[-1]
    if "vllm" not in image.lower() or _NOT_ENGINES.search(repository):
        return False
    return not words or words[0].startswith("-") or "/" in words[0]  # the image's own entry point serves


def words_of(container: dict[str, Any]) -> list[str]:
    """Command and arguments as words; scripts handed to a shell are taken apart."""
    given = [container.get("command"), container.get("args")]
    words: list[str] = []
    for item in (item for part in given for item in ([part] if isinstance(part, str) else items(part))):
        text = str(item)
        words += (
            split(text)
            if any(c.isspace() for c in text) and not text.lstrip().startswith(("{", "["))
            else [text]
        )
    return words


def version_of(image: str) -> str:
    """The vLLM version in an image's tag, where the tag is one."""
    tag = image.rsplit("@", 1)[0].rsplit("/", 1)[-1].partition(":")[2]
    found = _VERSION.match(tag)
    return found.group(1) if found and "vllm" in image.lower() else ""
