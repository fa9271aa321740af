"""The search for the knee: which rate next, for how long, and when to stop. No clock, no socket.

1. A few requests one at a time give the unloaded latencies: an SLO that these break cannot hold.
2. A closed-loop burst bounds the capacity; of it only the throughput counts, never its latencies.
3. A short open-loop point where the knee most likely lies, and more of them until it is known to some 12 %.
4. Long points at the likeliest knee, until its interval is narrow enough or the budget is spent.
5. Where none broke yet, a short point beyond the knee, so that there are points on both sides.
"""

import math
from collections.abc import Mapping

from knee.core.point import Knee, Point
from knee.core.slo import Slo
from knee.core.units import NS_PER_S, s_to_ns
from knee.measure.search.budget import Budget, Phase, Step
from knee.measure.search.estimate import Estimate
from knee.measure.search.evidence import Evidence
from knee.measure.search.identity import Identity, difference, identity_of, restarted
from knee.measure.search.idle import breaks_idle
from knee.measure.search.timing import cost_s, open_offer
from knee.measure.target import Measured, Offer
from knee.measure.trial import Trial, make_trial
from knee.measure.watching import watch_burst, watch_light, watch_point
from knee.workload.spec import Workload

DEFAULT_CLIENTS = 512
MOST_PROBES = 6
MOST_INVALID = 8
LONGEST_S = 86_400.0

DRIFT = 6.0
"""Mean squared deviation of the points from each other, in units of their noise, that is called a drift."""

FIRST_ERROR = 0.025
"""Relative error of a long point's rate by chance alone; most of it is the arrivals' and paired away."""

PROBE_SHARE = 0.25
"""A probe is this share of a long point."""

PROBE_TIME = 0.3
"""The most of what is left of the server time that a probe may take."""

BEYOND = 0.25
"""How far above the interval the point beyond the knee lies; it lasts for five standard deviations."""

ASIDE = 0.08
"""How far from the estimate points without a model lie, to either side."""

CLOSE = 0.12
"""Half-width of the interval at which probing ends."""


class Search:
    """A search in progress: ask `next_step`, measure it, `add` what came of it, until there is none."""

    def __init__(
        self,
        workload: Workload,
        slo: Slo,
        *,
        seed: int,
        budget: Budget | None = None,
        clients: int | None = None,
        flags: Mapping[str, str] | None = None,
        confidence: float = 0.95,
        assisted: bool = True,
    ) -> None:
        self.workload = workload
        self.slo = slo
        self.budget = (budget or Budget()).checked()
        self.evidence = Evidence(workload, slo, flags=flags, confidence=confidence, assisted=assisted)
        self.spent_s = 0.0
        self.reason = ""
        self._seed = seed
        self._clients = clients or DEFAULT_CLIENTS
        self._phase: Phase = "light"
        self._done: list[Phase] = []
        self._invalid: list[float] = []
        self._ending = ""
        self._identity: Identity = {}
        self._breaks_idle = False
        self._why_invalid = ""

    @property
    def left_s(self) -> float:
        """Server time left, in seconds."""
        return self.budget.server_s - self.spent_s

    @property
    def trials(self) -> list[Trial]:
        """The valid open-loop points."""
        return self.evidence.trials

    def next_step(self) -> Step | None:
        """What to measure next; None when the search is over (`reason` says why)."""
        if self.reason:
            return None
        if self._phase == "light":
            return self._closed(1, "light", "unloaded latencies, one request at a time")
        if self._phase == "again":
            return self._closed(4, "again", "the SLO broke with one request at a time; four may warm it up")
        if self._phase == "burst":
            return self._closed(self._clients, "burst", f"capacity from above, {self._clients} clients")
        return self._open(self.evidence.estimate())

    def add(self, step: Step, measured: Measured, point: Point) -> None:
        """Take what came of a step. A point with reasons in `invalid` counts as spent, never as evidence."""
        self.spent_s += measured.spent_ns / NS_PER_S
        self._done.append(step.phase)
        if self._changed(measured):
            return
        if step.phase in ("light", "again"):
            self._add_idle(step, measured)
        elif step.phase == "burst":
            self._phase = "probe"
            if not self.evidence.add_burst(step.offer, measured):
                self.reason = "no request of the burst was completed"
        elif point.invalid:
            self._invalid.append(step.offer.rate)
            self._why_invalid = point.invalid[0]
        else:
            cv = self.evidence.profile.length_cv
            self.evidence.add_trial(make_trial(measured, step.offer, point, self.slo, cv))

    def _changed(self, measured: Measured) -> bool:
        """Whether the server is no longer the one that the search began with; then the search is over."""
        if restarted(measured):
            self.reason = "the server restarted during a point; what came before is kept"
        seen = identity_of(measured)
        if changed := difference(self._identity, seen):
            self.reason = f"the server changed during the search: {changed}"
        self._identity |= seen
        return bool(self.reason)

    def _add_idle(self, step: Step, measured: Measured) -> None:
        """Unloaded latencies. An idle server may be slow just because it idles: it gets a second chance."""
        self.evidence.add_light(step.offer, measured)
        broken = breaks_idle(measured, self.slo)
        if not broken:
            self._phase = "burst"
        elif step.phase == "light":
            self._phase = "again"
        else:
            self.reason = f"no rate holds: {broken} with hardly any load"
            self._breaks_idle = True

    def knee(self) -> Knee:
        """The answer as it stands."""
        found = self.evidence.estimate()
        burst = self.evidence.burst
        holds, breaks = (found.low, found.high) if found else (None, None)
        if found and found.method == "plain" and all(_broke(trial) for trial in self.trials):
            holds = None  # extrapolated: nothing at or below it was seen to hold
        if self._client_bound and found:
            held = [trial.offer.rate for trial in self.trials if trial.point.holds]
            holds, breaks = max(held, default=None), None
        return Knee(
            slo=self.slo,
            holds=holds,
            breaks=0.0 if self._breaks_idle else breaks,
            estimate=found.estimate if found and breaks is not None else None,
            confidence=self.evidence.confidence,
            reason=(self.reason or "not finished") + self._doubts(found),
            binding_objective=found.binding.metric if found else None,
            saturation_rate=burst.capacity if burst else None,
            server_seconds=self.spent_s,
            points=len(self.trials),
        )

    def _doubts(self, found: Estimate | None) -> str:
        """What a reader of the interval should know beside it."""
        if found is None:
            return ""
        told = "" if found.method == "assisted" else "; from the points alone, no model of this server fits"
        if found.misfit > DRIFT:
            told += "; points differ by more than chance, so the interval is widened: did the server change?"
        return told

    def _closed(self, clients: int, phase: Phase, why: str) -> Step | None:
        longest_s = min(1200.0, self.left_s * 0.25)
        if longest_s < 1:
            self.reason = "the server time does not suffice for a first look"
            return None
        offer = Offer(
            workload=self.workload,
            rate=1.0,
            seed=self._next_seed(),
            warmup_ns=0,
            window_ns=s_to_ns(longest_s),
            drain_ns=NS_PER_S,
            max_concurrency=clients,
        )
        watch = watch_burst if phase == "burst" else watch_light
        return Step(phase=phase, offer=offer, watch=watch, why=why, left_s=self.left_s)

    def _open(self, found: Estimate | None) -> Step | None:
        self.reason = self._over(found)
        if self.reason:
            if "beyond" in self._done or found is None or self._client_bound:
                return None
            step = self._beyond(found)
            if step is not None:
                self.reason, self._ending = "", self.reason
            return step
        half_width = found.half_width if found else math.inf
        # Without a model nothing pairs the arrivals' chance away: it takes more of them.
        error = FIRST_ERROR if self.evidence.model is not None else FIRST_ERROR / 2
        long = self.evidence.profile.requests_for(error)
        if half_width > CLOSE and self._done.count("probe") < MOST_PROBES and "long" not in self._done:
            return self._offer("probe", found, long * PROBE_SHARE * (1 + self._done.count("probe")))
        if "long" in self._done:
            missing = (half_width / self.budget.precision) ** 2 - 1
            long *= self._done.count("long") * min(4.0, max(0.5, missing))
        return self._offer("long", found, long)

    def _over(self, found: Estimate | None) -> str:
        """Why the search is over, "" where it is not."""
        if len(self._invalid) >= MOST_INVALID:
            return f"{len(self._invalid)} points were invalid: {self._why_invalid}"
        if self._client_bound and found and found.low > 0.9 * self._reachable:
            return f"every rate that this client can offer holds: {self._why_invalid}"
        if "beyond" in self._done:
            return self._ending
        if found and found.half_width <= self.budget.precision and "long" in self._done:
            return f"the interval is within ±{self.budget.precision * 100:.3g}%"
        if len(self.trials) >= self.budget.points:
            return f"all {self.budget.points} points are spent"
        return ""

    def _beyond(self, found: Estimate) -> Step | None:
        """A short point above the interval, unless one broke there already or there is no room for it."""
        above = [trial for trial in self.trials if trial.offer.rate > found.high]
        broke = any(map(_broke, above))
        if broke or len(self.trials) >= self.budget.points:
            return None
        requests = self.evidence.profile.requests_for(BEYOND / 5)
        return self._offer("beyond", found, requests, rate=found.high * (1 + BEYOND))

    def _offer(
        self, phase: Phase, found: Estimate | None, requests: float, rate: float | None = None
    ) -> Step | None:
        rate = min(rate or self._likeliest(found), self._reachable)
        # A probe is to leave room for others; and to the nanosecond, all that is left could be too long.
        longest_s = self.left_s * (PROBE_TIME if phase == "probe" else 1 - 1e-9) - 1e-6
        offer = open_offer(
            self.workload,
            self.evidence.timing,
            rate=rate,
            seed=self._next_seed(),
            requests=max(200.0, requests),
            longest_s=min(longest_s, LONGEST_S),
        )
        if cost_s(offer) > self.left_s or offer.window_ns * rate < 50 * NS_PER_S:
            self.reason = "the server time is spent"
            return None
        watch = watch_point(offer, self.slo, self.evidence.profile.length_cv, early=phase != "long")
        why = (
            f"knee near {found.estimate:.3g}/s ±{found.half_width:.1%}"
            if found
            else "a first open-loop point"
        )
        return Step(phase=phase, offer=offer, watch=watch, why=why, left_s=self.left_s)

    def _likeliest(self, found: Estimate | None) -> float:
        """Where to measure next: at the estimate, but ever further down while every point broke.

        Without a model on alternating sides of it: points at one rate do not tell how steep the curve is.
        """
        if found is None:
            return self.evidence.first_rate
        if all(map(_broke, self.trials)):
            lowest = min(trial.offer.rate for trial in self.trials)
            return float(min(found.estimate, lowest / 2 ** (len(self.trials) - 1)))
        if found.method == "plain" and len(self.trials) > 1:
            aside = min(ASIDE, found.half_width / 2)
            return found.estimate * (1 + aside if len(self.trials) % 2 else 1 - aside)
        return found.estimate

    @property
    def _reachable(self) -> float:
        """The highest rate worth asking for: what was invalid twice is left alone, with a margin."""
        again = [
            rate for rate in self._invalid if sum(abs(other / rate - 1) < 0.05 for other in self._invalid) > 1
        ]
        return 0.85 * min(again, default=math.inf)

    @property
    def _client_bound(self) -> bool:
        return self._reachable < math.inf

    def _next_seed(self) -> int:
        return self._seed * 1000 + len(self._done)


def _broke(trial: Trial) -> bool:
    """Whether the SLO surely broke at a point, or its backlog grew without bound."""
    return trial.point.holds is False or trial.growth.grows
