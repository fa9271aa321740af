"""The lines that vLLM writes to its log and that tell something, by version."""

import re
from functools import cache

import msgspec

from knee.catalog.load import read_data
from knee.catalog.version import Version, parse_version


class LogLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One kind of line.

    `needle` is a plain piece of text that stands in every such line (search it before the costly `regex`).
    `since` and `until` are the first and last inspected releases that write it, `until` "" for still.
    `wording` says how the wording moved, `reading` what the line means.
    """

    name: str
    needle: str
    regex: str
    since: str
    example: str
    wording: str
    until: str = ""
    reading: str = ""


def all_log_lines() -> tuple[LogLine, ...]:
    """Every kind of line."""
    return read_data("log_lines.json", tuple[LogLine, ...])


@cache
def _by_name() -> dict[str, LogLine]:
    return {line.name: line for line in all_log_lines()}


def log_line(name: str) -> LogLine | None:
    """The kind of line `name`; None where there is none."""
    return _by_name().get(name)


@cache
def pattern(name: str) -> re.Pattern[str]:
    """The compiled expression of the kind of line `name`. Lines carry prefixes: search, do not match.

    Raises:
        KeyError: there is no such kind.
    """
    return re.compile(_by_name()[name].regex)


def log_patterns(version: str | Version | None = None) -> tuple[LogLine, ...]:
    """The kinds of line that a server of `version` writes; all of them without a version."""
    if version is None:
        return all_log_lines()
    at = parse_version(version)
    return tuple(
        line
        for line in all_log_lines()
        if at.reaches(line.since) and (not line.until or parse_version(line.until).reaches(at))
    )
