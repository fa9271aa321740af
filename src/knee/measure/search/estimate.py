"""What the points so far say about the knee."""

import statistics
from collections.abc import Sequence

import msgspec

from knee.core.slo import Objective, Slo
from knee.measure.judge import Score
from knee.measure.trial import Trial
from knee.stats.crossing import Crossing, Seen, find_crossing

CEILING_ERROR = 0.03
BURST_ERROR = 0.35


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """The knee as far as known: bounds, the likeliest rate, and which objective binds there."""

    low: float
    estimate: float
    high: float
    binding: Objective
    misfit: float = 1.0
    method: str = "plain"

    @property
    def half_width(self) -> float:
        """Half of the interval over the estimate."""
        return (self.high - self.low) / 2 / self.estimate


def plain_estimate(trials: Sequence[Trial], slo: Slo, capacity: float, confidence: float) -> Estimate | None:
    """The knee from the shares of violations at the points alone; None without points.

    The knee is the lowest of the objectives' crossings, so each bound is the lowest of theirs.
    """
    if not trials:
        return None
    ceiling, error = ceiling_of(trials, capacity)
    found: list[tuple[Objective, Crossing]] = []
    for number, objective in enumerate(slo.objectives):
        seen = [_seen(trial, trial.scores[number]) for trial in trials]
        allowed = trials[0].scores[number].allowed
        found.append((objective, find_crossing(seen, allowed, ceiling, error, confidence)))
    binding, least = min(found, key=lambda pair: pair[1].estimate)
    return Estimate(
        low=min(crossing.low for _, crossing in found),
        estimate=least.estimate,
        high=min(crossing.high for _, crossing in found),
        binding=binding,
        misfit=least.misfit,
    )


def ceiling_of(trials: Sequence[Trial], capacity: float) -> tuple[float, float]:
    """The rate that no knee lies above, and the relative error of that.

    What was served while the backlog grew is the capacity. Where none grew, a burst's `capacity` is all there
    is, and a real server may be better or worse in a burst: a rate that held cannot be above the ceiling.
    """
    grew = [trial.point.served_rate for trial in trials if trial.growth.grows]
    served = [trial.point.served_rate for trial in trials if trial.growth.score < 1]
    if grew:
        return max([statistics.median(grew), *served]), CEILING_ERROR
    return max([capacity, *served]), BURST_ERROR


def _seen(trial: Trial, one: Score) -> Seen:
    """A backlog that grows without bound breaks every bound on a wait in the long run."""
    share, trials = one.share.value, one.share.trials
    if trial.growth.grows and one.objective.metric in ("ttft", "e2e", "goodput"):
        share, trials = max(share, 0.9), max(trials, 20.0)
    return Seen(
        rate=trial.offer.rate,
        share=share if one.share.samples else 0.0,
        trials=trials,
        degrees=one.share.degrees,
    )
