"""What a diagnosis says."""

from typing import Literal

import msgspec

Limit = Literal[
    "kv_memory",
    "sequence_cap",
    "token_budget",
    "compute",
    "prefill_interference",
    "front_end",
    "client",
    "unservable",
    "stalled",
    "shedding",
    "none",
]

NOT_BOUND: tuple[Limit, ...] = ("client", "none")
"""Where the server itself has room."""

Confidence = Literal["high", "medium", "low"]
"""high: the values leave no other reading; medium: another reading needs a coincidence; low: a guess that
says so."""

Answer = Literal["bound", "not bound", "cannot tell"]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One value that speaks for a limit.

    `metric` is the name under which the value was measured (with the statistic where it is not the value
    itself), `value` in the unit of that name, `threshold` what it was held against, `reason` why that proves
    something.
    """

    metric: str
    value: float
    reason: str
    threshold: float | None = None


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """One flag (vLLM's name, underscores), from → to, with what should happen and what it costs.

    `current` is "" where the flag's value is not known; it is `from` in JSON. `gain` is the expected factor
    on the request rate where it can be computed from the numbers. `together` are moves without which this one
    gains nothing, because another limit holds at the same time.
    """

    flag: str
    current: str = msgspec.field(default="", name="from")
    to: str
    arithmetic: str
    effect: str
    price: str
    gain: float | None = None
    together: tuple["Move", ...] = ()


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """One limit that holds. `strength` (0 to 1) orders limits: how much of what is wrong it explains."""

    limit: Limit
    confidence: Confidence
    why: str
    evidence: tuple[Evidence, ...]
    moves: tuple[Move, ...] = ()
    watch: tuple[str, ...] = ()
    engine: str = ""
    strength: float = 0.0


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something worth knowing beside the limit. `name` is stable, for scripts; `weight` orders findings."""

    name: str
    text: str
    value: float | None = None
    engine: str = ""
    weight: Literal["warning", "note"] = "note"


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on a window.

    `limit` is None where the evidence does not decide: `candidates` then says between what, and `decide`
    which measurement would. `further` are other limits that hold at the same time; `next_move` is for when
    `move` is exhausted. `engine` is the engine that the verdict is about, "" where there is only one.
    """

    answer: Answer
    limit: Limit | None
    why: str
    confidence: Confidence = "low"
    evidence: tuple[Evidence, ...] = ()
    move: Move | None = None
    next_move: Move | None = None
    watch: tuple[str, ...] = ()
    further: tuple[Binding, ...] = ()
    candidates: tuple[Limit, ...] = ()
    decide: str = ""
    findings: tuple[Finding, ...] = ()
    engine: str = ""
    engines: int = 1
    seconds: float = 0.0
    samples: int = 0
    warnings: tuple[str, ...] = ()
