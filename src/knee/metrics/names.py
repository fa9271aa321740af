"""What a series' name means: its family, its canonical name, and which part of a histogram it is."""

from functools import lru_cache

import msgspec

_RENAMED = {
    "gpu_cache_usage_perc": "kv_cache_usage_perc",
    "gpu_prefix_cache_queries_total": "prefix_cache_queries",
    "gpu_prefix_cache_hits_total": "prefix_cache_hits",
    "time_per_output_token_seconds": "inter_token_latency_seconds",
    "time_in_queue_requests": "request_queue_time_seconds",
}
_PARTS = ("bucket", "sum", "count")


class Family(msgspec.Struct, frozen=True):
    """A series' name, understood.

    `family` is the name as a TYPE line would state it, `canonical` the name used everywhere here, `part`
    which part of a histogram the series is by its ending, `histogram` whether the ending alone proves it.
    """

    family: str
    canonical: str
    part: str = ""
    vllm: bool = True
    renamed: bool = False
    histogram: bool = False
    of_server: bool = False
    skip: bool = False


@lru_cache(maxsize=8192)
def family_of(name: str) -> Family:
    """What the series `name` belongs to. A pure function of the name, remembered for speed."""
    vllm = name.startswith(("vllm:", "vllm_"))  # Ray Serve turns the colon into an underscore
    base = name[5:] if vllm else name
    if base.endswith("_created"):
        return Family(name, base, vllm=vllm, skip=True)
    part = next((part for part in _PARTS if base.endswith("_" + part)), "")
    whole = base.removesuffix("_" + part) if part else base
    canonical = _RENAMED.get(whole) or whole.removesuffix("_total")
    return Family(
        family=name.removesuffix("_" + part) if part else name,
        canonical=canonical,
        part=part,
        vllm=vllm,
        renamed=whole in _RENAMED,
        histogram=bool(part),
        of_server=canonical == "admission_rejections",
    )
