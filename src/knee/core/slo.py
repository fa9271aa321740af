"""Service level objectives, as people write them: `ttft p95 < 1s, itl p99 < 60ms, errors < 1%`."""

import re
from typing import Literal

import msgspec

from knee.core.errors import UsageError
from knee.core.units import NS_PER_MS, parse_duration_ns

Metric = Literal["ttft", "itl", "tpot", "e2e", "errors", "rejected", "goodput"]

LATENCIES: tuple[Metric, ...] = ("ttft", "itl", "tpot", "e2e")
SHARES: tuple[Metric, ...] = ("errors", "rejected", "goodput")

_OBJECTIVE = re.compile(
    r"\s*(?P<metric>[a-z][a-z0-9_]*?)\s*(?:p(?P<quantile>\d{1,2}(?:\.\d+)?))?\s*(?P<op><=|>=|<|>)\s*(?P<bound>[^,]+?)\s*"
)
_EXAMPLE = 'write it like "ttft p95 < 1s, itl p99 < 60ms, errors < 1%"'


class Objective(msgspec.Struct, frozen=True, kw_only=True):
    """One bound.

    For a latency (`ttft`, `itl`, `tpot`, `e2e`) `quantile` is in (0, 1) and `bound` in milliseconds: the
    percentile must be below it. For a share (`errors`: failed or censored, `rejected`: refused by the server,
    `goodput`: met every latency bound) `quantile` is None and `bound` a fraction of what was offered.
    """

    metric: Metric
    bound: float
    quantile: float | None = None

    def __str__(self) -> str:
        if self.quantile is None:
            return f"{self.metric} {'>' if self.metric == 'goodput' else '<'} {self.bound * 100:.9g}%"
        return f"{self.metric} p{self.quantile * 100:g} < {self.bound:.9g}ms"


class Slo(msgspec.Struct, frozen=True):
    """All objectives together; the SLO holds where every one of them does."""

    objectives: tuple[Objective, ...]

    def __str__(self) -> str:
        return ", ".join(str(objective) for objective in self.objectives)


def parse_slo(text: str) -> Slo:
    """The SLO that `text` states.

    Latencies take a percentile (`p95` when none is given) and a duration with a unit; shares take a
    percentage. `<=` reads as `<`: measured values are never exactly at a bound.

    Raises:
        UsageError: the text cannot be read as objectives, or states the same one twice.
    """
    objectives = tuple(_parse_objective(part) for part in text.split(",") if part.strip())
    if not objectives:
        raise UsageError(f"an SLO without objectives: {text!r}", _EXAMPLE)
    named = [(objective.metric, objective.quantile) for objective in objectives]
    if len(set(named)) != len(named):
        raise UsageError(f"the SLO states an objective twice: {text!r}", _EXAMPLE)
    return Slo(objectives)


def _parse_objective(text: str) -> Objective:
    found = _OBJECTIVE.fullmatch(text.lower())
    if found is None:
        raise UsageError(f"not an objective: {text.strip()!r}", _EXAMPLE)
    name, quantile, op, bound = found.group("metric", "quantile", "op", "bound")
    for metric in LATENCIES:
        if name in (metric, f"{metric}_ms"):
            if op.startswith(">"):
                raise UsageError(f"a latency is bounded from above: {text.strip()!r}", _EXAMPLE)
            share = round(float(quantile or 95) / 100, 12)
            if not 0 < share < 1:
                raise UsageError(f"a percentile lies between 0 and 100: {text.strip()!r}", _EXAMPLE)
            bound_ns = parse_duration_ns(bound, default_unit=None)
            if bound_ns <= 0:
                raise UsageError(f"a latency bound is positive: {text.strip()!r}", _EXAMPLE)
            return Objective(metric=metric, quantile=share, bound=bound_ns / NS_PER_MS)
    for metric in SHARES:
        if name == metric:
            wants_floor = metric == "goodput"
            if quantile is not None or op.startswith(">") != wants_floor:
                raise UsageError(
                    f"a share is written like {'goodput > 95%' if wants_floor else 'errors < 1%'}", _EXAMPLE
                )
            return Objective(metric=metric, bound=_parse_share(bound, text))
    raise UsageError(f"unknown objective {name!r}", f"known: {', '.join(LATENCIES + SHARES)}")


def _parse_share(bound: str, text: str) -> float:
    try:
        share = float(bound.removesuffix("%")) / (100 if bound.endswith("%") else 1)
    except ValueError:
        raise UsageError(f"not a share: {text.strip()!r}", _EXAMPLE) from None
    if not 0 <= share <= 1:
        raise UsageError(f"a share lies between 0 and 100%: {text.strip()!r}", _EXAMPLE)
    return share
