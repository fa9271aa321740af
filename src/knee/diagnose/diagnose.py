"""From a window to a verdict."""

from collections.abc import Callable, Sequence

import msgspec

from knee.core.errors import NoAnswer
from knee.core.snapshot import Window
from knee.diagnose.abstain import undecided
from knee.diagnose.facts import Facts
from knee.diagnose.findings import findings, imbalance
from knee.diagnose.rules.latency import client, compute, front_end, prefill_interference
from knee.diagnose.rules.progress import shedding, stalled, unservable
from knee.diagnose.rules.queue import kv_memory, sequence_cap, token_budget
from knee.diagnose.signals import Signals, signals
from knee.diagnose.verdict import NOT_BOUND, Binding, Diagnosis, Limit

RULES: dict[Limit, Callable[[Signals], Binding | None]] = {
    "client": client,
    "unservable": unservable,
    "stalled": stalled,
    "kv_memory": kv_memory,
    "sequence_cap": sequence_cap,
    "token_budget": token_budget,
    "front_end": front_end,
    "prefill_interference": prefill_interference,
    "compute": compute,
    "shedding": shedding,
}
"""In the order in which they are named where they hold with equal confidence and explain as much."""

_CONFIDENCE = {"high": 0, "medium": 1, "low": 2}
_WEIGHT = {"high": 1.0, "medium": 0.8, "low": 0.4}
_ADMIT: frozenset[Limit] = frozenset({"kv_memory", "sequence_cap", "token_budget"})
_ABOVE_LOAD: frozenset[Limit] = frozenset({"client", "unservable", "stalled"})


def diagnose(window: Window, facts: Facts | None = None) -> Diagnosis:
    """The verdict on `window`: the worst engine's limit first, with evidence, move and findings.

    Raises:
        NoAnswer: the window has no engine in it.
    """
    if not window.engines:
        raise NoAnswer("the window holds no engine", "give a page of a vLLM server")
    known = facts or Facts()
    every = [(label, signals(engine, window.seconds, known)) for label, engine in window.engines.items()]
    several = len(every) > 1
    verdicts = [(label, s, bindings(s)) for label, s in every]
    label, s, found = min(verdicts, key=lambda verdict: _badness(verdict[1], verdict[2]))
    beside = [f for name, one in every for f in findings(one, name if several else "")]
    uneven = imbalance(every)
    diagnosis = _verdict(s, found)
    return msgspec.structs.replace(
        diagnosis,
        engine=label if several else "",
        engines=len(every),
        seconds=window.seconds,
        samples=s.samples,
        findings=tuple(([uneven] if uneven else []) + beside),
        warnings=window.warnings,
    )


def bindings(s: Signals) -> list[Binding]:
    """Every limit that holds on one engine, the one to name first in front."""
    found = [binding for rule in RULES.values() if (binding := rule(s)) is not None]
    order = list(RULES)
    return sorted(
        found,
        key=lambda b: (
            b.limit not in _ABOVE_LOAD,
            -b.strength * _WEIGHT[b.confidence],
            order.index(b.limit),
        ),
    )


def _badness(s: Signals, found: list[Binding]) -> tuple[bool, int, float]:
    """Sorts the engine to speak of first: one that is bound, surely, and with the longest queue."""
    bound = [binding for binding in found if binding.limit not in NOT_BOUND]
    waiting = s.waiting.mean if s.waiting else 0.0
    return (not bound, _CONFIDENCE[bound[0].confidence] if bound else 0, -waiting)


def _verdict(s: Signals, found: Sequence[Binding]) -> Diagnosis:
    sure = [binding for binding in found if binding.confidence != "low"]
    if not sure:
        open_question = undecided(s, found)
        if open_question is not None:
            return open_question
        return _nothing_binds(s)
    first = sure[0]
    moves = [*first.moves, *(move for binding in sure[1:] for move in binding.moves)]
    companions = tuple(other.moves[0] for other in sure[1:] if other.moves and _jointly(s, first, other))
    return Diagnosis(
        answer="not bound" if first.limit in NOT_BOUND else "bound",
        limit=first.limit,
        why=first.why,
        confidence=first.confidence,
        evidence=first.evidence,
        move=msgspec.structs.replace(first.moves[0], together=companions) if first.moves else None,
        next_move=next((move for move in moves[1:] if move.flag != moves[0].flag), None)
        if first.moves
        else None,
        watch=first.watch,
        further=tuple(sure[1:]),
    )


def _jointly(s: Signals, first: Binding, other: Binding) -> bool:
    """Whether moving one limit gains nothing without the other.

    Two limits that are both reached while requests wait hold each other; so do two limits that each break an
    objective of their own.
    """
    if first.limit in _ADMIT and other.limit in _ADMIT:
        return True
    pair = {first.limit, other.limit}
    both = bool(s.facts.breaks("ttft")) and bool(s.facts.breaks("itl", "tpot"))
    return both and "prefill_interference" in pair and bool(pair & _ADMIT)


def _nothing_binds(s: Signals) -> Diagnosis:
    waiting = f"{s.waiting.mean:.1f} requests wait" if s.waiting else "queue times are short"
    running = f"{s.running.mean:.1f} run" if s.running else "how many run is not shown"
    kv = f"the KV cache is at {s.kv.mean:.0%}" if s.kv else "KV usage is not shown"
    cap = f" of {s.cap:g}" if s.cap and s.running else ""
    return Diagnosis(
        answer="not bound",
        limit="none",
        why=f"nothing binds: {waiting}, {running}{cap}, {kv}",
        confidence="high" if s.samples > 1 else "medium",
    )
