"""Files as a source: metrics pages, one instant each; a directory of them; a server's log."""

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from knee.core.errors import InputError
from knee.core.snapshot import Snapshot
from knee.metrics.logs import read_log
from knee.metrics.normalise import parse_page

MAX_FILE_BYTES = 256 * 1024 * 1024
MAX_FILES = 10_000

_TAKEN = re.compile(r"#\s*captured_at\s+([0-9]+(?:\.[0-9]+)?)")
_PAGES = (".prom", ".txt", ".metrics")


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """What files tell: snapshots in order of time, and the flags that a log states."""

    snapshots: tuple[Snapshot, ...]
    flags: dict[str, str] = {}


def read_files(paths: Sequence[Path]) -> Source:
    """Metrics pages, directories of pages and logs, together; pages of one call are one server.

    A page's instant stands in a line `# captured_at SECONDS` before the first sample, or is the time its file
    was last changed.

    Raises:
        InputError: a file cannot be read, or is neither a metrics page of vLLM nor a log with periodic lines.
    """
    pages = [page for path in paths for page in (_pages(path) if path.is_dir() else [path])]
    if len(pages) > MAX_FILES:
        raise InputError(f"{len(pages):,} files; at most {MAX_FILES:,} are read at once")
    snapshots: list[Snapshot] = []
    flags: dict[str, str] = {}
    guessed = 0
    for path in pages:
        text = _read(path)
        if looks_like_log(text):
            log = read_log(text.splitlines(), "" if len(pages) == 1 else path.name)
            if not log.snapshots and len(pages) == 1:
                raise InputError(
                    f"{path} is a log without the line that vLLM writes every ten seconds",
                    "let the server run under load for a while, or give its /metrics page",
                )
            snapshots.extend(log.snapshots)
            flags.update(log.flags)
            continue
        taken = _TAKEN.search(text[:2000])
        guessed += taken is None
        at_ns = round(float(taken[1]) * 1e9) if taken else path.stat().st_mtime_ns
        snapshots.append(parse_named(path, text, at_ns))
    if guessed > 1 and len({snapshot.at_ns for snapshot in snapshots}) < len(snapshots):
        raise InputError(
            "these pages do not say when they were taken",
            "put a line `# captured_at SECONDS` at the top of each, or give a URL",
        )
    return Source(snapshots=tuple(sorted(snapshots, key=lambda s: s.at_ns)), flags=flags)


def looks_like_log(text: str) -> bool:
    """Whether `text` is a server's log rather than a metrics page."""
    head = text[:200_000]
    return "Avg prompt throughput:" in head or (
        "vllm:" not in head
        and bool(re.search(r"^(\(\w+.*?\) )?(INFO|WARNING|ERROR|DEBUG)\b", head, re.MULTILINE))
    )


def parse_named(path: Path, text: str, at_ns: int) -> Snapshot:
    """The snapshot of a page that a file holds; its errors name the file."""
    try:
        return msgspec.structs.replace(parse_page(text, at_ns, str(path)), source="")
    except InputError as error:
        if text.strip():
            raise
        raise InputError(f"{path} is empty", error.hint) from error


def _pages(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.iterdir() if path.suffix in _PAGES and path.is_file())
    if not found:
        raise InputError(
            f"{folder} holds no metrics pages",
            f"a page is a file ending in {', '.join(_PAGES)}, one instant each",
        )
    return found


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InputError(
                f"{path} is larger than {MAX_FILE_BYTES // 2**20} MiB", "give the part of interest"
            )
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
