"""YAML with the reason beside every number.

PyYAML writes no comments, and a template engine would let a number slip through without one. Here a value
that has a reason is a `Because`; a test walks what is rendered and finds every number wrapped in one.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import yaml

_WIDTH = 110


class Because(msgspec.Struct, frozen=True):
    """A value and the sentence that says where it comes from."""

    value: Any
    why: str


def plain(value: Any) -> Any:
    """`value` without its reasons: what a YAML parser reads back."""
    if isinstance(value, Because):
        return plain(value.value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def document(value: dict[str, Any], title: str = "") -> str:
    """One YAML document, with `title` as the comment above it."""
    head = [f"# {line}" for line in title.splitlines()]
    return "\n".join(["---", *head, *_lines(value, 0)]) + "\n"


def _lines(value: Any, depth: int) -> Iterator[str]:
    indent = "  " * depth
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _entry(f"{indent}{_scalar(key)}:", item, depth)
    else:
        for item in value:
            yield from _entry(f"{indent}-", item, depth)


def _entry(head: str, item: Any, depth: int) -> Iterator[str]:
    """`head` is `key:` or `-`, indented; what follows stands beside or below it."""
    why = ""
    while isinstance(item, Because):
        why, item = item.why or why, item.value
    if isinstance(item, dict | list) and item:
        if why:
            yield f"{'  ' * depth}# {why}"
        nested = list(_lines(item, depth + 1))
        if head.endswith("-"):  # the first line of the item shares the dash's line
            first = next(index for index, line in enumerate(nested) if not line.lstrip().startswith("#"))
            yield from ("  " * depth + line.lstrip() for line in nested[:first])
            yield f"{head} {nested[first].lstrip()}"
            yield from nested[first + 1 :]
        else:
            yield head
            yield from nested
    elif isinstance(item, str) and "\n" in item and _is_block(item):
        if why:
            yield f"{'  ' * depth}# {why}"
        yield f"{head} |"
        yield from (
            f"{'  ' * (depth + 1)}{line}" if line else "" for line in item.removesuffix("\n").split("\n")
        )
    else:
        text = f"{head} {_scalar(item)}"
        if why and len(text) + len(why) + 3 > _WIDTH:
            yield f"{'  ' * depth}# {why}"
            yield text
        else:
            yield f"{text}  # {why}" if why else text


def _is_block(text: str) -> bool:
    """Whether a literal block holds `text` exactly: one newline at its end, no indent, only printable."""
    lines = text.split("\n")
    return (
        text.endswith("\n") and not text.endswith("\n\n") and bool(lines[0])
        and not lines[0][0].isspace() and all(c.isprintable() or c == "\n" for c in text)
    )  # fmt: skip


def _scalar(value: Any) -> str:
    if value is None or isinstance(value, bool | dict | list):  # of the last two only empty ones come here
        return {"None": "null", "True": "true", "False": "false"}.get(str(value), str(value))
    if isinstance(value, int | float):
        return str(yaml.safe_dump(value)).split("\n", 1)[0]
    if _is_plain(value):
        return str(value)
    style = "'" if '"' in value and "'" not in value and value.isprintable() and value.isascii() else '"'
    quoted = yaml.safe_dump(value, default_style=style, allow_unicode=True, width=float("inf"))
    return str(quoted).rstrip("\n")


def _is_plain(text: str) -> bool:
    """Whether `text` may stand unquoted anywhere: it reads back as itself and cannot be taken for syntax."""
    if not text or not text.isascii() or not all(c.isalnum() or c in "-._/+:" for c in text):
        return False
    if text[0] in ".+:" or text.endswith(":") or (text[0] == "-" and not text[2:3].isalpha()):
        return False
    return bool(yaml.safe_load(text) == text)
