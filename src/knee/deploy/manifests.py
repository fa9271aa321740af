"""Kubernetes objects from YAML or JSON text, with the line on which everything stood.

Bounded in the values that aliases lead to: a small file of nested aliases can stand for a huge document.
"""

import re
from typing import Any, cast

import msgspec
import yaml
from yaml.constructor import ConstructorError, SafeConstructor

from knee.core.errors import InputError

MAX_NODES = 400_000

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_HELM = re.compile(r"\{\{-?\s*(?:\w+\s+)*\(?\s*\.(?:Values|Release|Chart|Capabilities)\b")


_VARIABLE = re.compile(r"\$\{\w+\}")
_TEXTS = ("command", "args", "env", "data", "annotations")
"""Where a `${NAME}` may be meant for a shell or another program."""


class Mapping(dict[str, Any]):
    """A mapping and the line of each key. `twice` names keys that were given more than once."""

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: dict[str, int] = {}
        self.twice: list[tuple[str, int]] = []


class Sequence(list[Any]):
    """A list and the line of each item."""

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: list[int] = []


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One object. `line` counts from 1."""

    file: str
    line: int
    body: Mapping

    @property
    def kind(self) -> str:
        """The object's kind."""
        return str(self.body.get("kind", ""))

    @property
    def api_version(self) -> str:
        """The object's API group and version."""
        return str(self.body.get("apiVersion", ""))

    @property
    def name(self) -> str:
        """`metadata.name`, or "" where there is none."""
        return str(dig(self.body, "metadata", "name") or "")

    @property
    def namespace(self) -> str:
        """`metadata.namespace`, or "" where there is none."""
        return str(dig(self.body, "metadata", "namespace") or "")

    def line_of(self, *path: str | int) -> int:
        """The line of what stands at `path`, or of the nearest thing above it that is there."""
        value: Any = self.body
        line = self.line
        for step in path:
            named = isinstance(value, Mapping) and isinstance(step, str) and step in value
            if not named and not (
                isinstance(value, Sequence) and isinstance(step, int) and step < len(value)
            ):
                break
            line, value = value.lines[step], value[step]
        return line


def dig(value: Any, *path: str | int) -> Any:
    """What stands at `path` below `value`, or None."""
    for step in path:
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and -len(value) <= step < len(value):
            value = value[step]
        else:
            return None
    return value


def items(value: Any) -> list[Any]:
    """`value` where it is a list, else none."""
    return value if isinstance(value, list) else []


class NotAManifestError(InputError):
    """Well-formed YAML that is no Kubernetes object."""


def load_text(text: str, file: str) -> list[Manifest]:
    """The objects in `text`; a `List` stands for its items.

    Raises:
        NotAManifestError: well-formed, but a document has no apiVersion and kind, or there is none.
        InputError: broken YAML (with its line), an unrendered Helm template, or too much of it.
    """
    helm = _HELM.search(text)
    if helm:
        line = text.count("\n", 0, helm.start()) + 1
        raise InputError(
            f"{file}:{line} is an unrendered Helm template", "check what `helm template` makes of it"
        )
    try:
        nodes = [node for node in yaml.compose_all(text, Loader=_LOADER) if node is not None]
        documents = [_Reader(file).convert(node) for node in nodes]
    except (yaml.YAMLError, RecursionError) as error:
        raise _broken(error, text, file) from error
    found: list[Manifest] = []
    for document in documents:
        if document is None:
            continue
        found += _manifests(document, file)
    if not found:
        raise NotAManifestError(f"{file} is empty", "it has no YAML document")
    return found


def _manifests(document: Any, file: str) -> list[Manifest]:
    line = getattr(document, "line", 1)
    if not isinstance(document, Mapping) or not document.get("kind") or not document.get("apiVersion"):
        raise NotAManifestError(
            f"{file}:{line} is not a Kubernetes object: it has no apiVersion and kind", "give manifests only"
        )
    if str(document["kind"]).endswith("List") and isinstance(document.get("items"), list):
        return [found for item in document["items"] for found in _manifests(item, file)]
    variable = _variable(document)
    if variable is not None:
        raise InputError(
            f"{file}:{variable[1]} is an unrendered template ({variable[0]})",
            "check what `envsubst` makes of it",
        )
    return [Manifest(file=file, line=line, body=document)]


def _variable(value: Any) -> tuple[str, int] | None:
    """A value that is nothing but `${NAME}`, and its line: a template for envsubst."""
    if isinstance(value, Mapping):
        pairs = [(item, value.lines[key]) for key, item in value.items() if key not in _TEXTS]
    elif isinstance(value, Sequence):
        pairs = list(zip(value, value.lines, strict=True))
    else:
        return None
    for item, line in pairs:
        found = (item, line) if isinstance(item, str) and _VARIABLE.fullmatch(item) else _variable(item)
        if found is not None:
            return found
    return None


def _broken(error: Exception, text: str, file: str) -> InputError:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    where = f"{file}:{mark.line + 1}" if mark is not None else file
    if "{{" in text:
        return InputError(f"{where} is a template, not YAML", "render it first, e.g. with `helm template`")
    problem = getattr(error, "problem", None) or str(error).split("\n", 1)[0] or "nested too deeply"
    return InputError(f"{where} is broken YAML: {problem}")


class _Reader:
    """From PyYAML's nodes to values with lines.

    Shared nodes stay shared; what they would expand to is counted.
    """

    def __init__(self, file: str) -> None:
        self._file = file
        self._scalars = SafeConstructor()
        self._done: dict[int, tuple[Any, int]] = {}
        self._open: set[int] = set()

    def convert(self, node: Any) -> Any:
        """The value of `node`."""
        return self._visit(node)[0]

    def _visit(self, node: Any) -> tuple[Any, int]:
        key = id(node)
        if key in self._done:
            return self._done[key]
        if key in self._open:
            raise InputError(f"{self._file}:{node.start_mark.line + 1} refers to itself")
        self._open.add(key)
        found: tuple[Any, int]
        if isinstance(node, yaml.MappingNode):
            found = self._mapping(node)
        elif isinstance(node, yaml.SequenceNode):
            found = self._sequence(node)
        else:
            found = self._scalars.construct_object(node), 1
        self._open.discard(key)
        if found[1] > MAX_NODES:
            raise InputError(
                f"{self._file} stands for more than {MAX_NODES:,} values once aliases are followed"
            )
        self._done[key] = found
        return found

    def _mapping(self, node: yaml.MappingNode) -> tuple[Mapping, int]:
        seen: dict[str, int] = {}
        given = [
            (key, key.start_mark.line + 1) for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"
        ]
        self._scalars.flatten_mapping(node)
        mapping, size = Mapping(node.start_mark.line + 1), 1
        for key_node, value_node in node.value:
            key, _ = self._visit(key_node)
            if isinstance(key, dict | list):
                raise ConstructorError(None, None, "a key is not a word", key_node.start_mark)
            value, inner = self._visit(value_node)
            size += inner + 1
            mapping[str(key)] = value
            mapping.lines[str(key)] = key_node.start_mark.line + 1
        for key_node, line in given:
            name = str(cast("object", key_node.value))
            if name in seen:
                mapping.twice.append((name, line))
            seen[name] = line
        return mapping, size

    def _sequence(self, node: yaml.SequenceNode) -> tuple[Sequence, int]:
        sequence, size = Sequence(node.start_mark.line + 1), 1
        for item in node.value:
            value, inner = self._visit(item)
            size += inner
            sequence.append(value)
            sequence.lines.append(item.start_mark.line + 1)
        return sequence, size
