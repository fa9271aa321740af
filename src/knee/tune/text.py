"""A session for people: each step as it happens, and the answer."""

from knee.core.point import Knee
from knee.core.units import NS_PER_S, format_duration
from knee.tune.config import Flags
from knee.tune.like import Proposed
from knee.tune.outcome import FrontPoint, Outcome
from knee.tune.proposal import Proposal
from knee.tune.trial import Decision, Entry, Result, Trial


def trial_lines(trial: Trial) -> list[str]:
    """What is about to be tried, and why."""
    head = f"trial {trial.number} ({trial.purpose}): {flags_text(trial.flags)}"
    if trial.move is None:
        return [head]
    return [head, f"  hypothesis: {hypothesis(trial.move)}"]


def hypothesis(move: Proposal) -> str:
    """The limit, the move and what is expected of it."""
    text = f"{move.limit} binds; {move_text(move)}: {move.why}"
    if move.limit in ("simulator", "pair"):
        text = f"{move_text(move)}: {move.why}"
    if move.predicted is not None:
        return f"{text}; predicted knee {move.predicted:.4g} req/s, a factor of {move.gain:.2f}"
    return text if move.gain is None else f"{text}; expected factor {move.gain:.2f}"


def move_text(move: Proposal) -> str:
    """`max_num_seqs 4 → 16`."""
    return " and ".join(f"{c.flag} {c.current or '?'} → {c.to}" for c in move.changes)


def decision_lines(result: Result, decision: Decision) -> list[str]:
    """What came of a trial, what binds there, and what was decided."""
    lines = []
    if result.knee is not None:
        lines.append(f"  knee {interval(result.knee)} req/s; {result.limit or '?'}: {result.why}")
    if result.evidence:
        lines.append(f"  evidence: {'; '.join(result.evidence[:4])}")
    lines.append(f"  {decision.decided}: {decision.why}")
    lines += [f"  trade: {trade}" for trade in decision.trades]
    return lines


def outcome_lines(outcome: Outcome) -> list[str]:
    """The answer: why it ended, the flags, the knees, the front, the limits, the command line."""
    stop = outcome.stop
    lines = [f"stopped: {stop.reason}: {stop.why}", *(f"  {text}" for text in stop.evidence)]
    if stop.pair:
        lines += [
            "  choose between:",
            *(f"    {entry_text(e)}" for e in outcome.entries if e.trial.number in stop.pair),
        ]
    lines += ["", f"flags: {flags_text(outcome.flags)} (trial {outcome.trial})"]
    for name, knee in (("before", outcome.before), ("after", outcome.after)):
        lines.append(f"knee {name}: {interval(knee) + ' req/s' if knee else 'none'}")
    if outcome.gain is not None:
        lines[-1] += f", {outcome.gain:.2f} times the first"
    if len(outcome.front) > 1:
        lines += ["front (no other trial is better in knee and in latencies at the knee):"]
        lines += [f"  {front_text(point)}" for point in outcome.front]
    if outcome.limits is not None:
        lines.append(f"admission: {outcome.limits} (knee gateway)")
    if outcome.queue_flags:
        lines.append(f"or the engine's own: {dashed(outcome.queue_flags)}")
    if outcome.command:
        lines.append(f"command: {outcome.command}")
    if outcome.lock:
        lines.append(f"lock: {outcome.lock}")
    spent = format_duration(outcome.server_s * NS_PER_S)
    return [
        *lines,
        *(f"note: {note}" for note in outcome.notes),
        f"{len(outcome.entries)} trials, {spent} of server time",
    ]


def entry_text(entry: Entry) -> str:
    """A measured trial in one line."""
    costs = ", ".join(f"{c.name} {_ms(c.value)}" for c in entry.result.costs)
    knee = interval(entry.result.knee) if entry.result.knee else "none"
    head = f"trial {entry.trial.number}: {flags_text(entry.trial.flags)}"
    return f"{head}: knee {knee} req/s; at it {costs or '?'}"


def front_text(point: FrontPoint) -> str:
    """A point of the front in one line."""
    costs = ", ".join(f"{c.name} {_ms(c.value)}" for c in point.costs)
    seen = f"knee {point.knee:.4g} req/s, {costs or 'no point at the knee'}"
    return f"trial {point.trial}: {seen}; {flags_text(point.flags)}"


def interval(knee: Knee) -> str:
    """The knee's interval, with the likeliest rate."""
    ends = ", ".join("?" if end is None else f"{end:.4g}" for end in (knee.holds, knee.breaks))
    return f"[{ends}]" + (f" (likeliest {knee.estimate:.4g})" if knee.estimate is not None else "")


def flags_text(flags: Flags) -> str:
    """Flags in one line."""
    return ", ".join(f"{name} {value}" for name, value in flags.items()) or "default flags"


def dashed(flags: Flags) -> str:
    """Flags as they stand on a command line."""
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in flags.items())


def _ms(value: float | None) -> str:
    return "∞" if value is None else f"{value:.4g} ms"


def proposed_lines(proposed: Proposed) -> list[str]:
    """A proposal of the simulator for people."""
    lines = ["from a SIMULATED engine calibrated to the run, not measured:"]
    for name, flags, knee in (
        ("start", proposed.start, proposed.before),
        ("proposal", proposed.flags, proposed.after),
    ):
        lines.append(
            f"{name}: {flags_text(flags)}: knee {knee.knee:.4g} [{knee.low:.4g}, {knee.high:.4g}] req/s"
        )
    lines += [f"  {move_text(move)}: {move.why}" for move in proposed.moves]
    lines.append("trials on the real server that would decide:")
    lines += [f"  {number}. {dashed(t.flags)}: {t.why}" for number, t in enumerate(proposed.trials, 1)]
    return [*lines, *(f"note: {note}" for note in proposed.notes)]
