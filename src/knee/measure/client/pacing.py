"""Waking at an absolute instant: by timerfd on Linux, by the event loop's own timers elsewhere."""

import asyncio
import contextlib
import ctypes
import os
import struct
import sys
from collections.abc import Callable

from knee.core.clock import Clock
from knee.core.units import NS_PER_S

_CLOCK_MONOTONIC = 1
_TFD_TIMER_ABSTIME = 1
_TFD_FLAGS = 0o4000 | 0o2000000  # TFD_NONBLOCK | TFD_CLOEXEC, timerfd_create(2)


class Waker:
    """Calls `wake` at the instant last armed, from the event loop. Made inside a running event loop.

    Where it is armed anew just as it fires, `wake` may be called before that instant.
    """

    def __init__(self, clock: Clock, wake: Callable[[], None]) -> None:
        self._clock = clock
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._armed = False
        self._fd = _timerfd()
        if self._fd is not None:
            self._loop.add_reader(self._fd, self._read)

    @property
    def exact(self) -> bool:
        """Whether the kernel's own timer wakes us: some 0.1 ms late rather than 1."""
        return self._fd is not None

    def arm(self, at_ns: int) -> None:
        """Wake at `at_ns` on the monotonic clock, at once where that is past; no longer at an earlier one."""
        if self._fd is not None:
            self._armed = True
            _settime(self._fd, max(1, at_ns))
            return
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0.0, (at_ns - self._clock.monotonic_ns()) / NS_PER_S)
        self._timer = self._loop.call_later(delay_s, self._wake)

    def close(self) -> None:
        """Wake no more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None

    def _read(self) -> None:
        if self._fd is None:
            return
        self._armed = False
        self._wake()
        if not self._armed and self._fd is not None:  # arming anew has the same effect as reading
            with contextlib.suppress(BlockingIOError):
                os.read(self._fd, 8)


def _timerfd() -> int | None:
    """A timer on the monotonic clock; None where the system has none."""
    if _LIBC is None:
        return None
    # os.timerfd_create came with Python 3.13.
    try:
        fd = int(_LIBC.timerfd_create(_CLOCK_MONOTONIC, _TFD_FLAGS))
    except (OSError, AttributeError):
        return None
    return fd if fd >= 0 else None


def _settime(fd: int, at_ns: int) -> None:
    # struct itimerspec: the interval (none) and the first expiry, each seconds and nanoseconds.
    spec = _SPEC(0, 0, *divmod(at_ns, NS_PER_S))
    if _LIBC is None or _LIBC.timerfd_settime(fd, _TFD_TIMER_ABSTIME, spec, None) != 0:
        raise OSError(ctypes.get_errno(), "timerfd_settime")


_SPEC = struct.Struct("qqqq").pack
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform.startswith("linux") else None
