"""Why a session ends, and what a move costs beside what it gains."""

from collections.abc import Sequence

from knee.tune.trial import Entry, Result, Stop

WORSE = 1.1
"""A latency at the knee that grew by this factor is a price worth telling."""


def trades_of(before: Result, after: Result) -> tuple[str, ...]:
    """Which objectives came nearer to their bounds at the knee, and whether another one binds there now."""
    if not after.costs:
        return ()
    was = {cost.name: cost.value for cost in before.costs}
    told = []
    for cost in after.costs:
        old = was.get(cost.name)
        if not cost.objective:
            continue  # medians grow with the rate; only what the SLO bounds can be traded
        if old is not None and old > 0 and (cost.value is None or cost.value > WORSE * old):
            now = "unbounded" if cost.value is None else f"{cost.value:.4g} ms"
            told.append(f"{cost.name} at the knee {old:.4g} → {now}")
    binding = [result.knee.binding_objective if result.knee else None for result in (before, after)]
    if None not in binding and binding[0] != binding[1]:
        told.append(f"{binding[1]} breaks first now, not {binding[0]}")
    return tuple(told)


def stop_at(best: Entry, entries: Sequence[Entry]) -> Stop:
    """The reason to stop where no move from `best` is left."""
    result = best.result
    if result.outcome == "infeasible":
        return Stop(reason="infeasible SLO", why=result.cause, evidence=_tried(best, entries))
    traded = _traded(best, entries)
    if traded is not None:
        objective = traded.result.knee.binding_objective if traded.result.knee else "another objective"
        moved = (
            ", ".join(f"{c.flag} → {c.to}" for c in traded.trial.move.changes) if traded.trial.move else ""
        )
        return Stop(
            reason="trade",
            why=f"{moved} moves the limit, but {objective} then breaks first and the knee is no higher",
            evidence=(traded.decision.why, *traded.decision.trades),
            pair=(best.trial.number, traded.trial.number),
        )
    tried = _tried(best, entries)
    if result.limit in ("compute", "none"):
        knee = result.knee
        flat = (
            (f"the served rate no longer rises above {knee.saturation_rate:.4g} req/s",)
            if knee is not None and knee.saturation_rate is not None
            else ()
        )
        return Stop(reason="compute binds", why=result.why, evidence=(*result.evidence, *flat, *tried))
    return Stop(
        reason="no move left",
        why=f"{result.limit or 'what binds'} holds at the knee, and no move of it is left: {result.why}",
        evidence=(*result.evidence, *tried),
    )


def _traded(best: Entry, entries: Sequence[Entry]) -> Entry | None:
    """A move from `best` that was not better and lets another objective break first."""
    for entry in reversed(entries):
        if entry.trial.base != best.trial.number or entry.decision.decided != "reverted":
            continue
        knees = (best.result.knee, entry.result.knee)
        if any(knee is None or knee.binding_objective is None for knee in knees):
            continue
        if knees[0].binding_objective != knees[1].binding_objective:  # type: ignore[union-attr]
            return entry
    return None


def _tried(best: Entry, entries: Sequence[Entry]) -> tuple[str, ...]:
    """What was tried from here, and what was passed over."""
    tried = [
        f"tried {', '.join(f'{c.flag} → {c.to}' for c in entry.trial.move.changes)}: {entry.decision.why}"
        for entry in entries
        if entry.trial.base == best.trial.number and entry.trial.move is not None
    ]
    return (*tried, *(f"not tried: {text}" for text in best.result.proposals.passed_over))


def pareto(entries: Sequence[Entry]) -> list[Entry]:
    """The measured trials that no other one beats: in knee and in every latency at it.

    One trial for each set of flags: its last.
    """
    last = {tuple(sorted(entry.trial.flags.items())): entry for entry in entries if entry.result.knee}
    found = [entry for entry in last.values() if entry.result.rate > 0]
    return sorted(
        (one for one in found if not any(_beats(other, one) for other in found if other is not one)),
        key=lambda entry: entry.result.rate,
    )


def _beats(one: Entry, other: Entry) -> bool:
    mine, theirs = _figures(one.result), _figures(other.result)
    return all(a <= b for a, b in zip(mine, theirs, strict=False)) and mine != theirs


def _figures(result: Result) -> tuple[float, ...]:
    """What is better when lower: the knee with its sign turned, then latencies."""
    infinite = float("inf")
    return (-result.rate, *(infinite if c.value is None else c.value for c in result.costs))
