"""How fast the requests in flight may become more.

A bound on requests in flight says nothing about how they got there: a crowd that fills it at once has all its
prompts waiting for prefill, and the last of them wait far longer than any does once the bound is held. So
growth is paced: `burst` at once, then `per_s` a second. What ends makes room at once, so a fleet that is
faster than it was when measured is not held to the measured rate.
"""

import math

from knee.core.units import NS_PER_S


class Pace:
    """A bucket of places, for `replicas` replicas of which each may take `burst` at once."""

    def __init__(self, burst: int, per_s: float, replicas: int = 0) -> None:
        self._burst = burst
        self._per_s = per_s
        self._replicas = replicas
        self._places = float(burst * replicas)
        self._at_ns = 0

    def take(self, now_ns: int) -> bool:
        """Whether one more may begin now; if so it has taken its place."""
        self._refill(now_ns)
        if self._places < 1:
            return False
        self._places -= 1
        return True

    def give_back(self, now_ns: int) -> None:
        """One has ended."""
        self._refill(now_ns)
        self._places = min(self._places + 1, float(self._burst * self._replicas))

    def scale(self, replicas: int, now_ns: int) -> None:
        """There are `replicas` now; one that joins is idle, one that leaves takes its share along."""
        self._refill(now_ns)
        more = self._burst * (replicas - self._replicas)
        self._replicas = replicas
        self._places = min(max(0.0, self._places + more), float(self._burst * replicas))

    def ready_ns(self, now_ns: int) -> int | None:
        """When the next may begin if none ends before; None where none ever may."""
        self._refill(now_ns)
        if self._places >= 1:
            return now_ns
        per_s = self._per_s * self._replicas
        return now_ns + math.ceil((1 - self._places) / per_s * NS_PER_S) + 1 if per_s > 0 else None

    def _refill(self, now_ns: int) -> None:
        more = self._per_s * self._replicas * max(0, now_ns - self._at_ns) / NS_PER_S
        self._places = min(self._places + more, float(self._burst * self._replicas))
        self._at_ns = max(self._at_ns, now_ns)
