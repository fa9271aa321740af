"""Names, labels and arguments that several of the rendered objects share."""

import re

import msgspec

from knee.core.errors import UsageError

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")

SERVER_PORT = 8000
"""vLLM's own default port."""
GATEWAY_PORT = 8080
CACHE = "/cache"
"""Where the volume with vLLM's compile cache (`vllm`) and the weights (`huggingface`) is mounted."""


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Where the objects go, and what surrounds them there."""

    name: str
    namespace: str = ""
    image: str
    gateway_image: str
    gpus: int
    gpu_resource: str = "nvidia.com/gpu"
    prometheus: str = "http://prometheus-operated.monitoring.svc:9090"
    cache_claim: str = ""
    cache_size: str = "200Gi"
    parent_gateway: str = "inference-gateway"
    endpoint_picker: str = ""


def name_of(model: str, wanted: str = "") -> str:
    """A name that Kubernetes takes: `wanted`, or one made from the model's.

    It never begins with `vllm`: a Service of such a name injects VLLM_PORT into its neighbours, which vLLM
    reads as its own setting.

    Raises:
        UsageError: `wanted` is not a DNS label of at most 40 characters.
    """
    if wanted:
        if not _NAME.fullmatch(wanted) or wanted.startswith("vllm"):
            raise UsageError(
                f"not a name for a deployment: {wanted!r}",
                "lower case letters, digits and '-', at most 40, and not beginning with 'vllm'",
            )
        return wanted
    text = re.sub(r"[^a-z0-9]+", "-", model.lower().rsplit("/", 1)[-1]).strip("-")[:30].strip("-")
    return (
        text if _NAME.fullmatch(text) and not text.startswith("vllm") else f"m-{text or 'model'}".strip("-")
    )


def metadata(site: Site, suffix: str = "", part: str = "") -> dict[str, object]:
    """`metadata` of the object `NAME-suffix`."""
    found: dict[str, object] = {"name": f"{site.name}-{suffix}" if suffix else site.name}
    if site.namespace:
        found["namespace"] = site.namespace
    return found | {"labels": labels(site, part)}


def labels(site: Site, part: str = "") -> dict[str, str]:
    """The labels that select the pods of one part."""
    return {"app.kubernetes.io/name": site.name} | ({"app.kubernetes.io/component": part} if part else {})
