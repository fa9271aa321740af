"""How long points are made: long enough to tell, and no longer."""

import math

import msgspec

from knee.core.slo import Slo
from knee.core.units import NS_PER_S, s_to_ns
from knee.measure.model.profile import Profile
from knee.measure.target import Offer
from knee.stats.distributions import normal_quantile
from knee.workload.spec import Workload

SHARE_OF_WARMUP = 0.35
"""Of the measured window, the most that a warm-up takes; beyond that steady state is out of reach."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the server's pace.

    `capacity` in requests/s from a closed-loop burst, `e2e_s` how long a request takes under load, `reach_s`
    the longest wait that the SLO has a bound for.
    """

    profile: Profile
    capacity: float
    e2e_s: float
    reach_s: float

    def settling_s(self) -> float:
        """Seconds until a server that began idle near its knee is in steady state.

        The batch fills within about two request times. A queue whose wait has a bound t at the knee
        forgets its state within about t^2 C / chance (the relaxation time of a reflected Brownian motion,
        8 / (theta^2 sigma^2) with the tail exp(-theta t) at a few percent; Abate and Whitt 1987).
        """
        return 2 * self.e2e_s + self.reach_s**2 * self.capacity / self.profile.chance

    def requests_for(self, half_width: float, confidence: float = 0.95) -> float:
        """Requests near the knee that bring its interval down to `half_width` (relative), arrivals alone."""
        return self.profile.requests_for(half_width / normal_quantile((1 + confidence) / 2))


def reach_s(slo: Slo) -> float:
    """The longest wait in seconds that the SLO bounds."""
    return max((o.bound for o in slo.objectives if o.metric in ("ttft", "e2e")), default=0.0) / 1000


def open_offer(
    workload: Workload,
    timing: Timing,
    *,
    rate: float,
    seed: int,
    requests: float,
    longest_s: float = math.inf,
) -> Offer:
    """An offer at `rate` that measures about `requests` requests within `longest_s` seconds in all."""
    drain_s = timing.reach_s + 2.0
    window_s = max(requests / rate, 2 * timing.e2e_s, 5.0)
    warmup_s = min(timing.settling_s(), 2 * timing.e2e_s + SHARE_OF_WARMUP * window_s)
    usable_s = longest_s - drain_s
    if window_s + warmup_s > usable_s:
        shrink = max(0.0, usable_s) / (window_s + warmup_s)
        window_s, warmup_s = window_s * shrink, warmup_s * shrink
    return Offer(
        workload=workload,
        rate=rate,
        seed=seed,
        warmup_ns=s_to_ns(warmup_s),
        window_ns=max(NS_PER_S, s_to_ns(window_s)),
        drain_ns=s_to_ns(drain_s),
    )


def cost_s(offer: Offer) -> float:
    """The most server time that an offer can take, in seconds."""
    return (offer.warmup_ns + offer.window_ns + offer.drain_ns) / NS_PER_S
