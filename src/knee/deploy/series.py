"""Names of vLLM's metrics inside other text: queries, dashboards, rules, adapters.

Only whole names count. `my_vllm:num_requests_waiting`, the recording rule `job:vllm:num_requests_waiting:sum`
and `vllm:num_requests_waiting_by_team` are names of their own.
"""

import re
from collections.abc import Iterator

import msgspec

from knee.catalog.metrics import Metric, metric

_SAMPLE = re.compile(r"_(?:bucket|sum|count|created)$")
_NAME = re.compile(
    r"(?<![A-Za-z0-9_:.\-])(?:ray_)?vllm[:_][A-Za-z0-9_:]*[A-Za-z0-9_](?P<more>\.[*+])?(?![A-Za-z0-9_:])"
)
_OWN = re.compile(r"vllm:[a-z0-9_]+|(?:ray_)?vllm_[a-z0-9_]+")


class Series(msgspec.Struct, frozen=True):
    """A name at `start` in a text. `pattern`: it goes on with `.*` or `.+` and stands for all it begins."""

    name: str
    start: int
    pattern: bool


def series_in(text: str) -> Iterator[Series]:
    """The names in `text`, in order."""
    for found in _NAME.finditer(text):
        more = found.group("more") or ""
        name = found.group(0).removesuffix(more)
        if _OWN.fullmatch(name):
            yield Series(name, found.start(), bool(more))


def known(name: str) -> tuple[Metric, str] | None:
    """The catalog's entry of a name, and the suffix of the sample (`_bucket`, `_sum`, …); None for others."""
    whole = metric(name)
    if whole is not None:
        return whole, ""
    suffix = _SAMPLE.search(name)
    part = metric(name[: suffix.start()]) if suffix else None
    return (part, suffix.group(0)) if part is not None and suffix else None
