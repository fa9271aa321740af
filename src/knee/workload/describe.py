"""What a trace is like, in numbers: rates, burstiness, lengths, shared text."""

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from knee.core.requests import Ints
from knee.workload.trace import Trace

WINDOWS_S = (1.0, 10.0, 60.0)


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts: mean, coefficient of variation, percentiles (nearest rank) and ends."""

    mean: float
    cv: float
    low: int
    p50: int
    p90: int
    p95: int
    p99: int
    high: int


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """A trace in numbers.

    `peak_rates` is the highest rate in any window of that many seconds. `burstiness` is the shape of gamma
    gaps with the variation seen, 1 / CV^2 (1 = Poisson, less is burstier). `dispersion` is the variance over
    the mean of arrivals per window of that many seconds: 1 at every length for Poisson, and growing with the
    length where the rate itself moves. `repeated_share` is the share of prompt tokens in leading segments
    seen before, which a prefix cache without limits would hit. `length_correlation` is that of prompt and
    output.
    """

    name: str
    format: str
    requests: int
    prompt_tokens: Spread
    output_tokens: Spread
    length_correlation: float | None
    span_s: float | None = None
    rate: float | None = None
    peak_rates: dict[str, float] = {}
    burstiness: float | None = None
    dispersion: dict[str, float] = {}
    repeated_share: float | None = None
    rate_over_time: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()


def describe(trace: Trace, slices: int = 60) -> Description:
    """The numbers of `trace`; `rate_over_time` has `slices` of equal length."""
    timed = trace.at_s is not None and trace.rate is not None
    at_s = trace.at_s if trace.at_s is not None else np.empty(0)
    span_s = trace.span_s
    return Description(
        name=trace.name,
        format=trace.format,
        requests=len(trace),
        prompt_tokens=spread(trace.prompt_tokens),
        output_tokens=spread(trace.output_tokens),
        length_correlation=_correlation(trace.prompt_tokens, trace.output_tokens),
        span_s=span_s if timed else None,
        rate=trace.rate,
        peak_rates={f"{w:g}s": _peak(at_s, w) for w in WINDOWS_S if timed and w <= span_s},
        burstiness=_burstiness(at_s) if timed else None,
        dispersion={f"{w:g}s": d for w in WINDOWS_S if timed and (d := _dispersion(at_s, w, span_s))},
        repeated_share=repeated_share(trace) if trace.shared is not None else None,
        rate_over_time=_over_time(at_s, span_s, slices) if timed else (),
        notes=trace.notes,
    )


def spread(values: Ints) -> Spread:
    """The distribution of token counts."""
    ordered = np.sort(values)
    p50, p90, p95, p99 = (int(ordered[math.ceil(q * len(ordered)) - 1]) for q in (0.5, 0.9, 0.95, 0.99))
    mean = float(values.mean())
    return Spread(
        mean=mean,
        cv=float(values.std()) / mean,
        low=int(ordered[0]),
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        high=int(ordered[-1]),
    )


def repeated_share(trace: Trace) -> float:
    """The share of prompt tokens in leading segments that an earlier prompt opened with as well."""
    seen: set[int] = set()
    repeated = 0
    for segments in trace.shared or ():
        key, hitting = 0, True
        for segment in segments:
            key = hash((key, segment))
            hitting = hitting and key in seen
            repeated += segment[1] if hitting else 0
            seen.add(key)
    return repeated / int(trace.prompt_tokens.sum())


def _correlation(prompts: Ints, outputs: Ints) -> float | None:
    if len(prompts) < 3 or prompts.std() == 0 or outputs.std() == 0:
        return None
    return float(np.corrcoef(prompts, outputs)[0, 1])


def _peak(at_s: NDArray[np.float64], window_s: float) -> float:
    """The most arrivals in any window that begins with an arrival, as a rate."""
    ends = np.searchsorted(at_s, at_s + window_s, side="left")
    return float((ends - np.arange(len(at_s))).max() / window_s)


def _burstiness(at_s: NDArray[np.float64]) -> float | None:
    gaps = np.diff(at_s)
    if len(gaps) < 2 or gaps.std() == 0:
        return None
    return float((gaps.mean() / gaps.std()) ** 2)


def _dispersion(at_s: NDArray[np.float64], window_s: float, span_s: float) -> float | None:
    windows = int(span_s // window_s)
    if windows < 10:
        return None
    counts = np.bincount((at_s // window_s).astype(np.int64), minlength=windows)[:windows]
    return float(counts.var(ddof=1) / counts.mean())


def _over_time(at_s: NDArray[np.float64], span_s: float, slices: int) -> tuple[float, ...]:
    counts, _ = np.histogram(at_s, bins=slices, range=(0, span_s))
    return tuple(float(count) / (span_s / slices) for count in counts)
