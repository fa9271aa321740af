"""Whether a replica may be given requests: a state machine over what it really answered.

    loading ── probe answered ──→ ready ── failures ──→ ejected ── probe answered ──→ ready or half_open
    half_open ── one real request answered ──→ ready        half_open ── it failed ──→ ejected, for longer

A process that refused connections is fit again once a probe is answered. One that answered requests with 5xx,
or not at all, may still answer probes, so it gets one real request (`half_open`) before it gets the rest.
4xx and 503 are neutral: the first is the client's fault, the second is what a busy server says, and ejecting
busy servers one after the other would turn overload into an outage.
"""

from typing import Literal

import msgspec

from knee.core.units import NS_PER_S

HealthState = Literal["loading", "ready", "ejected", "half_open"]
Failure = Literal["connect", "status", "first_byte", "cut", "probe"]


class HealthRules(msgspec.Struct, frozen=True, kw_only=True):
    """How many failures in a row eject, and for how long: `first_ns`, doubled each time up to `most_ns`."""

    failures: int = 3
    probe_failures: int = 2
    first_ns: int = NS_PER_S // 2
    most_ns: int = 30 * NS_PER_S


class Health:
    """One replica's state."""

    def __init__(self, rules: HealthRules, now_ns: int = 0) -> None:
        self._rules = rules
        self.state: HealthState = "loading"
        self.cause: Failure | None = None
        self.until_ns = now_ns
        self.ejections = 0
        self._failures = 0
        self._probe_failures = 0
        self._doublings = 0

    def may_take(self, in_flight: int) -> bool:
        """Whether a request may be sent, with `in_flight` of them on the way."""
        return self.state == "ready" or (self.state == "half_open" and in_flight == 0)

    def probe_wanted(self, now_ns: int) -> bool:
        """Whether a probe's answer could change anything now."""
        return self.state != "ejected" or now_ns >= self.until_ns

    def on_probe(self, answered: bool, now_ns: int, progress: bool = False) -> None:
        """A probe ended. `progress`: bytes of real answers came since it was sent.

        A probe that fails while answers flow is a sign of load, not of death, and counts for nothing.
        """
        if answered:
            self._probe_failures = 0
            if self.state == "loading":
                self._become_ready()
            elif self.state == "ejected" and now_ns >= self.until_ns:
                if self.cause in ("status", "first_byte"):
                    self.state = "half_open"
                else:
                    self._become_ready()
            return
        if progress:
            return
        self._probe_failures += 1
        if self.state == "ejected" and now_ns >= self.until_ns:
            self._eject("probe" if self.cause is None else self.cause, now_ns)
        elif self.state in ("ready", "half_open") and self._probe_failures >= self._rules.probe_failures:
            self._eject("probe", now_ns)

    def on_answer(self, status: int, now_ns: int) -> None:
        """A response head with `status` came for a real request."""
        if status == 503 or 400 <= status < 500:
            return
        if status >= 500:
            self.on_failure("status", now_ns)
            return
        self._failures = 0
        if self.state == "half_open":
            self._become_ready()

    def on_failure(self, cause: Failure, now_ns: int) -> None:
        """A real request failed for `cause`. Nothing listens after a refused connection, so one is enough."""
        self._failures += 1
        if self.state == "half_open" or (
            self.state == "ready" and (cause == "connect" or self._failures >= self._rules.failures)
        ):
            self._eject(cause, now_ns)

    def _become_ready(self) -> None:
        self.state = "ready"
        self.cause = None
        self._failures = self._probe_failures = 0
        self._doublings = 0

    def _eject(self, cause: Failure, now_ns: int) -> None:
        self.ejections += self.state != "ejected"
        self.state = "ejected"
        self.cause = cause
        # Coming back after a refused connection costs one probe, so the wait need not grow each time.
        doublings = 0 if cause in ("connect", "probe", "cut") else self._doublings
        self.until_ns = now_ns + min(self._rules.most_ns, self._rules.first_ns << min(doublings, 32))
        self._doublings += 1
        self._failures = self._probe_failures = 0
