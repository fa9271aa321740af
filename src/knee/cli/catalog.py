"""`knee catalog`: what is known of a flag, a metric or a log line, and what differs between two versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from knee.cli.app import JsonOption, show

if TYPE_CHECKING:
    from collections.abc import Iterator

    from knee.catalog.changes import Diff
    from knee.catalog.entries import FlagEntry, LogEntry, MetricEntry

catalog = typer.Typer(
    name="catalog",
    help="Facts about vLLM by version: flags, metrics, log lines, changes.",
)

VersionOption = Annotated[str, typer.Option(help="A version of vLLM, like 0.32.0.")]
_WIDTH = 12


@catalog.command("flag", context_settings={"ignore_unknown_options": True})  # the name may begin with --
def flag(
    name: Annotated[str, typer.Argument(help="Like --max-num-seqs or max_num_seqs.")],
    *,
    version: VersionOption = "",
    as_json: JsonOption = False,
) -> int:
    """Since when a flag is there, until when, and what it defaults to."""
    from knee.catalog.entries import flag_entry

    entry = flag_entry(name, version)
    show(entry, as_json, lambda: _aligned(_flag_rows(entry)))
    return 0


@catalog.command("metric")
def metric(
    name: Annotated[str, typer.Argument(help="Like kv_cache_usage_perc or vllm:gpu_cache_usage_perc.")],
    *,
    version: VersionOption = "",
    as_json: JsonOption = False,
) -> int:
    """The type, labels and buckets of a metric, and its names by version."""
    from knee.catalog.entries import metric_entry

    entry = metric_entry(name, version)
    show(entry, as_json, lambda: _aligned(_metric_rows(entry)))
    return 0


@catalog.command("log")
def log_line(
    name: Annotated[str, typer.Argument(help="Like kv_tokens or err_max_len.")],
    *,
    version: VersionOption = "",
    as_json: JsonOption = False,
) -> int:
    """The wording of a log line over time, what it means, and the expression that reads it."""
    from knee.catalog.entries import log_entry

    entry = log_entry(name, version)
    show(entry, as_json, lambda: _aligned(_log_rows(entry)))
    return 0


@catalog.command("diff")
def diff(
    before: Annotated[str, typer.Argument(help="The older version.")],
    after: Annotated[str, typer.Argument(help="The newer version.")],
    *,
    as_json: JsonOption = False,
) -> int:
    """What differs between two versions."""
    from knee.catalog.changes import diff as difference

    found = difference(before, after)
    show(found, as_json, lambda: "\n".join(_diff_lines(found)))
    return 0


def _aligned(rows: Iterator[tuple[str, str]]) -> str:
    return "\n".join(f"{name:<{_WIDTH}}{text}".rstrip() for name, text in rows if text)


def _span(since: str, removed: str) -> str:
    return f"since {since}" + (f", removed in {removed}" if removed else "")


def _flag_rows(entry: FlagEntry) -> Iterator[tuple[str, str]]:
    item = entry.flag
    yield "flag", item.name
    yield "versions", _span(item.since, item.removed)
    yield "deprecated", f"in {item.deprecated}" if item.deprecated else ""
    yield "no effect", f"since {item.no_effect_since}" if item.no_effect_since else ""
    yield "instead", item.replaced_by
    yield "alias of", item.alias_of
    yield "field", item.field
    for row in item.defaults:
        yield "default", f"{row.value} since {row.since}"
    yield "notes", item.notes
    if entry.version:
        yield f"{entry.version}", entry.status
        for tier, value in entry.defaults.items():
            yield "", f"default {value}" + (f" on {tier}" if tier else "")


def _metric_rows(entry: MetricEntry) -> Iterator[tuple[str, str]]:
    item = entry.metric
    yield "metric", f"{item.name} ({item.type})"
    yield "canonical", item.canonical + (" (this is an older name of it)" if item.renamed else "")
    yield "labels", ", ".join(item.labels)
    yield "V0", _span(item.v0_since, item.removed) if item.v0_since else ""
    yield "V1", _span(item.v1_since, item.removed) if item.v1_since else ""
    yield "deprecated", f"in {item.deprecated}" if item.deprecated else ""
    hidden = f"from {item.hidden} on, unless --show-hidden-metrics-for-version names the release before"
    yield "hidden", hidden if item.hidden else ""
    yield "requires", item.requires
    yield "buckets", item.buckets
    yield "doc", item.doc
    yield "notes", item.notes
    if entry.version:
        yield entry.version, "exposed" if entry.exposed else "not exposed"
        yield "", f"as {', '.join(entry.names)}" if entry.names else ""
        yield "", f"with labels {', '.join(entry.labels)}" if entry.exposed and entry.labels else ""


def _log_rows(entry: LogEntry) -> Iterator[tuple[str, str]]:
    item = entry.line
    yield "log line", item.name
    yield "versions", f"{item.since} to {item.until or 'now'}"
    yield "example", item.example
    yield "wording", item.wording
    yield "reading", item.reading
    yield "regex", item.regex
    if entry.version:
        yield entry.version, "writes it" if entry.written else "does not write it"


def _diff_lines(found: Diff) -> Iterator[str]:
    yield f"vLLM {found.before} to {found.after}"
    yield from (f"note: {note}" for note in found.notes)
    sections = (
        (
            "changes",
            [f"{change.version} {change.kind}: {change.text}" for change in found.changes],
        ),
        (
            "defaults",
            [
                f"{item.flag}{f' on {item.tier}' if item.tier else ''}: {item.before} -> {item.after}"
                for item in found.defaults
            ],
        ),
        (
            "flags removed",
            [
                f"{item.name} ({item.removed}{', use ' + item.replaced_by if item.replaced_by else ''})"
                for item in found.flags_removed
            ],
        ),
        ("flags deprecated or without effect", [item.name for item in found.flags_deprecated]),
        ("flags added", [f"{item.name} ({item.since})" for item in found.flags_added]),
        (
            "metrics gone",
            [f"{item.name}{' -> ' + item.canonical if item.renamed else ''}" for item in found.metrics_gone],
        ),
        ("metrics added", [f"{item.name} ({item.v1_since})" for item in found.metrics_added]),
        ("log lines", [f"{item.name}: {item.wording}" for item in found.log_lines]),
    )
    for title, lines in sections:
        if lines:
            yield f"\n{title}"
            yield from (f"  {line}" for line in lines)
    if not any(lines for _, lines in sections):
        yield "nothing that the catalog knows"
