"""An objective against what was seen: the percentile or share with its interval, and what follows."""

import math

import msgspec

from knee.core.point import Judged
from knee.core.requests import Observed
from knee.core.slo import Objective, Slo
from knee.measure.samples import Stretch, allowed_share, latency_samples, violations
from knee.stats.batches import Share, batch_share
from knee.stats.interval import evidence, percentile_interval
from knee.stats.percentile import Sorted, minimum_samples


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """The share of violations of one objective at one point, against the share it allows."""

    objective: Objective
    allowed: float
    share: Share

    def holds(self, confidence: float) -> bool | None:
        """Whether the long-run share is below (True) or above (False) the allowed one; None: undecided."""
        low, high = self.share.interval(confidence)
        if high < self.allowed:
            return True
        return False if low > self.allowed else None


def score(observed: Observed, objective: Objective, slo: Slo, stretch: Stretch) -> Score:
    """The violations of `objective` in the stretch.

    Where (almost) nothing violates the bound, the violations cannot tell how correlated they would be; so
    the objective's own percentile is asked too (`evidence`), and the fewer independent samples count.
    """
    seen = violations(observed, objective, slo, stretch)
    found = batch_share(seen, stretch.seconds)
    allowed = allowed_share(objective)
    if objective.quantile is not None and found.samples:
        values = latency_samples(observed, objective.metric, stretch)
        ordered = Sorted(values.values, values.weights)
        typical = evidence(values, ordered, objective.quantile, stretch.seconds)
        if typical.trials < found.trials:
            found = msgspec.structs.replace(found, trials=typical.trials, degrees=typical.degrees)
    return Score(objective=objective, allowed=allowed, share=found)


def judge(
    observed: Observed, objective: Objective, slo: Slo, stretch: Stretch, confidence: float = 0.95
) -> Judged:
    """The objective's percentile or share with its interval at `confidence`, and whether it holds."""
    found = score(observed, objective, slo, stretch)
    holds = found.holds(confidence)
    if objective.quantile is not None:
        seen = latency_samples(observed, objective.metric, stretch)
        value, low, high = percentile_interval(seen, objective.quantile, stretch.seconds, confidence)
        if holds is True and len(seen) < minimum_samples(objective.quantile):
            holds = None
    else:
        low, high = found.share.interval(confidence)
        value = found.share.value
        if objective.metric == "goodput":
            value, low, high = 1 - value, 1 - high, 1 - low
    return Judged(
        objective=objective,
        value=_finite(value),
        low=_finite(low),
        high=_finite(high),
        holds=holds,
        n=found.share.samples,
        confidence=confidence,
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
