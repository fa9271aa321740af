"""Names of vLLM's metrics inside other text: queries, dashboards, rules, adapters.

Only whole names count. `my_vllm:num_requests_waiting`, the recording rule `job:vllm:num_requests_waiting:sum`
and `vllm:num_requests_waiting_by_team` are names of their own.
"""

import re
from collections.abc import Iterator

import msgspec

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
