"""Entries of the catalog looked up by name, with the nearest names where there is none."""

import difflib
from typing import Any, Literal

import msgspec

from knee.catalog.flags import Flag, Tier, all_flags, flag, flag_default, flag_status
from knee.catalog.logs import LogLine, all_log_lines, log_line, log_patterns
from knee.catalog.metrics import Metric, all_metrics, exposed_names, is_exposed, labels_at, metric
from knee.catalog.version import parse_version
from knee.core.errors import UsageError

Kind = Literal["flag", "metric", "log"]
_TIERS: tuple[Tier, ...] = ("huge", "large", "a100_80g", "small", "cpu")


class FlagEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A flag, and where a version was given its state there and its default by device tier ("" for all)."""

    flag: Flag
    version: str = ""
    status: str = ""
    defaults: dict[str, Any] = {}


class MetricEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A series, and where a version was given whether it is exposed there, under which names and labels."""

    metric: Metric
    version: str = ""
    exposed: bool | None = None
    names: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()


class LogEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A kind of log line, and where a version was given whether that one writes it."""

    line: LogLine
    version: str = ""
    written: bool | None = None


def flag_entry(name: str, version: str = "") -> FlagEntry:
    """The flag `name`.

    Raises:
        UsageError: there is no such flag, or `version` is none.
    """
    found = flag(name)
    if found is None:
        raise _unknown("flag", name, [item.name for item in all_flags()])
    if not version:
        return FlagEntry(flag=found)
    at = parse_version(version)
    by_tier = {tier: flag_default(found.name, at, tier) for tier in _TIERS}
    known: dict[str, Any] = {tier: item.value for tier, item in by_tier.items() if item is not None}
    plain = flag_default(found.name, at)
    return FlagEntry(
        flag=found,
        version=str(at),
        status=flag_status(found, at),
        defaults={"": plain.value} if plain is not None else known,
    )


def metric_entry(name: str, version: str = "") -> MetricEntry:
    """The series `name`, exposed or canonical.

    Raises:
        UsageError: there is no such series, or `version` is none.
    """
    found = metric(name)
    if found is None:
        names = [item.name.removeprefix("vllm:") for item in all_metrics()]
        raise _unknown("metric", name.removeprefix("vllm:"), names)
    if not version:
        return MetricEntry(metric=found)
    at = parse_version(version)
    return MetricEntry(
        metric=found,
        version=str(at),
        exposed=is_exposed(found, at),
        names=exposed_names(found.canonical, at),
        labels=labels_at(found, at),
    )


def log_entry(name: str, version: str = "") -> LogEntry:
    """The kind of log line `name`.

    Raises:
        UsageError: there is no such kind, or `version` is none.
    """
    found = log_line(name)
    if found is None:
        raise _unknown("log line", name, [item.name for item in all_log_lines()])
    if not version:
        return LogEntry(line=found)
    return LogEntry(line=found, version=version, written=found in log_patterns(version))


def _unknown(kind: str, name: str, names: list[str]) -> UsageError:
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"near: {', '.join(near)}" if near else f"the catalog has {len(names)}"
    return UsageError(f"the catalog has no {kind} {name!r}", hint)
