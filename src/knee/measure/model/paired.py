"""How far the server is from its model, in rate: the same schedule on both, compared batch by batch."""

import math
from collections.abc import Callable, Sequence

import msgspec

from knee.core.slo import Objective, Slo
from knee.measure.model.longrun import logit
from knee.measure.model.replay import Model, replay
from knee.measure.point import judged_stretch
from knee.measure.samples import Stretch, allowed_share, latency_samples, violations
from knee.measure.target import Offer
from knee.measure.trial import Trial
from knee.stats.batches import paired_error
from knee.stats.percentile import quantile
from knee.stats.samples import Samples

_EVALUATIONS = 6
_STRIDE = 0.1
_CLOSE = 0.02
_FLATTEST = 0.05
_MODEL_ERROR = 0.02
"""Relative error of a latency that the model may have anywhere. Where a latency hardly depends on the rate,
this makes a large error of the shift: such a point says little about the knee."""

_TELLING = 1.5
"""Log odds within which a share of violations is taken at the bound itself, not at the percentile seen."""


class Shift(msgspec.Struct, frozen=True, kw_only=True):
    """At `rate` the server behaves like its model at rate x exp(`shift`), give or take `error` (of the log).

    `plain_error` is what the error would be without the model, from the violations' own variance.
    """

    rate: float
    shift: float
    error: float
    degrees: float
    plain_error: float


def find_shift(model: Model, trial: Trial, number: int, slo: Slo, slope: float) -> Shift | None:
    """The shift of one objective at one point; None where the model cannot be made to agree.

    Both see the same requests. The rate of the model is moved until its share of samples above a threshold is
    the server's; the threshold is the bound where that tells enough, else the percentile that was seen.
    `slope` is that of the log odds in the long run: one short window is too ragged to show its own.
    """
    objective = slo.objectives[number]
    stretch = judged_stretch(trial.measured, trial.offer, slo)
    probe = _at_threshold(trial, objective, slo, stretch)
    if probe is None:
        return None
    own, target = probe
    seen = violations(trial.measured.observed, own, slo, stretch)
    offer = _window_of(trial.offer, stretch)
    tried: list[tuple[float, float]] = []
    shift = step = 0.0
    for _ in range(_EVALUATIONS):
        theirs = _replayed(model, offer, shift, own, slo)
        tried.append((shift, logit(_mean(theirs(1.0)))))
        local = _local_slope(tried, slope)
        step = (logit(target) - tried[-1][1]) / local
        if abs(step) < _CLOSE and len(tried) > 1:
            break
        # The first step is never too small to show the slope that this very window has.
        shift += math.copysign(min(_STRIDE, max(abs(step), _CLOSE)), step)
    else:
        return None
    error, degrees = paired_error(seen, theirs(1.0), stretch.seconds, math.exp(shift))
    ends = [logit(_mean(theirs(factor))) for factor in (1 - _MODEL_ERROR, 1 + _MODEL_ERROR)]
    spread = target * (1 - target) * local
    trials = max(1.0, trial.scores[number].share.trials)
    return Shift(
        rate=trial.offer.rate,
        shift=shift + step,
        error=math.hypot(error / spread, (ends[0] - ends[1]) / 2 / local),
        degrees=degrees,
        plain_error=math.sqrt(target * (1 - target) / trials) / spread,
    )


def _local_slope(tried: Sequence[tuple[float, float]], long_run: float) -> float:
    """The rise of log odds with the log of the rate in this window, as far as tried; else the long run's."""
    if len(tried) < 2:
        return long_run
    (low, below), (high, above) = min(tried), max(tried)
    return min(2 * long_run, max(_FLATTEST * long_run, (above - below) / (high - low)))


def _at_threshold(
    trial: Trial, objective: Objective, slo: Slo, stretch: Stretch
) -> tuple[Objective, float] | None:
    """The objective with the threshold at which to compare, and the server's share above it."""
    share = trial.scores[[*slo.objectives].index(objective)].share
    allowed = allowed_share(objective)
    if share.samples == 0:
        return None
    if 0 < share.value < 1 and abs(logit(share.value) - logit(allowed)) < _TELLING:
        return objective, share.value
    if objective.quantile is None:
        return None
    seen = latency_samples(trial.measured.observed, objective.metric, stretch)
    for level in (allowed, 0.3, 0.5, 0.7):
        bound = quantile(seen.values, 1 - level, seen.weights)
        if math.isfinite(bound) and bound > 0:
            above = float(seen.weights[seen.values > bound].sum() / seen.weights.sum())
            if 0 < above < 1:
                return msgspec.structs.replace(objective, bound=bound), above
    return None


def _window_of(offer: Offer, stretch: Stretch) -> Offer:
    """The offer with the judged stretch as its window."""
    return msgspec.structs.replace(
        offer, warmup_ns=stretch.start_ns, window_ns=stretch.end_ns - stretch.start_ns
    )


def _replayed(
    model: Model, offer: Offer, shift: float, own: Objective, slo: Slo
) -> Callable[[float], Samples]:
    """The model's violations of `own` at a shifted rate, as a function of a factor on the threshold."""
    factor = math.exp(shift)
    observed = replay(model, offer, factor)
    stretch = Stretch(
        start_ns=round(offer.warmup_ns / factor),
        end_ns=round((offer.warmup_ns + offer.window_ns) / factor),
        running_at_ns=observed.end_of_load_ns,
    )

    def at(threshold: float) -> Samples:
        moved = own
        if own.quantile is not None:
            moved = less_extra(msgspec.structs.replace(own, bound=own.bound * threshold), model)
        return violations(observed, moved, slo, stretch)

    return at


def less_extra(objective: Objective, model: Model) -> Objective:
    """The objective with the bound that the engine alone has to keep."""
    if objective.metric in ("ttft", "e2e"):
        return msgspec.structs.replace(objective, bound=max(1e-3, objective.bound - model.extra_ms))
    return objective


def _mean(seen: Samples) -> float:
    weight = float(seen.weights.sum())
    return float((seen.values * seen.weights).sum()) / weight if weight else 0.0
