"""The knee with the model's help: its long-run answer, corrected by how the server differs from it."""

import math
from collections.abc import Sequence

import msgspec

from knee.core.slo import Slo
from knee.measure.model.longrun import LongRun
from knee.measure.model.paired import Shift, find_shift
from knee.measure.model.replay import Model
from knee.measure.search.estimate import Estimate
from knee.measure.trial import Trial
from knee.stats.distributions import student_quantile

LOCAL = 0.12
"""How much of the distance between a point's rate and the knee its shift may be wrong by: the server need not
differ from its model by the same factor everywhere."""

NEAR = 0.25
LEAST = 0.003
FLOOR = 0.005
"""Relative error that no interval goes below: a fitted model's curve is never quite the server's."""

PRIOR = 0.06
"""Relative error of the model's own knee, which is evidence too: it is seldom off by more than twice this."""

RIVAL = 1.2
"""An objective that the model breaks so far above its knee does not break first on the server either."""


class Assisted(msgspec.Struct, frozen=True, kw_only=True):
    """An estimate with what it came from."""

    estimate: Estimate
    shifts: tuple[Shift, ...]

    @property
    def trusted(self) -> bool:
        """Whether the model takes noise away rather than adding it."""
        return any(one.error < one.plain_error for one in self.shifts)


def assisted_estimate(
    model: Model, long_run: LongRun, trials: Sequence[Trial], slo: Slo, confidence: float
) -> Assisted | None:
    """The knee from the shifts of points near the model's; None where no point can be compared.

    It is the lowest of the crossings of all objectives that come near, so each bound is the lowest of theirs.
    """
    close = [n for n, crossing in enumerate(long_run.crossings) if crossing < RIVAL * long_run.knee]
    told = {n: _crossing(model, long_run, trials, slo, number=n, confidence=confidence) for n in close}
    if told[long_run.binding] is None:
        return None
    found = [one for one in told.values() if one is not None]
    lowest = min(found, key=lambda one: one.estimate.estimate)
    both = msgspec.structs.replace(
        lowest.estimate,
        low=min(one.estimate.low for one in found),
        high=min(one.estimate.high for one in found),
    )
    return msgspec.structs.replace(lowest, estimate=both)


def _crossing(
    model: Model, long_run: LongRun, trials: Sequence[Trial], slo: Slo, *, number: int, confidence: float
) -> Assisted | None:
    """Where one objective breaks."""
    crossing = math.log(long_run.crossings[number])
    near = [trial for trial in trials if abs(math.log(trial.offer.rate / long_run.knee)) < NEAR]
    seen = [find_shift(model, trial, number, slo, long_run.slopes[number]) for trial in near]
    shifts = tuple(one for one in seen if one is not None)
    if not shifts:
        return None
    knees = [crossing - one.shift for one in shifts]
    errors = [
        math.hypot(one.error, LOCAL * abs(math.log(one.rate) - knee))
        for one, knee in zip(shifts, knees, strict=True)
    ]
    knees.append(crossing)
    errors.append(PRIOR)
    weights = [1 / max(LEAST, error) ** 2 for error in errors]
    total = sum(weights)
    middle = sum(w * k for w, k in zip(weights, knees, strict=True)) / total
    scatter = sum(w * (k - middle) ** 2 for w, k in zip(weights, knees, strict=True))
    misfit = scatter / (len(knees) - 1) if len(knees) > 1 else 1.0
    error = math.hypot(math.sqrt(max(1.0, misfit) / total), long_run.errors[number], FLOOR)
    reach = student_quantile((1 + confidence) / 2, max(one.degrees for one in shifts)) * error
    return Assisted(
        estimate=Estimate(
            low=math.exp(middle - reach),
            estimate=math.exp(middle),
            high=math.exp(middle + reach),
            binding=slo.objectives[number],
            misfit=misfit,
            method="assisted",
        ),
        shifts=shifts,
    )
