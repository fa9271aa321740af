"""What a new version changes: behaviour in words, and the difference of two versions from the other files."""

from typing import Any, Literal, get_args

import msgspec

from knee.catalog.flags import Flag, Tier, all_flags, flag_default, flag_status
from knee.catalog.load import read_data, releases
from knee.catalog.logs import LogLine, all_log_lines
from knee.catalog.metrics import Metric, all_metrics, is_exposed
from knee.catalog.version import Version, parse_version
from knee.core.errors import UsageError

ChangeKind = Literal["default", "behaviour", "metric", "log", "endpoint", "benchmark", "dependency"]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One change that came with `version`; `basis` says how it is known ("source": read from the release)."""

    version: str
    kind: ChangeKind
    text: str
    basis: str


class DefaultChange(msgspec.Struct, frozen=True, kw_only=True):
    """A flag whose default differs; `tier` names the devices it holds for, "" for all."""

    flag: str
    before: Any
    after: Any
    tier: str = ""


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the catalog knows that differs between two versions, for a server with a V1 engine."""

    before: str
    after: str
    flags_added: tuple[Flag, ...]
    flags_removed: tuple[Flag, ...]
    flags_deprecated: tuple[Flag, ...]
    defaults: tuple[DefaultChange, ...]
    metrics_added: tuple[Metric, ...]
    metrics_gone: tuple[Metric, ...]
    log_lines: tuple[LogLine, ...]
    changes: tuple[Change, ...]
    notes: tuple[str, ...] = ()


def all_changes() -> tuple[Change, ...]:
    """Every change, oldest first."""
    return read_data("changes.json", tuple[Change, ...])


def changes(before: str | Version, after: str | Version) -> tuple[Change, ...]:
    """What came after `before` up to and including `after`."""
    old, new = parse_version(before), parse_version(after)
    return tuple(c for c in all_changes() if new.reaches(c.version) and not old.reaches(c.version))


def diff(before: str | Version, after: str | Version) -> Diff:
    """What differs between two versions.

    Raises:
        UsageError: `before` is newer than `after`, or one of them is no version.
    """
    old, new = parse_version(before), parse_version(after)
    if old.release > new.release:
        raise UsageError(f"{old} is newer than {new}", f"write the older one first: {new} {old}")
    present = ("available", "deprecated", "no effect")
    had = {f.name for f in all_flags() if flag_status(f, old) in present}
    has = {f.name for f in all_flags() if flag_status(f, new) in present}
    weak = ("deprecated", "no effect")
    return Diff(
        before=str(old),
        after=str(new),
        flags_added=tuple(f for f in all_flags() if f.name in has - had),
        flags_removed=tuple(f for f in all_flags() if f.name in had - has),
        flags_deprecated=tuple(
            f
            for f in all_flags()
            if flag_status(f, new) in weak and flag_status(f, old) not in (flag_status(f, new), "not yet")
        ),
        defaults=_default_changes(old, new, had & has),
        metrics_added=tuple(
            m for m in all_metrics() if is_exposed(m, new, "V1") and not is_exposed(m, old, "V1")
        ),
        metrics_gone=tuple(
            m for m in all_metrics() if is_exposed(m, old, "V1") and not is_exposed(m, new, "V1")
        ),
        log_lines=tuple(
            line
            for line in all_log_lines()
            if (new.reaches(line.since) and not old.reaches(line.since))
            or (line.until and new.release > parse_version(line.until).release >= old.release)
        ),
        changes=changes(old, new),
        notes=_notes(old, new),
    )


def _default_changes(old: Version, new: Version, names: set[str]) -> tuple[DefaultChange, ...]:
    found: list[DefaultChange] = []
    for item in all_flags():
        if item.name not in names:
            continue
        by_tier = "max-num-seqs" in item.name or "max-num-batched-tokens" in item.name
        for tier in get_args(Tier) if by_tier else (None,):
            was, now = flag_default(item.name, old, tier), flag_default(item.name, new, tier)
            if was is not None and now is not None and was.value != now.value:
                found.append(
                    DefaultChange(flag=item.name, before=was.value, after=now.value, tier=tier or "")
                )
    return tuple(found)


def _notes(old: Version, new: Version) -> tuple[str, ...]:
    inspected = [parse_version(text) for text in releases().inspected]
    notes = [
        f"{version} is {'newer' if version > inspected[-1] else 'older'} than the catalog, "
        f"which covers {inspected[0]} to {inspected[-1]}"
        for version in (old, new)
        if version.release > inspected[-1].release or version.release < inspected[0].release
    ]
    if not old.reaches("0.8.0"):
        notes.append(f"{old} runs the V0 engine by default; the metrics compared are those of V1")
    return tuple(notes)
