"""A plan in words."""

from collections.abc import Iterator

from knee.upgrade.plan import FlagNote, Plan


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
