"""What an SLO is worth on an idle server."""

import numpy as np

from knee.core.slo import Slo
from knee.measure.samples import Stretch, latency_samples
from knee.measure.target import Measured

_HALF = 0.5
_FEWEST = 3


def breaks_idle(measured: Measured, slo: Slo) -> str:
    """The first latency objective that at least half of the samples break, in words; "" where none does.

    A few requests do not show a p95, but where their very median is above the bound, it is too.
    """
    observed = measured.observed
    stretch = Stretch(
        start_ns=0, end_ns=max(1, observed.end_of_load_ns), running_at_ns=observed.end_of_load_ns
    )
    for objective in slo.objectives:
        if objective.quantile is None:
            continue
        seen = latency_samples(observed, objective.metric, stretch)
        finite = np.isfinite(seen.values)
        if int(finite.sum()) < _FEWEST:
            continue
        over = float(
            seen.weights[finite & (seen.values > objective.bound)].sum() / seen.weights[finite].sum()
        )
        if over >= _HALF:
            middle = float(np.median(seen.values[finite]))
            return f"{objective} is broken by a median of {middle:.4g} ms"
    return ""
