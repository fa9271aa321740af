"""Keeping the garbage collector out of the measurement."""

import contextlib
import gc
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def quiet_memory() -> Iterator[None]:
    """No long collections while time counts: what is there now is left out of them.

    A full collection of a large heap takes hundreds of milliseconds, which would be the server's latency.
    """
    gc.collect()
    gc.freeze()
    before = gc.get_threshold()
    gc.set_threshold(20_000, 50, 1_000)
    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)  # a thread that judges the point must not hold the loop for 5 ms
    try:
        yield
    finally:
        sys.setswitchinterval(switch_s)
        gc.set_threshold(*before)
        gc.unfreeze()
