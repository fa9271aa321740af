"""The one place that reads time.

Everything else takes a `Clock` (or integer nanoseconds) as an argument, so that the same code runs on
virtual time in tests and on the real clock in production.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time in integer nanoseconds."""

    def monotonic_ns(self) -> int:
        """Nanoseconds on a clock that never steps back; the origin is arbitrary."""
        ...

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch, for time stamps in records only, never for latencies."""
        ...


class RealClock:
    """The machine's clocks."""

    monotonic_ns = staticmethod(time.monotonic_ns)
    """Nanoseconds of the machine's monotonic clock; the call itself, as every chunk of a stream makes it."""

    wall_ns = staticmethod(time.time_ns)
    """Nanoseconds since the Unix epoch; the call itself, too."""

    def cpu_ns(self) -> int:
        """CPU nanoseconds this process has used."""
        return time.process_time_ns()

    def sleep(self, seconds: float) -> None:
        """Block this thread for `seconds`."""
        time.sleep(max(0.0, seconds))


class ManualClock:
    """A clock that moves only when told to: for tests and for virtual time."""

    def __init__(self, now_ns: int = 0, epoch_ns: int = 1_767_225_600_000_000_000) -> None:
        self._now_ns = now_ns
        self._epoch_ns = epoch_ns

    def monotonic_ns(self) -> int:
        """The virtual instant, in nanoseconds."""
        return self._now_ns

    def wall_ns(self) -> int:
        """The virtual instant counted from a fixed epoch."""
        return self._epoch_ns + self._now_ns

    def advance_ns(self, delta_ns: int) -> None:
        """Move forward by `delta_ns` (>= 0)."""
        if delta_ns < 0:
            raise ValueError(f"a clock does not run backwards: {delta_ns} ns")
        self._now_ns += delta_ns
