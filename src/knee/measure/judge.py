"""An objective against what was seen: the percentile or share with its interval, and what follows."""

import math

import msgspec
import numpy as np

from knee.core.point import Judged
from knee.core.requests import Observed
from knee.core.slo import Objective, Slo
from knee.measure.samples import Stretch, allowed_share, latency_samples, violations
from knee.stats.batches import Mean, Share, batch_mean, batch_share
from knee.stats.interval import evidence, percentile_interval
from knee.stats.percentile import Sorted, minimum_samples
from knee.stats.samples import Samples

FORGETFUL = 50.0
"""Independent samples that a window must hold at every level of latency before its moments count: a queue
that still fills has seen few, and nothing that was seen of it bounds what is to come. On the reference model
(knee 19.6 req/s for p95 TTFT < 1 s, capacity 20.4) 120 s windows are then called good in 24 of 24 cases up to
15 req/s, 20 at 18, 7 at 19 and none from 20 on; windows of 30 s, which begin idle, still in 6, 2 and 1 of 24
at 20, 20.4 and 21 req/s."""

MOMENT = 4


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """The share of violations of one objective at one point, against the share it allows.

    `most` is a mean that the long-run share of violations cannot exceed, where there is one (`_bounding`).
    """

    objective: Objective
    allowed: float
    share: Share
    most: Mean | None = None

    def holds(self, confidence: float) -> bool | None:
        """Whether the long-run share is below (True) or above (False) the allowed one; None: undecided."""
        low, high = self.share.interval(confidence)
        if self.most is not None:
            high = min(high, self.most.high(confidence))
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
    most = None
    if objective.quantile is not None and found.samples:
        values = latency_samples(observed, objective.metric, stretch)
        ordered = Sorted(values.values, values.weights)
        typical = evidence(values, ordered, objective.quantile, stretch.seconds)
        if typical.trials < found.trials:
            found = msgspec.structs.replace(found, trials=typical.trials, degrees=typical.degrees)
        if found.value < allowed and typical.trials >= FORGETFUL:
            most = batch_mean(_bounding(values, objective.bound), stretch.seconds)
    return Score(objective=objective, allowed=allowed, share=found, most=most)


def _bounding(seen: Samples, bound: float) -> Samples:
    """Per sample min(x / bound, 1)^4, which is 1 where the bound is broken: its mean bounds the broken share.

    Markov's inequality on the fourth moment. Few independent samples cannot tell the level of a high
    percentile, but where all of them lie far inside the bound they need not.
    """
    return Samples(at=seen.at, values=np.minimum(seen.values / bound, 1.0) ** MOMENT, weights=seen.weights)


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
