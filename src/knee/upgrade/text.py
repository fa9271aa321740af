"""Plans and comparisons in words."""

from collections.abc import Iterator

from knee.upgrade.outputs import Comparison, Divergence, Group
from knee.upgrade.plan import FlagNote, Plan
from knee.upgrade.sampling import CONFIDENCE


def plan_text(plan: Plan) -> str:
    """What breaks first, then what moves, then what else is new."""
    return "\n".join(_lines(plan))


def _lines(plan: Plan) -> Iterator[str]:
    yield f"vLLM {plan.before} to {plan.after}"
    yield from (f"note: {note}" for note in plan.notes)
    if plan.flags:
        yield ""
        yield "Flags in use"
        yield from (f"  {_flag(note)}" for note in plan.flags)
    yield ""
    yield "Defaults that move where the flag is not given"
    for item in plan.defaults:
        where = f" on {item.tier} devices" if item.tier else ""
        pin = f"; to keep it: {item.pin}" if item.pin else ""
        yield f"  {item.flag}{where}: {_value(item.before)} to {_value(item.after)}{pin}"
    if not plan.defaults:
        yield "  none known"
    if plan.scanned:
        yield ""
        yield f"Uses in {plan.scanned} files"
        for hit in plan.hits:
            instead = f"; now {hit.instead}" if hit.instead else ""
            yield f"  {hit.file}:{hit.line}: {hit.name}: {hit.what}{instead}"
        if not plan.hits:
            yield "  nothing that goes away"
    yield ""
    yield f"Flags that went away: {', '.join(plan.flags_gone) or 'none known'}"
    yield f"Metrics that went away: {', '.join(plan.metrics_gone) or 'none known'}"
    if plan.changes:
        yield ""
        yield "Changes"
        yield from (f"  {change.version} {change.kind}: {change.text}" for change in plan.changes)


def _flag(note: FlagNote) -> str:
    value = "" if note.value is None else f" {note.value}"
    fates = {
        "removed": f"removed in {note.since}: vLLM will not start",
        "no effect": f"without effect since {note.since}",
        "deprecated": f"deprecated since {note.since}",
        "not yet": f"comes only with {note.since}",
        "kept": "kept",
        "not in the catalog": "not in the catalog, which knows the flags that changed since 0.5.4",
    }
    instead = f"; now {note.instead}" if note.instead else ""
    return f"{note.flag}{value}: {fates[note.fate]}{instead}"


def _value(value: object) -> str:
    return "chosen by vLLM" if value is None else str(value)


MOST_SHOWN = 12


def comparison_text(comparison: Comparison) -> str:
    """The A/A runs first, then what changed beyond them, where answers part, and the verdict."""
    lines = [f"{comparison.before} against {comparison.after}"]
    lines += [f"note: {note}" for note in comparison.notes]
    lines.append("")
    lines += [_group(group) for group in comparison.groups]
    if comparison.divergences:
        lines += ["", "First diverging token"]
        lines += [f"  {_divergence(found)}" for found in comparison.divergences[:MOST_SHOWN]]
        left = len(comparison.divergences) - MOST_SHOWN
        lines += [f"  and {left} more"] if left > 0 else []
    lines += ["", comparison.verdict + (f": {comparison.cause}" if comparison.cause else "")]
    return "\n".join(lines)


def _group(group: Group) -> str:
    bound = f"{max(0.0, group.low):.0%} to {min(1.0, group.high):.0%} beyond noise at {CONFIDENCE:.0%}"
    counts = f"A/A {group.noisy} of {2 * group.n} differ; A/B {group.changed} of {group.n} ({bound})"
    basis = f"\n         {group.basis}" if group.basis else ""
    return f"{group.name:<8} {counts}: {group.verdict}{basis}"


def _divergence(found: Divergence) -> str:
    tie = f", a near tie ({found.margin:.3f} nats)" if found.near_tie else ""
    where = f"{found.case} ({found.mode}) at {found.at} of {found.of}"
    return f"{where}: {found.before!r} became {found.after!r}{tie}"


def recording_text(noise: Comparison, path: str) -> str:
    """What was recorded and how far the server repeats itself; `noise` compares the recording with itself."""
    lines = [f"{noise.before}, recorded in {path}"]
    lines += [f"note: {note}" for note in noise.notes]
    lines += [
        f"{group.name:<8} {group.n} probes, asked twice: {group.noisy // 2} answered differently"
        for group in noise.groups
    ]
    return "\n".join(lines)
