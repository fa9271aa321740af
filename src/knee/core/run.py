"""The run directory: what a measurement leaves behind, so that it can be read, compared and resumed.

    plan.json       written first: target, workload, SLO, seed, tool version (never a secret)
    points.jsonl    one `Point` a line, appended as each is finished
    records.jsonl   one `RequestRecord` a line
    snapshots.jsonl one `Snapshot` a line, with the number of its point
    run.json        written last and atomically: the knee, the diagnosis, how the run ended

A killed run has no run.json and loses at most the line that was being written.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from knee import __version__
from knee.core.errors import InputError

SCHEMA = 1
PLAN, POINTS, RECORDS, SNAPSHOTS, MANIFEST = (
    "plan.json",
    "points.jsonl",
    "records.jsonl",
    "snapshots.jsonl",
    "run.json",
)

T = TypeVar("T")


def create_run(path: Path, plan: dict[str, Any]) -> Path:
    """Make the run directory `path` and write its plan.

    Raises:
        InputError: the directory exists and is not empty, or cannot be written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise InputError(f"{path} exists and is not empty", "choose another --out, or --resume it")
        write_atomically(path / PLAN, {"schema": SCHEMA, "knee": __version__, **plan})
    except OSError as error:
        raise InputError(f"cannot write a run to {path}: {error.strerror}") from error
    return path


def new_folder(parent: Path, name: str) -> Path:
    """`parent/name-N` with the first N that is free; nothing is made."""
    number = 1
    while (parent / f"{name}-{number}").exists():
        number += 1
    return parent / f"{name}-{number}"


def open_run(path: Path) -> dict[str, Any]:
    """The plan of the run in `path`.

    Raises:
        InputError: `path` is not a run directory, or was written by a newer schema.
    """
    if not path.is_dir() or not (path / PLAN).is_file():
        raise InputError(
            f"{path} is not a run directory", f"a run holds a {PLAN}; `knee sweep --out DIR` makes one"
        )
    plan = _read_json(path / PLAN)
    if not isinstance(plan, dict) or plan.get("schema") != SCHEMA:
        raise InputError(
            f"{path / PLAN} has schema {plan.get('schema') if isinstance(plan, dict) else '?'}, not {SCHEMA}"
        )
    return plan


def read_manifest(path: Path) -> dict[str, Any] | None:
    """What run.json says, or None where the run did not end."""
    return _read_json(path / MANIFEST) if (path / MANIFEST).is_file() else None


def append_lines(path: Path, items: Iterable[Any]) -> None:
    """Append each item as one JSON line, and see to it that they reach the disk."""
    with path.open("ab") as file:
        for item in items:
            file.write(msgspec.json.encode(item) + b"\n")
        file.flush()
        os.fsync(file.fileno())


def write_lines(path: Path, items: Iterable[Any]) -> None:
    """Put `items` in place of all the lines of `path`, atomically."""
    draft = path.with_name(path.name + ".tmp")
    draft.unlink(missing_ok=True)
    append_lines(draft, items)
    draft.replace(path)


def read_lines(path: Path, kind: type[T]) -> Iterator[T]:
    """The lines of `path` as `kind`; nothing where there is no such file.

    A last line without its end is what a killed run was writing; it is left out.

    Raises:
        InputError: a whole line is not a `kind`.
    """
    if not path.is_file():
        return
    decoder = msgspec.json.Decoder(kind)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield decoder.decode(line)
            except msgspec.MsgspecError as error:
                raise InputError(f"{path}:{number} cannot be read: {error}") from error


def write_atomically(path: Path, value: Any) -> None:
    """Write `value` as JSON so that `path` holds either the old text or the whole new one."""
    draft = path.with_name(path.name + ".tmp")
    with draft.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    with contextlib.suppress(OSError):  # not every file system lets a directory be synced
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _read_json(path: Path) -> Any:
    try:
        return msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
