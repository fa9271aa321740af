"""How fast requests leave while the bound is reached: what a refused client is told to wait for."""

import math
from collections import deque

from knee.core.units import NS_PER_S

WINDOW_NS = 10 * NS_PER_S
MOST_REMEMBERED = 65_536
RETRY_AFTER_CAP_S = 30


class DrainRate:
    """Requests finished per second of time spent at the bound.

    Time below the bound does not count: the rate at light load says how little was asked, not how much could
    be served. `expected` (requests/s, from a measured knee) stands in for what the window has not yet seen.
    """

    def __init__(self, expected: float | None = None) -> None:
        self._expected = expected
        self._full_ns = 0
        self._full = False
        self._last_ns = 0
        self._finished: deque[int] = deque(maxlen=MOST_REMEMBERED)

    def note(self, now_ns: int, full: bool, finished: int = 0) -> None:
        """At `now_ns`, `finished` requests ended; `full` says whether the bound is reached from here on."""
        if self._full:
            self._full_ns += max(0, now_ns - self._last_ns)
            self._finished.extend([self._full_ns] * finished)
        self._last_ns = max(self._last_ns, now_ns)
        self._full = full

    def per_s(self, now_ns: int) -> float | None:
        """Requests/s; None where nothing is known yet."""
        seen_ns = self._full_ns + (max(0, now_ns - self._last_ns) if self._full else 0)
        while self._finished and self._finished[0] < seen_ns - WINDOW_NS:
            self._finished.popleft()
        span_ns = min(seen_ns, WINDOW_NS)
        if self._expected is not None:
            unseen = self._expected * (WINDOW_NS - span_ns) / NS_PER_S
            return (len(self._finished) + unseen) * NS_PER_S / WINDOW_NS
        if span_ns == 0:
            return None
        # Nothing finished in the span means at most one in it, not never.
        return max(1, len(self._finished)) * NS_PER_S / span_ns


def retry_after_s(ahead: int, per_s: float | None) -> int | None:
    """Seconds until a place is free behind `ahead` waiting requests, rounded up and capped at 30.

    None where it is below a second or unknown: no header is then better than a wrong one.
    """
    if per_s is None:
        return None
    if per_s <= 0:
        return RETRY_AFTER_CAP_S
    wait_s = (ahead + 1) / per_s
    return None if wait_s < 1 else min(RETRY_AFTER_CAP_S, math.ceil(wait_s))
