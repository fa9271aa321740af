"""One rate held for a window, and what became of it. A sweep is points in order; the knee an interval."""

from typing import Literal

import msgspec

from knee.core.slo import Metric, Objective, Slo
from knee.core.snapshot import Window


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution in milliseconds over `n` samples, `n_infinite` of which never finished.

    A percentile that falls among those that never finished is None: unbounded, not missing. One that has too
    few samples to be bounded from above is None too, and its name stands in `unsupported`.
    """

    n: int
    n_infinite: int = 0
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    mean_finite: float | None = None
    unsupported: tuple[str, ...] = ()


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """An objective against a point: the estimate with its interval at `confidence`, and what follows.

    `value`, `low` and `high` are in the unit of the objective's bound; None is unbounded. `holds` is None
    where the interval straddles the bound or there are too few samples to say.
    """

    objective: Objective
    value: float | None
    low: float | None
    high: float | None
    holds: bool | None
    n: int
    confidence: float = 0.95


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One rate held for a window.

    `rate` is what was asked, `attained_rate` what was sent, `served_rate` the completions per second counted
    inside the window. offered = ok + failed + rejected + censored, all counted over requests due in the
    measured window `[window_start_ns, window_end_ns)`; their latencies count from `due_ns`. `spent_ns` is
    the server time the point cost, warm-up and drain included.
    """

    rate: float
    attained_rate: float
    served_rate: float
    seed: int
    window_start_ns: int
    window_end_ns: int
    spent_ns: int
    offered: int
    ok: int
    failed: int
    rejected: int
    censored: int
    ttft_ms: Summary
    itl_ms: Summary
    tpot_ms: Summary
    e2e_ms: Summary
    send_lag_ms: Summary
    output_tokens_per_s: float
    prompt_tokens_mean: float
    output_tokens_mean: float
    judged: tuple[Judged, ...] = ()
    causes: dict[str, int] = {}
    invalid: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    stopped: Literal["", "clearly holds", "clearly breaks", "enough", "target lost", "interrupted"] = ""
    max_concurrency: int | None = None
    window: Window | None = None
    simulated: bool = False

    @property
    def holds(self) -> bool | None:
        """Whether every objective holds: False as soon as one does not, None where one is undecided.

        A point that was ended because its backlog grows breaks, however few of its requests were answered.
        """
        if self.stopped == "clearly breaks":
            return False
        verdicts = [judged.holds for judged in self.judged]
        if False in verdicts:
            return False
        return None if not verdicts or None in verdicts else True


class Knee(msgspec.Struct, frozen=True, kw_only=True):
    """The highest request rate at which the SLO holds, as an interval.

    `holds` and `breaks` are the ends of the interval at `confidence`; `holds` is None where no rate held and
    `breaks` where none that could be offered broke (`reason` says why; 0 where an idle server breaks it).
    `estimate` is the likeliest rate between them. `saturation_rate` is the served rate that no longer rises,
    where it was seen.
    """

    slo: Slo
    holds: float | None
    breaks: float | None
    estimate: float | None
    confidence: float
    reason: str
    binding_objective: Metric | None = None
    saturation_rate: float | None = None
    server_seconds: float = 0.0
    points: int = 0
