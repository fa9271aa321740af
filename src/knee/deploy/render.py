"""From a measured knee to manifests: every object, in the order in which they are applied."""

from collections.abc import Callable
from typing import Any

import msgspec

from knee import __version__
from knee.catalog.flags import flag, flag_status
from knee.catalog.version import parse_version
from knee.core.errors import UsageError
from knee.core.lock import Lock
from knee.deploy import edge, scaling, server
from knee.deploy.commented import Because, document
from knee.deploy.naming import Site
from knee.deploy.sizing import Asked, Sizes, size

Object = dict[str, Any]

AUTOSCALERS: dict[str, Callable[[Site, Sizes], Object] | None] = {
    "keda": scaling.scaled_object,
    "hpa": scaling.hpa,
    "none": None,
}


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """The objects (values with their reasons) and what has to be said about them."""

    objects: list[Object]
    title: str
    notes: tuple[str, ...]


def render(lock: Lock, site: Site, asked: Asked, *, autoscaler: str = "keda", pool: bool = False) -> Rendered:
    """The manifests for `lock` at `site`. `pool`: hand over to an inference gateway instead of ours.

    Raises:
        UsageError: an unknown autoscaler, or contradicting wishes.
        NoAnswer: the lock has no knee to stand on.
    """
    if autoscaler not in AUTOSCALERS:
        raise UsageError(f"unknown autoscaler {autoscaler!r}", f"known: {', '.join(AUTOSCALERS)}")
    if pool and autoscaler == "hpa":
        raise UsageError(
            "the hand-over scales with keda or none", "the endpoint picker's metrics are not per pod"
        )
    drains = takes(lock.vllm_version, "--shutdown-timeout")
    sizes = size(lock, asked, drains=drains)
    scale = AUTOSCALERS[autoscaler]
    extra: list[str | Because] = []
    if drains:
        extra += ["--shutdown-timeout", Because(str(sizes.drain.value), sizes.drain.why)]
    if takes(lock.vllm_version, "--max-num-queued-reqs"):
        limit = sizes.engine_queue_limit
        extra += ["--max-num-queued-reqs", Because(str(limit.value), limit.why)]
    objects = [
        *([] if site.cache_claim else [server.cache_claim(site)]),
        server.deployment(lock, site, sizes, scaled=scale is not None, extra=extra),
        *([] if pool else [server.replicas_service(site)]),
        server.disruption_budget(site),
        server.pod_monitor(site),
        *([scale(site, sizes)] if scale is not None else []),
    ]
    if pool:
        objects += [edge.picker_config(site, sizes), edge.inference_pool(site), edge.http_route(site, sizes)]
    else:
        objects += [
            edge.lock_config(lock, site),
            edge.gateway(site, sizes),
            edge.gateway_service(site),
            server.pod_monitor(site, "gateway", "admin"),
        ]
    return Rendered(objects=objects, title=_title(lock), notes=_notes(lock, asked, drains, autoscaler))


def text_of(rendered: Rendered) -> str:
    """One YAML stream."""
    title = "\n".join([rendered.title, *rendered.notes])
    return "".join(document(item, title if item is rendered.objects[0] else "") for item in rendered.objects)


def _title(lock: Lock) -> str:
    knee = lock.knee
    breaks = f", breaks at {knee.breaks:.3g}" if knee.breaks is not None else ""
    return (
        f"{lock.model} on vLLM {lock.vllm_version or '(version unknown)'}"
        f"{f', {lock.gpu}' if lock.gpu else ''}: one replica holds {knee.holds:.3g} req/s{breaks}\n"
        f"for {lock.slo}. Rendered by knee {__version__}; render again after the next measurement."
    )


def _notes(lock: Lock, asked: Asked, drains: bool, autoscaler: str) -> tuple[str, ...]:
    notes = []
    if lock.simulated:
        notes.append("Measured on a simulated server: not figures for production.")
    if not is_version(lock.vllm_version):
        notes.append("vLLM's version is not known; the flags of 0.29 and later are assumed.")
    if not drains:
        notes.append(
            "vLLM before 0.18 has no --shutdown-timeout: preStop waits for running responses instead."
        )
    if not lock.flags:
        notes.append("The flags of the measured server are not known: vLLM's defaults; give --startup-log.")
    if asked.startup_s is None and lock.startup_s is None:
        notes.append("Start-up was not measured; give --startup-log.")
    if autoscaler == "hpa":
        notes.append(
            "The Prometheus adapter has to serve vllm_num_requests_waiting and _running as pod metrics."
        )
    return tuple(notes)


def is_version(text: str) -> bool:
    """Whether `text` is a version number of vLLM."""
    try:
        parse_version(text)
    except UsageError:
        return False
    return True


def takes(version: str, name: str) -> bool:
    """Whether a server of `version` has the flag; a version that is not known counts as the newest."""
    known = flag(name)
    return known is not None and (not is_version(version) or flag_status(known, version) == "available")
