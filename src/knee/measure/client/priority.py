"""Real-time priority for the load, where the client shares its cores with others and may take it."""

import contextlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

PRIORITY = 10
"""Of 1 to 99: any real-time priority goes before all ordinary processes. Linux leaves these 5% of a core."""


@contextlib.contextmanager
def first_in_line(wanted: bool) -> Iterator[str]:
    """Run this thread at real-time priority, if wanted; yields a remark where that was not granted ("" else).

    Threads and processes started meanwhile run as ordinary ones, except those of `threads_beside`.
    """
    if not wanted:
        yield ""
        return
    if not hasattr(os, "sched_setscheduler"):
        yield "this system has no real-time priority to give"
        return
    before, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        _go_first()
    except OSError as error:
        yield f"real-time priority was not granted: {error.strerror} (it wants root or CAP_SYS_NICE)"
        return
    try:
        yield ""
    finally:
        os.sched_setscheduler(0, before & ~os.SCHED_RESET_ON_FORK, parameters)


def threads_beside(*, first: bool) -> ThreadPoolExecutor:
    """Threads for what goes on beside the load: at its priority, if that is `first` in line.

    They share the interpreter's lock with it. A thread that holds the lock while the server has its core
    keeps the load waiting for as long, whatever the load's own priority.
    """
    return ThreadPoolExecutor(max_workers=2, initializer=_go_first if first else None)


def _go_first() -> None:
    policy = os.SCHED_RR | os.SCHED_RESET_ON_FORK
    os.sched_setscheduler(0, policy, os.sched_param(PRIORITY))
