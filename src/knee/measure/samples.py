"""What requests saw inside a window, as weighted samples in time order, the unfinished ones infinite."""

import msgspec
import numpy as np
from numpy.typing import NDArray

from knee.core.requests import CENSORED, FAILED, NEVER, OK, REJECTED, Observed
from knee.core.slo import Metric, Objective, Slo
from knee.core.units import NS_PER_MS, NS_PER_S
from knee.stats.percentile import Floats
from knee.stats.samples import Samples

Bools = NDArray[np.bool_]


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a point that is judged: requests due and gaps that ended in [start_ns, end_ns).

    `running_at_ns` is where watching ended early, if it did: what runs there is not lost, only unfinished,
    and counts as infinite only once it has waited longer than any bound (`end_ns` keeps that distance).
    """

    start_ns: int
    end_ns: int
    running_at_ns: int | None = None

    @property
    def seconds(self) -> tuple[float, float]:
        """Start and end in seconds."""
        return self.start_ns / NS_PER_S, self.end_ns / NS_PER_S


def known_stretch(
    observed: Observed, start_ns: int, end_ns: int, stopped_ns: int | None, slo: Slo
) -> Stretch:
    """The stretch that can be judged: all of [start_ns, end_ns), or less of a point stopped at `stopped_ns`.

    Of that, as much as lies further back than the longest bound on a wait, so that what has not come by then
    has broken the bound whenever it may come.
    """
    if stopped_ns is None:
        return Stretch(start_ns=start_ns, end_ns=end_ns)
    reach = _longest_wait_ns(slo)
    unfinished = observed.due_ns[(observed.first_ns == NEVER) & (observed.outcome == CENSORED)]
    # Without a bound to wait for, only requests before the oldest unfinished one are known in full.
    known = stopped_ns - reach if reach else int(unfinished.min(initial=stopped_ns))
    return Stretch(start_ns=start_ns, end_ns=max(start_ns, min(end_ns, known)), running_at_ns=stopped_ns)


def _longest_wait_ns(slo: Slo) -> int:
    bounds = [o.bound for o in slo.objectives if o.metric in ("ttft", "e2e")]
    return round(max(bounds, default=0.0) * NS_PER_MS)


def due_in(observed: Observed, stretch: Stretch) -> Bools:
    """Which requests were due in the stretch."""
    return (observed.due_ns >= stretch.start_ns) & (observed.due_ns < stretch.end_ns)


def latency_samples(observed: Observed, metric: Metric, stretch: Stretch) -> Samples:
    """The samples of `ttft`, `itl`, `tpot` or `e2e` in the stretch."""
    if metric == "itl":
        return _gap_samples(observed, stretch)
    inside = due_in(observed, stretch)
    values, known = _per_request(observed, metric, stretch)
    inside &= known
    return Samples(
        at=observed.due_ns[inside] / NS_PER_S,
        values=values[inside],
        weights=np.ones(int(inside.sum())),
    )


def _per_request(observed: Observed, metric: Metric, stretch: Stretch) -> tuple[Floats, Bools]:
    """Milliseconds per request, and which requests have a sample at all."""
    known = np.ones(len(observed), dtype=np.bool_)
    values = np.full(len(observed), np.inf)
    ok = observed.outcome == OK
    running = observed.outcome == CENSORED
    if metric == "ttft":
        # A request that is still streaming has shown its first token; one that failed, nothing of use.
        seen = (observed.first_ns != NEVER) & (ok | running)
        values[seen] = (observed.first_ns - observed.due_ns)[seen] / NS_PER_MS
    elif metric == "e2e":
        values[ok] = (observed.last_ns - observed.due_ns)[ok] / NS_PER_MS
    elif metric == "tpot":
        later = observed.output_tokens - observed.first_tokens
        seen = (later > 0) & (observed.first_ns != NEVER)
        seen &= (ok | running) if stretch.running_at_ns is not None else ok
        values[seen] = ((observed.last_ns - observed.first_ns)[seen] / later[seen]) / NS_PER_MS
        known = seen | ~(ok if stretch.running_at_ns is None else ok | running)
    else:
        raise ValueError(f"{metric} is not a latency of a request")
    return values, known


def _gap_samples(observed: Observed, stretch: Stretch) -> Samples:
    """Gaps that ended in the stretch, and infinite ones for the tokens that requests due in it never got."""
    gaps = observed.gaps
    inside = (gaps.at_ns >= stretch.start_ns) & (gaps.at_ns < stretch.end_ns)
    lost = due_in(observed, stretch) & (observed.outcome != OK)
    if stretch.running_at_ns is not None:
        lost &= observed.outcome != CENSORED
    missing = np.maximum(0, observed.asked_tokens - np.maximum(observed.output_tokens, 1))
    lost &= missing > 0
    at = np.concatenate([gaps.at_ns[inside], observed.due_ns[lost]]) / NS_PER_S
    values = np.concatenate([gaps.ns[inside] / NS_PER_MS, np.full(int(lost.sum()), np.inf)])
    weights = np.concatenate([gaps.count[inside], missing[lost]]).astype(np.float64)
    return Samples(at=at, values=values, weights=weights)


def violations(observed: Observed, objective: Objective, slo: Slo, stretch: Stretch) -> Samples:
    """Samples of an objective as 0 (kept) and 1 (violated): their long-run mean is what the SLO bounds.

    A percentile objective holds where the share above its bound is below 1 - quantile, a share objective
    where the share is below its bound, and goodput where the share that missed is below 1 - bound.
    """
    if objective.quantile is not None:
        seen = latency_samples(observed, objective.metric, stretch)
        return Samples(
            at=seen.at, values=(seen.values > objective.bound).astype(np.float64), weights=seen.weights
        )
    inside = due_in(observed, stretch)
    bad = _violated(observed, objective, slo, stretch)[inside]
    return Samples(
        at=observed.due_ns[inside] / NS_PER_S, values=bad.astype(np.float64), weights=np.ones(len(bad))
    )


def allowed_share(objective: Objective) -> float:
    """The share of violations that the objective allows."""
    if objective.quantile is not None:
        return 1 - objective.quantile
    return 1 - objective.bound if objective.metric == "goodput" else objective.bound


def _violated(observed: Observed, objective: Objective, slo: Slo, stretch: Stretch) -> Bools:
    """Per request: did it violate this objective on a share?"""
    if objective.metric == "rejected":
        return np.asarray(observed.outcome == REJECTED)
    failed: Bools = observed.outcome == FAILED
    if stretch.running_at_ns is None:
        failed = failed | (observed.outcome == CENSORED)
    if objective.metric == "errors":
        return failed
    missed: Bools = failed | (observed.outcome == REJECTED)
    for other in slo.objectives:
        if other.quantile is not None:
            missed = missed | _missed(observed, other, stretch)
    return missed


def _missed(observed: Observed, objective: Objective, stretch: Stretch) -> Bools:
    """Which requests saw a latency above its bound.

    A gap cannot be traced to its request in columns of gaps, so for `itl` the request's own mean gap stands
    in (as TPOT, which goodput usually means).
    """
    metric: Metric = "tpot" if objective.metric == "itl" else objective.metric
    values, known = _per_request(observed, metric, stretch)
    return np.asarray(known & (values > objective.bound))
