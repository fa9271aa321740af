"""Real-time priority for the load, where the client shares its cores with others and may take it."""

import contextlib
import os
from collections.abc import Iterator

PRIORITY = 10
"""Of 1 to 99: any real-time priority goes before all ordinary processes. Linux leaves these 5% of a core."""


@contextlib.contextmanager
def first_in_line(wanted: bool) -> Iterator[str]:
    """Run this thread at real-time priority, if wanted; yields a remark where that was not granted ("" else).

    Threads and processes started meanwhile run as ordinary ones.
    """
    if not wanted:
        yield ""
        return
    if not hasattr(os, "sched_setscheduler"):
        yield "this system has no real-time priority to give"
        return
    before, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        policy = os.SCHED_RR | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, policy, os.sched_param(PRIORITY))
    except OSError as error:
        yield f"real-time priority was not granted: {error.strerror} (it wants root or CAP_SYS_NICE)"
        return
    try:
        yield ""
    finally:
        os.sched_setscheduler(0, before & ~os.SCHED_RESET_ON_FORK, parameters)
