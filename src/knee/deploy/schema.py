"""Fields and types of the objects of a deployment: what an API server in strict mode would refuse.

`data/kubernetes.json` is made from Kubernetes' published schemas (a test says how, and that it still agrees
with them); `data/custom.json` holds the custom resources, from their projects' type definitions. A type is a
table of fields: `name!` is required, `...` leaves the table open. A field is `string`, `integer`, `number`,
`boolean`, `intstring`, `quantity`, `duration`, `object`, `any`, `#Type`, `[]item` or `{}value`.
"""

import difflib
import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from knee.deploy.manifests import Manifest, Mapping

Fault = tuple[tuple[str | int, ...], str]
"""Where, and what is wrong there."""

_QUANTITY = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+|[KMGTPE]i|[numkMGTPE])?")
_DURATION = re.compile(r"([0-9]{1,5}(h|m|s|ms)){1,4}")
_DEEPEST = 60


class Table(msgspec.Struct, frozen=True):
    """Kinds by "apiVersion kind", and the types they lead to."""

    version: str
    kinds: dict[str, str]
    types: dict[str, dict[str, str]]


@cache
def _tables() -> tuple[Table, ...]:
    data = files("knee.deploy").joinpath("data")
    return tuple(
        msgspec.json.decode(data.joinpath(name).read_bytes(), type=Table)
        for name in ("kubernetes.json", "custom.json")
    )


def is_known(manifest: Manifest) -> bool:
    """Whether there is a table for this kind, in whatever version."""
    return any(key.endswith(f" {manifest.kind}") for table in _tables() for key in table.kinds)


def faults(manifest: Manifest) -> Iterator[Fault]:
    """What is wrong with the shape of an object; nothing for kinds that are not known."""
    wanted = f"{manifest.api_version} {manifest.kind}"
    for table in _tables():
        if wanted in table.kinds:
            yield from _check(manifest.body, f"#{table.kinds[wanted]}", table.types, ())
            if not manifest.name and manifest.kind != "EndpointPickerConfig":
                yield ("metadata",), "metadata.name is missing"
            return
    served = [
        key.split(" ")[0] for table in _tables() for key in table.kinds if key.endswith(f" {manifest.kind}")
    ]
    group = manifest.api_version.rsplit("/", 1)[0]
    same_group = [version for version in served if version.rsplit("/", 1)[0] == group] or (
        served if group in ("extensions", "apps") else []
    )
    if same_group:
        yield ("apiVersion",), f"{manifest.kind} is served as {same_group[0]}, not {manifest.api_version}"


def _check(
    value: Any, kind: str, types: dict[str, dict[str, str]], path: tuple[str | int, ...]
) -> Iterator[Fault]:
    if value is None or kind == "any" or len(path) > _DEEPEST:
        return  # null is the same as absent
    if kind.startswith("[]"):
        if not isinstance(value, list):
            yield path, f"{_named(path)} is a list, not {_seen(value)}"
        else:
            for index, item in enumerate(value):
                yield from _check(item, kind[2:], types, (*path, index))
    elif kind.startswith("{}"):
        if not isinstance(value, dict):
            yield path, f"{_named(path)} is a mapping, not {_seen(value)}"
        else:
            for key, item in value.items():
                yield from _check(item, kind[2:], types, (*path, key))
    elif kind.startswith("#"):
        yield from _fields(value, types[kind[1:]], types, path)
    elif not _PLAIN[kind](value):
        hint = ": quote it" if kind == "string" and isinstance(value, int | float) else ""
        yield path, f"{_named(path)} is of type {kind}, not {_seen(value)}{hint}"


def _fields(
    value: Any, fields: dict[str, str], types: dict[str, dict[str, str]], path: tuple[str | int, ...]
) -> Iterator[Fault]:
    if not isinstance(value, dict):
        yield path, f"{_named(path)} is a mapping, not {_seen(value)}"
        return
    if isinstance(value, Mapping):
        for key, _ in value.twice:
            yield (*path, key), f"{_named((*path, key))} is given twice"
    known = {name.removesuffix("!"): kind for name, kind in fields.items()}
    for name in fields:
        if name.endswith("!") and value.get(name[:-1]) is None:
            yield path, f"{_named((*path, name[:-1]))} is missing"
    for key, item in value.items():
        if key in known:
            yield from _check(item, known[key], types, (*path, key))
        elif "..." not in fields:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"; {near[0]}?" if near else ""
            yield (*path, key), f"{_named(path) or 'the object'} has no field {key!r}{hint}"


def _named(path: tuple[str | int, ...]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")


def _seen(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return msgspec.json.encode(value).decode() if isinstance(value, str | int | float | bool) else str(value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_integer(value) or isinstance(value, float)


_PLAIN: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": _is_integer,
    "number": _is_number,
    "boolean": lambda value: isinstance(value, bool),
    "intstring": lambda value: isinstance(value, str) or _is_integer(value),
    "quantity": lambda value: (
        _is_number(value) or (isinstance(value, str) and bool(_QUANTITY.fullmatch(value)))
    ),
    "duration": lambda value: isinstance(value, str) and bool(_DURATION.fullmatch(value)),
    "object": lambda value: isinstance(value, dict),
}
