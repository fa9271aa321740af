"""From what one point's traffic saw to a `Point`: the books, the distributions, the verdicts."""

import numpy as np

from knee.core.point import Judged, Point, Summary
from knee.core.requests import OK, OUTCOMES, Ints, Observed
from knee.core.slo import Metric, Slo
from knee.core.units import NS_PER_MS, NS_PER_S
from knee.measure.judge import judge
from knee.measure.samples import Stretch, due_in, known_stretch, latency_samples
from knee.measure.target import Measured, Offer
from knee.stats.percentile import Floats, Sorted, minimum_samples
from knee.stats.samples import Samples
from knee.stats.steady import trend

_PERCENTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}


def make_point(
    measured: Measured,
    offer: Offer,
    slo: Slo | None = None,
    *,
    simulated: bool = False,
    invalid: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
    confidence: float = 0.95,
) -> Point:
    """The point that `measured` amounts to, over requests due in the offer's measured window.

    `invalid` are the reasons, if any, why it must not be used (`measure.validity` finds them). A point that
    was stopped early is judged over the part of its window whose waits are known; see `known_stretch`.
    """
    observed = measured.observed
    stretch = judged_stretch(measured, offer, slo)
    inside = due_in(observed, stretch)
    seconds = max(1, stretch.end_ns - stretch.start_ns) / NS_PER_S
    outcomes = observed.outcome[inside]
    books = {name: int((outcomes == code).sum()) for code, name in enumerate(OUTCOMES)}
    judged = judge_all(observed, slo, stretch, confidence)
    waits = latency_samples(observed, "ttft", stretch)
    return Point(
        rate=offer.rate,
        attained_rate=_ended_within(observed.sent_ns, stretch) / seconds,
        served_rate=_ended_within(observed.end_ns[observed.outcome == OK], stretch) / seconds,
        seed=offer.seed,
        window_start_ns=stretch.start_ns,
        window_end_ns=stretch.end_ns,
        spent_ns=measured.spent_ns,
        offered=int(inside.sum()),
        **books,
        ttft_ms=summarize(waits.values),
        itl_ms=_summary(observed, "itl", stretch),
        tpot_ms=_summary(observed, "tpot", stretch),
        e2e_ms=_summary(observed, "e2e", stretch),
        send_lag_ms=_send_lag(observed, stretch),
        output_tokens_per_s=_tokens_within(observed, stretch) / seconds,
        prompt_tokens_mean=_mean(observed.prompt_tokens[inside]),
        output_tokens_mean=_mean(observed.output_tokens[inside & (observed.outcome == OK)]),
        judged=judged,
        causes=dict(observed.causes),
        invalid=invalid,
        notes=notes + _drift(waits),
        stopped=measured.stopped,
        max_concurrency=offer.max_concurrency,
        window=measured.window,
        simulated=simulated,
    )


def judged_stretch(measured: Measured, offer: Offer, slo: Slo | None) -> Stretch:
    """The part of the measured window that can be judged."""
    end_ns = offer.warmup_ns + offer.window_ns
    stopped_ns = measured.observed.end_of_load_ns if measured.stopped else None
    return known_stretch(measured.observed, offer.warmup_ns, end_ns, stopped_ns, slo or Slo(()))


def judge_all(
    observed: Observed, slo: Slo | None, stretch: Stretch, confidence: float = 0.95
) -> tuple[Judged, ...]:
    """Every objective of the SLO against the stretch."""
    if slo is None:
        return ()
    return tuple(judge(observed, objective, slo, stretch, confidence) for objective in slo.objectives)


def summarize(values: Floats, weights: Floats | None = None) -> Summary:
    """The distribution of samples in milliseconds, infinite ones included.

    A percentile with fewer samples than it needs for an upper bound (`minimum_samples`) is left out and
    named in `unsupported`: no p99 from 71 requests.
    """
    ordered = Sorted(values, weights)
    finite = np.isfinite(values)
    held = np.ones(len(values)) if weights is None else weights
    few = tuple(name for name, share in _PERCENTILES.items() if len(values) < minimum_samples(share))
    found = {
        name: _finite(ordered.quantile(share)) for name, share in _PERCENTILES.items() if name not in few
    }
    return Summary(
        n=round(ordered.total),
        n_infinite=round(float(held[~finite].sum())),
        mean_finite=float(np.average(values[finite], weights=held[finite])) if finite.any() else None,
        unsupported=few,
        **found,
    )


def _summary(observed: Observed, metric: Metric, stretch: Stretch) -> Summary:
    seen = latency_samples(observed, metric, stretch)
    return summarize(seen.values, seen.weights)


def _send_lag(observed: Observed, stretch: Stretch) -> Summary:
    sent = due_in(observed, stretch) & (observed.sent_ns >= 0)
    return summarize((observed.sent_ns - observed.due_ns)[sent] / NS_PER_MS)


def _ended_within(instants: Ints, stretch: Stretch) -> int:
    return int(((instants >= stretch.start_ns) & (instants < stretch.end_ns)).sum())


def _tokens_within(observed: Observed, stretch: Stretch) -> int:
    """Output tokens that came inside the stretch: one per gap that ended there, and the first ones."""
    gaps = observed.gaps
    later = int(gaps.count[(gaps.at_ns >= stretch.start_ns) & (gaps.at_ns < stretch.end_ns)].sum())
    first = (observed.first_ns >= stretch.start_ns) & (observed.first_ns < stretch.end_ns)
    return later + int(observed.first_tokens[first].sum())


def _drift(waits: Samples) -> tuple[str, ...]:
    """A note where the waits do not stay where they are: the window is then no steady state."""
    if len(waits) < 64:
        return ()
    ceiling = float(np.max(waits.values[np.isfinite(waits.values)], initial=0.0)) * 2 + 1
    found = trend(np.minimum(waits.values, ceiling))
    if found.stationary:
        return ()
    way = "rises" if found.tau > 0 else "falls"
    return (f"TTFT {way} through the window (Kendall tau {found.tau:+.2f}, p {found.p_value:.1g})",)


def _mean(values: Ints) -> float:
    return float(values.mean()) if len(values) else 0.0


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
