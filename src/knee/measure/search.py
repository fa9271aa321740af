"""The search for the knee: which rate next, for how long, and when to stop. No clock, no socket.

1. A few requests one at a time give the unloaded latencies: an SLO that these break cannot hold.
2. A closed-loop burst bounds the capacity; of it only the throughput counts, never its latencies.
3. A short open-loop point where the knee most likely lies, and more of them until it is known to some 12 %.
4. Long points at the likeliest knee, until its interval is narrow enough or the budget is spent.
5. Where none broke yet, a short point beyond the knee, so that there are points on both sides.
"""

import math
from collections.abc import Mapping
from typing import Literal

import msgspec

from knee.core.errors import UsageError
from knee.core.point import Knee, Point
from knee.core.slo import Slo
from knee.core.units import NS_PER_S, s_to_ns
from knee.measure.estimate import Estimate
from knee.measure.evidence import Evidence
from knee.measure.target import Measured, Offer, Watch
from knee.measure.timing import cost_s, open_offer
from knee.measure.trial import Trial, make_trial
from knee.measure.watching import watch_burst, watch_light, watch_point
from knee.workload.spec import Workload

Phase = Literal["light", "burst", "probe", "long", "beyond"]

DEFAULT_CLIENTS = 512
MOST_POINTS = 24
MOST_PROBES = 6
MOST_INVALID = 8
LONGEST_S = 86_400.0

FIRST_ERROR = 0.025
"""Relative error of a long point's rate by chance alone; most of it is the arrivals' and paired away."""

PROBE_SHARE = 0.25
"""A probe is this share of a long point."""

BEYOND = 0.25
"""How far above the interval the point beyond the knee lies; it lasts for five standard deviations."""

CLOSE = 0.12
"""Half-width of the interval at which probing ends."""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Where to stop: half-width of the interval (relative), server time in seconds, open-loop points."""

    precision: float = 0.03
    server_s: float = math.inf
    points: int = MOST_POINTS

    def checked(self) -> "Budget":
        """This budget if one can search within it.

        Raises:
            UsageError: it leaves no room for a search.
        """
        if not 0.001 <= self.precision <= 0.5:
            raise UsageError(f"a precision of {self.precision:g}", "between 0.1% and 50%, like 3%")
        if not self.server_s > 0:
            raise UsageError(f"a server time of {self.server_s:g} s", "write a duration like 20m")
        if not 1 <= self.points <= MOST_POINTS:
            raise UsageError(f"{self.points} points", f"between 1 and {MOST_POINTS}")
        return self


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What to do next: an offer, the watch that ends it, and what it is for."""

    phase: Phase
    offer: Offer
    watch: Watch
    why: str


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
        self._invalid = 0
        self._ending = ""

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
        if self._phase == "burst":
            return self._closed(self._clients, "burst", f"capacity from above, {self._clients} clients")
        return self._open(self.evidence.estimate())

    def add(self, step: Step, measured: Measured, point: Point) -> None:
        """Take what came of a step. A point with reasons in `invalid` counts as spent, never as evidence."""
        self.spent_s += measured.spent_ns / NS_PER_S
        self._done.append(step.phase)
        if step.phase == "light":
            self.evidence.add_light(step.offer, measured)
            self._phase = "burst"
        elif step.phase == "burst":
            self._phase = "probe"
            if not self.evidence.add_burst(step.offer, measured):
                self.reason = "no request of the burst was completed"
        elif point.invalid:
            self._invalid += 1
        else:
            cv = self.evidence.profile.length_cv
            self.evidence.add_trial(make_trial(measured, step.offer, point, self.slo, cv))

    def knee(self) -> Knee:
        """The answer as it stands."""
        found = self.evidence.estimate()
        burst = self.evidence.burst
        return Knee(
            slo=self.slo,
            holds=found.low if found else None,
            breaks=found.high if found else None,
            estimate=found.estimate if found else None,
            confidence=self.evidence.confidence,
            reason=self.reason or "not finished",
            binding_objective=found.binding.metric if found else None,
            saturation_rate=burst.capacity if burst else None,
            server_seconds=self.spent_s,
            points=len(self.trials),
        )

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
        return Step(phase=phase, offer=offer, watch=watch_light if phase == "light" else watch_burst, why=why)

    def _open(self, found: Estimate | None) -> Step | None:
        self.reason = self._over(found)
        if self.reason:
            if "beyond" in self._done or found is None or self._invalid >= MOST_INVALID:
                return None
            step = self._beyond(found)
            if step is not None:
                self.reason, self._ending = "", self.reason
            return step
        half_width = found.half_width if found else math.inf
        long = self.evidence.profile.requests_for(FIRST_ERROR)
        if half_width > CLOSE and self._done.count("probe") < MOST_PROBES and "long" not in self._done:
            return self._offer("probe", found, long * PROBE_SHARE * (1 + self._done.count("probe")))
        if "long" in self._done:
            missing = (half_width / self.budget.precision) ** 2 - 1
            long *= self._done.count("long") * min(4.0, max(0.5, missing))
        return self._offer("long", found, long)

    def _over(self, found: Estimate | None) -> str:
        """Why the search is over, "" where it is not."""
        if self._invalid >= MOST_INVALID:
            return f"{self._invalid} points were invalid"
        if "beyond" in self._done:
            return self._ending
        if found and found.half_width <= self.budget.precision and "long" in self._done:
            return f"the interval is within ±{self.budget.precision * 100:.3g}%"
        if len(self.trials) >= self.budget.points:
            return f"all {self.budget.points} points are spent"
        return ""

    def _beyond(self, found: Estimate) -> Step | None:
        """A short point above the interval, unless a point broke already or there is no room for it."""
        broke = any(trial.point.holds is False or trial.growth.grows for trial in self.trials)
        if broke or len(self.trials) >= self.budget.points:
            return None
        requests = self.evidence.profile.requests_for(BEYOND / 5)
        return self._offer("beyond", found, requests, rate=found.high * (1 + BEYOND))

    def _offer(
        self, phase: Phase, found: Estimate | None, requests: float, rate: float | None = None
    ) -> Step | None:
        rate = rate or (found.estimate if found else self.evidence.first_rate)
        timing = self.evidence.timing
        offer = open_offer(
            self.workload,
            timing,
            rate=rate,
            seed=self._next_seed(),
            requests=max(200.0, requests),
            longest_s=min(self.left_s, LONGEST_S),
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
        return Step(phase=phase, offer=offer, watch=watch, why=why)

    def _next_seed(self) -> int:
        return self._seed * 1000 + len(self._done)
