"""A measured point as the search sees it: its verdicts as shares of violations, and its growth."""

import msgspec
import numpy as np

from knee.core.point import Point
from knee.core.requests import NEVER, Observed
from knee.core.slo import Slo
from knee.core.units import NS_PER_S
from knee.measure.judge import Score, score
from knee.measure.point import judged_stretch
from knee.measure.samples import Stretch
from knee.measure.target import Measured, Offer
from knee.stats.growth import Growth, backlog_growth


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One open-loop point: what was offered, what came of it, and the point made from it."""

    offer: Offer
    measured: Measured
    point: Point
    scores: tuple[Score, ...]
    growth: Growth


def make_trial(measured: Measured, offer: Offer, point: Point, slo: Slo, length_cv: float) -> Trial:
    """The trial behind a point."""
    stretch = judged_stretch(measured, offer, slo)
    return Trial(
        offer=offer,
        measured=measured,
        point=point,
        scores=score_all(measured.observed, slo, stretch),
        growth=growth_until(measured.observed, measured.observed.end_of_load_ns, length_cv),
    )


def score_all(observed: Observed, slo: Slo, stretch: Stretch) -> tuple[Score, ...]:
    """Every objective's share of violations."""
    return tuple(score(observed, objective, slo, stretch) for objective in slo.objectives)


def growth_until(observed: Observed, now_ns: int, length_cv: float) -> Growth:
    """Whether the requests that wait for a first token pile up."""
    first = np.where(observed.first_ns == NEVER, np.inf, observed.first_ns / NS_PER_S)
    ended = (observed.first_ns == NEVER) & (observed.end_ns != NEVER)
    first = np.where(ended, observed.end_ns / NS_PER_S, first)  # refused or failed: it waits no more
    return backlog_growth(observed.due_ns / NS_PER_S, first, now_ns / NS_PER_S, length_cv)
