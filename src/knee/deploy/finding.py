"""What a rule is, and what it finds."""

from collections.abc import Callable, Iterator

import msgspec

from knee.deploy.manifests import Manifest
from knee.deploy.pods import Objects

Found = tuple[Manifest, tuple[str | int, ...], str]
"""Where (object and path), and what is seen there."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """`sentence` says what is wrong wherever the rule fires, `fix` what to write instead."""

    id: str
    sentence: str
    fix: str
    check: Callable[[Objects], Iterator[Found]]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One rule at one place; `seen` is what stands there."""

    rule: str
    file: str
    line: int
    object: str
    seen: str
    sentence: str
    fix: str
