"""Faults that a simulated server has on request: what goes wrong, from when, and for how long."""

import re
from typing import Literal, get_args

import msgspec

from knee.catalog.version import parse_version
from knee.core.errors import UsageError
from knee.core.units import parse_duration_ns

Kind = Literal["slow", "stall", "crash", "dead", "cut", "metrics-latency", "metrics-version"]

HELP = """\
slow=FACTOR: steps take FACTOR times as long;
stall: no step ends, /health stays 200;
crash: the engine dies and takes the server with it, as vLLM's does;
dead: the engine dies and the port stays open (/health 503, requests 500);
cut=TOKENS: every stream breaks after TOKENS tokens;
metrics-latency=TIME: /metrics answers late;
metrics-version=VERSION: /metrics is that of another version."""

_FAULT = re.compile(r"(?P<kind>[a-z-]+)(?:=(?P<value>[^@]+))?(?:@(?P<start>[^+]+)(?:\+(?P<length>.+))?)?")


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault, from `start_ns` after the port opened, for `length_ns` (None is for ever).

    `factor` belongs to `slow`, `tokens` to `cut`, `latency_ns` to `metrics-latency`, `version` to
    `metrics-version`.
    """

    kind: Kind
    start_ns: int = 0
    length_ns: int | None = None
    factor: float = 1.0
    tokens: int = 0
    latency_ns: int = 0
    version: str = ""

    def active(self, at_ns: int) -> bool:
        """Whether it is on, `at_ns` after the port opened."""
        return self.start_ns <= at_ns and (self.length_ns is None or at_ns < self.start_ns + self.length_ns)


def parse_fault(text: str) -> Fault:
    """The fault in `text`: `slow=3@10s+5s`, `stall@20s`, `crash@1m`, `cut=5`, `metrics-latency=2s`.

    Raises:
        UsageError: the text is no fault, or its value makes none.
    """
    found = _FAULT.fullmatch(text.strip())
    hint = "KIND[=VALUE][@START[+LENGTH]], for example slow=3@10s+5s; see docs/mock.md"
    if found is None:
        raise UsageError(f"not a fault: {text!r}", hint)
    kind, value = found["kind"], found["value"]
    start_ns = parse_duration_ns(found["start"]) if found["start"] else 0
    length_ns = parse_duration_ns(found["length"]) if found["length"] else None
    valued = {"slow": _factor, "cut": _tokens, "metrics-latency": _latency, "metrics-version": _version}
    if kind in valued:
        if value is None:
            raise UsageError(f"the fault {kind} needs a value: {text!r}", hint)
        own = valued[kind](value)
    elif kind in ("stall", "crash", "dead"):
        if value is not None:
            raise UsageError(f"the fault {kind} takes no value: {text!r}", hint)
        own = {}
    else:
        raise UsageError(f"no such fault: {kind!r}", f"there are {', '.join(get_args(Kind))}")
    return msgspec.convert({"kind": kind, "start_ns": start_ns, "length_ns": length_ns, **own}, Fault)


def _factor(value: str) -> dict[str, object]:
    try:
        factor = float(value)
    except ValueError:
        factor = 0.0
    if not 0.001 <= factor <= 1e6:
        raise UsageError(f"not a factor: {value!r}", "slow=3 makes every step take three times as long")
    return {"factor": factor}


def _tokens(value: str) -> dict[str, object]:
    if not value.isdecimal():
        raise UsageError(f"not a number of tokens: {value!r}", "cut=5 breaks every stream after five tokens")
    return {"tokens": int(value)}


def _latency(value: str) -> dict[str, object]:
    return {"latency_ns": parse_duration_ns(value)}


def _version(value: str) -> dict[str, object]:
    return {"version": str(parse_version(value))}
