"""What a series' name means: its family, its canonical name, and which part of a histogram it is."""

import re
from functools import lru_cache

import msgspec

from knee.catalog.metrics import metric

_PREFIX = re.compile(r"(?:ray_)?vllm[:_]")  # Ray Serve turns the colon into an underscore
_PARTS = ("bucket", "sum", "count")


class Family(msgspec.Struct, frozen=True):
    """A series' name, understood.

    `family` is the name as a TYPE line would state it, `canonical` the name used everywhere here. `kind` is
    what the catalogue says it is ("" where it does not know it), `part` which part of a histogram the series
    is by its ending. `renamed` marks an older name, `of_server` a series that no engine owns, `skip` a time
    stamp of the client library.
    """

    family: str
    canonical: str
    kind: str = ""
    part: str = ""
    vllm: bool = True
    renamed: bool = False
    of_server: bool = False
    skip: bool = False


@lru_cache(maxsize=8192)
def family_of(name: str) -> Family:
    """What the series `name` belongs to: a pure function of the name, remembered for speed."""
    prefix = _PREFIX.match(name)
    plain = name[prefix.end() :] if prefix else name
    if plain.endswith("_created"):
        return Family(name, plain, vllm=bool(prefix), skip=True)
    known = metric(plain)
    part = ""
    if known is None:
        part = next((part for part in _PARTS if plain.endswith("_" + part)), "")
        known = metric(plain.removesuffix("_" + part)) if part else None
    whole = plain.removesuffix("_" + part) if part else plain
    return Family(
        family=name.removesuffix("_" + part) if part else name,
        canonical=known.canonical if known else whole.removesuffix("_total"),
        kind=known.type if known else "",
        part=part,
        vllm=bool(prefix),
        renamed=known is not None and known.renamed,
        of_server=known is not None and "engine" not in known.labels and bool(known.v1_since),
    )
