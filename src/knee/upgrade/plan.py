"""What an upgrade from one vLLM to another breaks or moves, from the catalog."""

from typing import Any, Literal

import msgspec

from knee.catalog.changes import Change, DefaultChange, diff
from knee.catalog.flags import Flag, flag, flag_status
from knee.deploy.arguments import Given, flags_in, split
from knee.upgrade.scan import Hit

FlagFate = Literal["removed", "no effect", "deprecated", "not yet", "kept", "not in the catalog"]


class FlagNote(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of one flag that is in use."""

    flag: str
    value: str | None
    fate: FlagFate
    since: str = ""
    instead: str = ""


class DefaultNote(msgspec.Struct, frozen=True, kw_only=True):
    """A default that moves where the flag is not given; `pin` keeps the old one, "" where nothing does."""

    flag: str
    before: Any
    after: Any
    tier: str
    pin: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything to look at before an upgrade. `notes` say what the catalog cannot vouch for."""

    before: str
    after: str
    flags: tuple[FlagNote, ...]
    defaults: tuple[DefaultNote, ...]
    flags_gone: tuple[str, ...]
    metrics_gone: tuple[str, ...]
    hits: tuple[Hit, ...]
    scanned: int
    changes: tuple[Change, ...]
    notes: tuple[str, ...]

    @property
    def breaks(self) -> bool:
        """Whether something that is in use stops working."""
        fates = {note.fate for note in self.flags}
        return bool(fates & {"removed", "not yet"}) or any(hit.breaks for hit in self.hits)


def make_plan(
    before: str, after: str, flags: str = "", *, tier: str = "", hits: tuple[Hit, ...] = (), scanned: int = 0
) -> Plan:
    """The plan for an upgrade of a server that runs with `flags` on devices of `tier` ("": any).

    Raises:
        UsageError: `before` is newer than `after`, or one of them is no version.
    """
    difference = diff(before, after)
    given = flags_in(split(flags))
    pinned = {item.name for item in given}
    return Plan(
        before=difference.before,
        after=difference.after,
        flags=tuple(_note(item, after) for item in given),
        defaults=tuple(
            _default(item)
            for item in difference.defaults
            if item.flag not in pinned and (not tier or item.tier in ("", tier))
        ),
        flags_gone=tuple(_gone(item) for item in difference.flags_removed),
        metrics_gone=tuple(item.name for item in difference.metrics_gone),
        hits=hits,
        scanned=scanned,
        changes=difference.changes,
        notes=difference.notes,
    )


def _note(item: Given, after: str) -> FlagNote:
    known = flag(item.name)
    if known is None:
        return FlagNote(flag=item.name, value=item.value, fate="not in the catalog")
    status = flag_status(known, after)
    fate: FlagFate = "kept" if status == "available" else status
    since = {
        "removed": known.removed,
        "no effect": known.no_effect_since,
        "deprecated": known.deprecated,
        "not yet": known.since,
    }.get(fate, "")
    instead = known.replaced_by if fate in ("removed", "deprecated") else ""
    return FlagNote(flag=item.name, value=item.value, fate=fate, since=since, instead=instead)


def _default(item: DefaultChange) -> DefaultNote:
    return DefaultNote(
        flag=item.flag, before=item.before, after=item.after, tier=item.tier, pin=_pin(item.flag, item.before)
    )


def _pin(name: str, value: Any) -> str:
    if value is None or isinstance(value, dict | list):
        return ""  # chosen by vLLM: nothing on the command line says the same
    if isinstance(value, bool):
        return name if value else name.replace("--", "--no-", 1)
    return f"{name} {value}"


def _gone(item: Flag) -> str:
    return f"{item.name} ({item.removed}{f': now {item.replaced_by}' if item.replaced_by else ''})"
