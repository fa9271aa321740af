"""Read the data files of the catalog, once, when something is first looked up."""

from importlib.resources import files
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_loaded: dict[str, Any] = {}


def read_data(name: str, kind: type[T]) -> T:
    """The file `name` of `data/` as a `kind`; a file that does not decode is a defect of this package."""
    if name not in _loaded:
        content = files("knee.catalog").joinpath("data", name).read_bytes()
        _loaded[name] = msgspec.json.decode(content, type=kind)
    found: T = _loaded[name]
    return found


class Releases(msgspec.Struct, frozen=True):
    """`inspected`: releases whose source the facts come from; `recorded`: those a server was recorded of."""

    inspected: tuple[str, ...]
    recorded: tuple[str, ...]


def releases() -> Releases:
    """Which releases the catalog knows, oldest first."""
    return read_data("releases.json", Releases)
