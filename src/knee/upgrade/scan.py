"""Where dashboards, rules, manifests and scripts use what a new version no longer has.

Nothing is changed: each hit names its file and line. Metrics are found in any text file. Flags are found
where a command starts vLLM: containers in YAML, `vllm serve` in scripts; and, in templates that cannot be
parsed, as list items of flags that only vLLM has.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from knee.catalog.flags import Flag, flag, flag_status
from knee.catalog.metrics import all_metrics, exposed_names, is_exposed
from knee.core.errors import InputError
from knee.deploy.arguments import flags_in, is_serve, spelled, split
from knee.deploy.pods import serves, words_of
from knee.deploy.series import Series, known, series_in

MAX_FILES = 20_000
MAX_BYTES = 4 * 1024 * 1024
_SKIP = {"node_modules", "__pycache__", "venv"}
_YAML = (".yaml", ".yml", ".json")
_ITEM = re.compile(r"""^\s*(?:-\s+)?["']?(--[a-z][\w-]+)(?=["'=\s,\]]|$)""")


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """One use at one place. `breaks`: it stops working; else it is deprecated or does nothing."""

    file: str
    line: int
    kind: str
    name: str
    what: str
    instead: str = ""
    breaks: bool = True


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    """All hits, in the order of files and lines, and how many files were read; `skipped` were too large."""

    hits: tuple[Hit, ...]
    files: int
    skipped: tuple[str, ...]


def scan(root: Path, after: str) -> Scan:
    """What below `root` a vLLM of version `after` does not have.

    Raises:
        InputError: no such file or folder, or too many files.
        UsageError: `after` is no version.
    """
    if not root.exists():
        raise InputError(f"{root} does not exist", "give the folder of dashboards, rules and manifests")
    hits: dict[Hit, None] = {}
    skipped, files = [], 0
    for path in _files(root):
        content = path.read_bytes() if path.stat().st_size <= MAX_BYTES else None
        if content is None:
            skipped.append(str(path))
            continue
        if b"\0" in content[:8192]:
            continue
        files += 1
        text = content.decode("utf-8", "replace")
        name = str(path)
        hits |= dict.fromkeys(_metrics(text, name, after))
        hits |= dict.fromkeys(_flags(text, name, after, path.suffix))
    ordered = sorted(hits, key=lambda hit: (hit.file, hit.line, hit.name))
    return Scan(hits=tuple(ordered), files=files, skipped=tuple(skipped))


def _files(root: Path) -> list[Path]:
    if root.is_file():
        return [root]
    found = []
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if any(part.startswith(".") or part in _SKIP for part in parts) or not path.is_file():
            continue
        found.append(path)
        if len(found) > MAX_FILES:
            raise InputError(f"{root} holds more than {MAX_FILES:,} files", "give a smaller folder")
    return found


def _metrics(text: str, file: str, after: str) -> Iterator[Hit]:
    line, at = 1, 0
    for found in series_in(text):
        line, at = line + text.count("\n", at, found.start), found.start
        told = _pattern(found, after) if found.pattern else _series(found, after)
        if told is not None:
            what, instead = told
            yield Hit(file=file, line=line, kind="metric", name=found.name, what=what, instead=instead)


def _series(found: Series, after: str) -> tuple[str, str] | None:
    entry = known(found.name)
    if entry is None or is_exposed(entry[0], after):
        return None
    item, suffix = entry
    now = exposed_names(item.canonical, after)
    # Ray Serve writes _ for :, so a new name is spelled as the old one was
    plain = now[0].removeprefix("vllm:") if now else ""
    prefix = found.name[: found.name.index("vllm") + 5]
    since = item.hidden or item.removed
    what = f"not shown since {since}" if since else f"not shown by {after}"
    return what, f"{prefix}{plain}{suffix}" if now else ""


def _pattern(found: Series, after: str) -> tuple[str, str] | None:
    """A pattern such as `vllm:gpu_cache.*` that begins names of other versions only."""
    start = found.name.replace("vllm_", "vllm:", 1)
    begun = [item for item in all_metrics() if item.name.startswith(start)]
    if not begun or any(is_exposed(item, after) for item in begun):
        return None
    now = sorted({name for item in begun for name in exposed_names(item.canonical, after)})
    return "a pattern that matches nothing any more", ", ".join(now)


def _flags(text: str, file: str, after: str, suffix: str) -> Iterator[Hit]:
    if "vllm" not in text.lower():
        return
    if suffix in _YAML:
        try:
            nodes = list(yaml.compose_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
        except (yaml.YAMLError, RecursionError):
            yield from _listed(text, file, after)
            return
        for node in nodes:
            yield from _containers(node, text, file, after)
        return
    yield from _commands(text, file, after)


def _containers(node: Any, text: str, file: str, after: str) -> Iterator[Hit]:
    """Flags of every mapping below `node` that is a container of vLLM."""
    todo, seen = [node], set()
    while todo:
        at = todo.pop()
        if at is None or id(at) in seen:
            continue
        seen.add(id(at))
        if isinstance(at, yaml.SequenceNode):
            todo += at.value
        elif isinstance(at, yaml.MappingNode):
            todo += [value for _, value in at.value]
            fields = {key.value: value for key, value in at.value if isinstance(key, yaml.ScalarNode)}
            container = {name: _words(fields[name]) for name in ("command", "args") if name in fields}
            if "entrypoint" in fields:  # compose: the program, before its command
                container = {"command": [*_words(fields["entrypoint"]), *container.get("command", [])]}
            image = fields["image"].value if isinstance(fields.get("image"), yaml.ScalarNode) else ""
            words = words_of(container)
            if words and serves(str(image), words):
                first = at.start_mark.line
                block = text.splitlines()[first : at.end_mark.line + 1]
                yield from _used(words, block, first, file, after)


def _words(node: Any) -> list[str]:
    if isinstance(node, yaml.SequenceNode):
        return [str(item.value) for item in node.value if isinstance(item, yaml.ScalarNode)]
    return [str(node.value)] if isinstance(node, yaml.ScalarNode) else []


def _commands(text: str, file: str, after: str) -> Iterator[Hit]:
    """Flags of every command in a script that starts vLLM; a backslash goes on with the next line."""
    lines = text.splitlines()
    index = 0
    while index < len(lines):
        end = index
        while end + 1 < len(lines) and lines[end].rstrip().endswith("\\"):
            end += 1
        block = lines[index : end + 1]
        command = " ".join(line.rstrip().removesuffix("\\") for line in block)
        if is_serve(command) and not command.lstrip().startswith(("#", "//")):
            yield from _used(split(command), block, index, file, after)
        index = end + 1


def _used(words: list[str], block: list[str], first: int, file: str, after: str) -> Iterator[Hit]:
    for given in flags_in(words):
        item = flag(given.name)
        if item is None:
            continue
        dashed = re.compile(r"(?<![\w-])" + re.escape(given.name).replace(r"\-", "[-_]") + r"(?![\w-])")
        at = next((n for n, line in enumerate(block) if dashed.search(line)), 0)
        hit = _fate(item, given.name, after, file, first + at + 1)
        if hit is not None:
            yield hit


def _listed(text: str, file: str, after: str) -> Iterator[Hit]:
    """In a template: list items that begin with a flag whose name is long enough to be vLLM's alone."""
    for number, line in enumerate(text.splitlines(), 1):
        found = _ITEM.match(line)
        name = spelled(found.group(1)) if found else ""
        item = flag(name) if name.count("-") >= 4 else None
        hit = _fate(item, name, after, file, number) if item is not None else None
        if hit is not None:
            yield hit


def _fate(item: Flag, name: str, after: str, file: str, line: int) -> Hit | None:
    status = flag_status(item, after)
    told = {
        "removed": (f"removed in {item.removed}", True),
        "no effect": (f"without effect since {item.no_effect_since}", False),
        "deprecated": (f"deprecated since {item.deprecated}", False),
        "not yet": (f"came with {item.since}", True),
    }.get(status)
    if told is None:
        return None
    what, breaks = told
    return Hit(
        file=file, line=line, kind="flag", name=name, what=what, instead=item.replaced_by, breaks=breaks
    )
