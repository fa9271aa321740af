"""Rules about the pod itself: image, memory, accelerators, caches, environment."""

import re
from collections.abc import Iterator
from typing import Any

from knee.catalog.flags import flag, flag_status
from knee.deploy.finding import Found, Rule
from knee.deploy.manifests import dig, items
from knee.deploy.pods import Engine, Objects

_MOVING = ("latest", "nightly", "main", "dev", "edge", "")
_SECRET = re.compile(r"(^|_)(TOKEN|API_?KEY|SECRET|PASSWORD)(_|$)", re.IGNORECASE)
_ELSEWHERE = (
    "--nnodes",
    "--node-rank",
    "--headless",
    "--data-parallel-size-local",
    "--data-parallel-address",
)


def service_links(objects: Objects) -> Iterator[Found]:
    """Kubernetes announces every Service to every pod by environment variables made from its name."""
    for engine in objects.engines:
        if engine.pods.spec.get("enableServiceLinks") is False:
            continue
        for service in objects.of("Service"):
            if service.name.startswith("vllm") and service.namespace == engine.owner.namespace:
                variable = service.name.upper().replace("-", "_") + "_PORT"
                yield (
                    engine.owner,
                    (*engine.pods.path, "enableServiceLinks"),
                    f"Service {service.name} sets {variable}",
                )


def image_pinned(objects: Objects) -> Iterator[Found]:
    """A moving tag changes flags, defaults and metric names on the next restart."""
    for engine in objects.engines:
        image = str(engine.container.get("image", ""))
        tag = image.rsplit("/", 1)[-1].partition(":")[2]
        if "@sha256:" not in image and (tag in _MOVING or tag.startswith(("latest-", "nightly-"))):
            yield engine.owner, (*engine.path, "image"), f"image {image or '(none)'}"


def _parallel(engine: Engine) -> int:
    return engine.number("--tensor-parallel-size", 1) * engine.number("--pipeline-parallel-size", 1)


def shared_memory(objects: Objects) -> Iterator[Found]:
    """Workers of one engine talk through /dev/shm, of which a container has 64 MiB."""
    for engine in objects.engines:
        if _parallel(engine) < 2 or engine.pods.spec.get("hostIPC") is True:
            continue
        volume = _volume_at(engine, "/dev/shm")  # noqa: S108 - the kernel's own path
        if volume is None or dig(volume, "emptyDir", "medium") != "Memory":
            yield engine.owner, engine.path, f"{_parallel(engine)} workers and no memory volume at /dev/shm"


def accelerators(objects: Objects) -> Iterator[Found]:
    """An engine takes exactly tensor x pipeline x data parallel accelerators."""
    for engine in objects.engines:
        if any(engine.value(name) is not None for name in _ELSEWHERE):
            continue  # one replica spans several pods
        if engine.value("--distributed-executor-backend") == "ray":
            continue
        need = _parallel(engine) * engine.number("--data-parallel-size", 1)
        limits = dig(engine.container, "resources", "limits")
        limits = limits if isinstance(limits, dict) else {}
        held = [value for name, value in limits.items() if name.endswith("/gpu")]
        have = sum(int(str(value)) for value in held if str(value).isdecimal())
        if (held and have != need) or (not held and need > 1 and not _claims(engine)):
            yield engine.owner, (*engine.path, "resources"), f"{need} needed, {have} given"


def _claims(engine: Engine) -> bool:
    return bool(dig(engine.container, "resources", "claims"))


def cache_volume(objects: Objects) -> Iterator[Found]:
    """Compiled graphs that are lost with the pod are compiled again by the next one."""
    for engine in objects.engines:
        if engine.value("--enforce-eager") is not None:
            continue  # nothing is compiled
        path = _cache_path(engine)
        volume = _volume_at(engine, path)
        if volume is None:
            yield engine.owner, engine.path, f"no volume at {path}"
        elif "emptyDir" in volume:
            yield engine.owner, engine.path, f"the volume at {path} is an emptyDir, which ends with the pod"


def _cache_path(engine: Engine) -> str:
    env = {
        str(item.get("name")): str(item.get("value", ""))
        for item in items(engine.container.get("env"))
        if isinstance(item, dict)
    }
    home = env.get("HOME") or "/root"
    return env.get("VLLM_CACHE_ROOT") or f"{env.get('XDG_CACHE_HOME') or f'{home}/.cache'}/vllm"


def _volume_at(engine: Engine, path: str) -> dict[str, Any] | None:
    """The volume whose mount holds `path`; of several, the deepest."""
    mounts = [
        (str(mount.get("mountPath", "")).rstrip("/"), mount.get("name"))
        for mount in items(engine.container.get("volumeMounts"))
        if isinstance(mount, dict)
    ]
    holding = [(where, name) for where, name in mounts if where and f"{path}/".startswith(f"{where}/")]
    if not holding:
        return None
    name = max(holding, key=lambda mount: len(mount[0]))[1]
    volumes = [
        v for v in items(engine.pods.spec.get("volumes")) if isinstance(v, dict) and v.get("name") == name
    ]
    if volumes:
        return volumes[0]
    return {"claimTemplate": name} if engine.owner.kind == "StatefulSet" else None


def secret_literal(objects: Objects) -> Iterator[Found]:
    """Whoever may read the object, or the repository, has the secret."""
    for engine in objects.engines:
        key = engine.value("--api-key")
        if key and not key.startswith("$"):
            yield engine.owner, engine.path, "--api-key with its value"
        for index, item in enumerate(items(engine.container.get("env"))):
            if isinstance(item, dict) and item.get("value") and _SECRET.search(str(item.get("name", ""))):
                yield engine.owner, (*engine.path, "env", index), f"{item['name']} with its value"


def removed_flag(objects: Objects) -> Iterator[Found]:
    """VLLM does not start with a flag that it does not know."""
    for engine in objects.engines:
        for given in engine.given:
            known = flag(given.name)
            if known is None or not engine.version:
                continue
            status = flag_status(known, engine.version)
            if status == "removed":
                instead = f"; now {known.replaced_by}" if known.replaced_by else ""
                yield engine.owner, engine.path, f"{given.name} was removed in {known.removed}{instead}"
            elif status == "not yet":
                yield (
                    engine.owner,
                    engine.path,
                    f"{given.name} came with {known.since}; the image is {engine.version}",
                )


RULES = (
    Rule(
        id="service-links",
        sentence="A Service named vllm… sets VLLM_… variables in these pods; one named vllm sets VLLM_PORT, "
        "which vLLM reads as its own and fails on.",
        fix="enableServiceLinks: false",
        check=service_links,
    ),
    Rule(
        id="image-pinned",
        sentence="The image moves: a restart may bring other defaults, flags and metric names.",
        fix="a version tag or a digest; compare releases with knee upgrade plan",
        check=image_pinned,
    ),
    Rule(
        id="shared-memory",
        sentence="Parallel workers exchange data in /dev/shm, which holds 64 MiB unless a volume is mounted.",
        fix="an emptyDir with medium Memory at /dev/shm",
        check=shared_memory,
    ),
    Rule(
        id="accelerators",
        sentence="The accelerators of the pod are not as many as the engine takes.",
        fix="a limit of tensor x pipeline x data parallel size",
        check=accelerators,
    ),
    Rule(
        id="cache-volume",
        sentence="The compile cache ends with the pod: every start compiles again, and scaling up is slow.",
        fix="a persistent volume at VLLM_CACHE_ROOT (~/.cache/vllm), or the cache in the image",
        check=cache_volume,
    ),
    Rule(
        id="secret-literal",
        sentence="A secret stands in the manifest.",
        fix="a Secret, by valueFrom.secretKeyRef",
        check=secret_literal,
    ),
    Rule(
        id="removed-flag",
        sentence="This vLLM does not know the flag, and does not start with it.",
        fix="what the catalog names instead: knee upgrade plan",
        check=removed_flag,
    ),
)
