"""When a point has told enough: watches that end it early."""

import msgspec
import numpy as np

from knee.core.requests import NEVER, OK, Observed
from knee.core.slo import Slo
from knee.core.units import NS_PER_S
from knee.measure.samples import known_stretch
from knee.measure.target import Offer, Stop, Watch
from knee.measure.trial import growth_until, score_all

LOOK_EVERY = 1.2
"""Looks come at geometrically growing distances, so that their number, and with it the chance that one of
them errs, stays small."""

SURE = 0.998
"""Confidence of an early verdict: a run has some ten looks at each of some ten points."""

LIGHT_REQUESTS = 8
LIGHT_ENOUGH_S = 30.0


class Looks:
    """Instants at which to look, from `first_ns` on."""

    def __init__(self, first_ns: int) -> None:
        self._next_ns = first_ns

    def due(self, now_ns: int) -> bool:
        """Whether it is time to look; if so the next time is set."""
        if now_ns < self._next_ns:
            return False
        self._next_ns = max(self._next_ns + NS_PER_S, round(now_ns * LOOK_EVERY))
        return True


def watch_point(offer: Offer, slo: Slo, length_cv: float, *, early: bool) -> Watch:
    """A watch that ends an open-loop point when the waits of its window are known, or earlier if `early`.

    Early: clearly bad (the backlog grows and will not come back, or an objective is surely broken) or clearly
    good (every objective surely holds, after at least half of the window).
    """
    end_ns = offer.warmup_ns + offer.window_ns
    # What is due in the window has by then kept its bounds or broken them: no drain is needed beyond it.
    known_ns = end_ns + max(0, offer.drain_ns - NS_PER_S)
    looks = Looks(offer.warmup_ns // 2)

    def watch(observed: Observed, now_ns: int) -> Stop:
        if now_ns >= known_ns:
            return "enough"
        if not early or not looks.due(now_ns):
            return ""
        if growth_until(observed, now_ns, length_cv).grows:
            return "clearly breaks"
        stretch = known_stretch(observed, offer.warmup_ns, end_ns, now_ns, slo)
        verdicts = [one.holds(SURE) for one in score_all(observed, slo, stretch)]
        if False in verdicts:
            return "clearly breaks"
        half = stretch.end_ns - offer.warmup_ns >= offer.window_ns // 2
        return "clearly holds" if half and all(verdicts) else ""

    return watch


def watch_light(observed: Observed, now_ns: int) -> Stop:
    """End a light run after a few requests, or fewer where they take long."""
    done = int((observed.outcome == OK).sum())
    ended = int((observed.end_ns != NEVER).sum())
    if done >= LIGHT_REQUESTS or ended >= 2 * LIGHT_REQUESTS:
        return "enough"
    return "enough" if done >= 2 and now_ns >= LIGHT_ENOUGH_S * NS_PER_S else ""


class Burst(msgspec.Struct, frozen=True, kw_only=True):
    """What a burst shows: requests/s at full batch, how long one takes then, the most that ran at once."""

    capacity: float
    e2e_s: float
    running: int


BURST_S, BURST_REQUESTS = 3.0, 200
"""A burst lasts so long or completes so many: that all its clients arrive at once keeps a real front end busy
for some tenths of a second, in which the engine is not at its best."""


def watch_burst(observed: Observed, now_ns: int) -> Stop:
    """End a burst when its batch has turned over: half a batch was completed, and then whole ones."""
    done = int((observed.outcome == OK).sum())
    if now_ns < BURST_S * NS_PER_S and done < BURST_REQUESTS:
        return ""
    return "enough" if done >= 2 and done >= 1.5 * _running(observed) + 2 else ""


def read_burst(observed: Observed, output_tokens: float) -> Burst | None:
    """The throughput of a burst while its batch turned over; None where it never did.

    From the completion of half a batch (or a quarter of all) on for as many whole batches as there are, so
    that the phases of requests that began together are all in it; tokens made over the mean of tokens asked
    for, not completions, since the first completions of a burst are its shortest requests.
    """
    ends = np.sort(observed.end_ns[observed.outcome == OK])
    running = _running(observed)
    first = max(running // 2, len(ends) // 4)
    last = first + max(1, (len(ends) - 1 - first) // running) * running
    if len(ends) <= last or ends[last] <= ends[first]:
        return None
    begin_ns, end_ns = int(ends[first]), int(ends[last])
    gaps = observed.gaps
    inside = (gaps.at_ns >= begin_ns) & (gaps.at_ns < end_ns)
    firsts = (observed.first_ns >= begin_ns) & (observed.first_ns < end_ns)
    tokens = int(gaps.count[inside].sum()) + int(observed.first_tokens[firsts].sum())
    capacity = tokens / output_tokens * NS_PER_S / (end_ns - begin_ns)
    return Burst(capacity=capacity, e2e_s=running / capacity, running=running)


def _running(observed: Observed) -> int:
    """The most requests that were streaming at once."""
    began = observed.first_ns != NEVER
    if not began.any():
        return 1
    starts = np.sort(observed.first_ns[began])
    ends = np.sort(observed.end_ns[began & (observed.end_ns != NEVER)])
    return max(1, int((np.arange(1, len(starts) + 1) - np.searchsorted(ends, starts, side="right")).max()))
