"""Where manifests come from: a file, a folder, stdin. Bounded in bytes and files."""

import sys
from pathlib import Path

import msgspec

from knee.core.errors import InputError
from knee.deploy.manifests import Manifest, NotAManifestError, dig, items, load_text

MAX_BYTES = 4 * 1024 * 1024
MAX_FILES = 2_000

_SUFFIXES = (".yaml", ".yml", ".json")


class Skipped(msgspec.Struct, frozen=True):
    """A file that was not checked, and why."""

    file: str
    why: str


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """What was read: `skipped` holds no objects, `unreadable` could not be understood."""

    manifests: list[Manifest]
    skipped: tuple[Skipped, ...] = ()
    unreadable: tuple[Skipped, ...] = ()


def load(source: str) -> Loaded:
    """The manifests in a file, below a folder, or on stdin (`-`).

    Raises:
        InputError: nothing there can be read as manifests.
    """
    if source == "-":
        text = decode(sys.stdin.buffer.read(MAX_BYTES + 1), "stdin")
        return Loaded(manifests=load_text(text, "stdin"))
    path = Path(source)
    if path.is_dir():
        return load_folder(path)
    return Loaded(manifests=load_text(read_text(path), source))


def load_folder(folder: Path) -> Loaded:
    """Every object in the YAML and JSON files below `folder`; hidden folders are left out.

    Raises:
        InputError: there are too many files, or no object at all and nothing unreadable.
    """
    files = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix in _SUFFIXES
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    if len(files) > MAX_FILES:
        raise InputError(f"{folder} holds {len(files):,} YAML and JSON files, more than {MAX_FILES:,}")
    manifests: list[Manifest] = []
    skipped, unreadable = [], []
    for path in files:
        try:
            text = read_text(path)
            found = load_text(text, str(path))
        except NotAManifestError as error:
            skipped.append(Skipped(str(path), error.what))
        except InputError as error:
            unreadable.append(Skipped(str(path), error.what))
        else:
            manifests += found
    if not manifests and not unreadable:
        raise InputError(f"{folder} holds no Kubernetes object", "give a file or folder of manifests")
    patches = {path for manifest in manifests for path in _patches(manifest)}
    skipped += [
        Skipped(path, f"{path} is a kustomize patch: check what it makes") for path in sorted(patches)
    ]
    return Loaded(
        manifests=[manifest for manifest in manifests if str(Path(manifest.file).resolve()) not in patches],
        skipped=tuple(skipped),
        unreadable=tuple(unreadable),
    )


def _patches(manifest: Manifest) -> list[str]:
    """The files that a kustomization applies as patches: parts of objects, not objects."""
    if manifest.kind not in ("Kustomization", "Component") or "kustomize" not in manifest.api_version:
        return []
    named = [
        dig(item, "path") for key in ("patches", "patchesJson6902") for item in items(manifest.body.get(key))
    ]
    named += items(manifest.body.get("patchesStrategicMerge"))
    folder = Path(manifest.file).parent
    return [str((folder / name).resolve()) for name in named if isinstance(name, str) and "\n" not in name]


def read_text(path: Path) -> str:
    """The text of `path`.

    Raises:
        InputError: it cannot be read, is larger than `MAX_BYTES`, or is not UTF-8.
    """
    try:
        with path.open("rb") as file:
            return decode(file.read(MAX_BYTES + 1), str(path))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def decode(content: bytes, file: str) -> str:
    """`content` as text.

    Raises:
        InputError: more than `MAX_BYTES`, or not UTF-8.
    """
    if len(content) > MAX_BYTES:
        raise InputError(f"{file} is larger than {MAX_BYTES // 2**20} MiB", "manifests are small; split it")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 text (byte {error.start})") from error
