"""The event loop: uvloop where it is installed, asyncio's own elsewhere."""

import asyncio
import signal
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

uvloop: Any
try:
    import uvloop
except ImportError:  # no uvloop for this platform: slower, and otherwise the same
    uvloop = None


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A fresh event loop, not yet set as anyone's current one."""
    if uvloop is None:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def run_interruptibly(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`. In the main thread Ctrl-C cancels it in the loop's own turn.

    A KeyboardInterrupt that Python raises wherever it happens to be is lost in the callback of a weak
    reference, such as the one that runs when a task is dropped.

    Raises:
        KeyboardInterrupt: it was interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        return loop.run_until_complete(work)
    before = signal.getsignal(signal.SIGINT)
    task = loop.create_task(work)
    loop.add_signal_handler(signal.SIGINT, task.cancel)
    try:
        return loop.run_until_complete(task)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)  # uvloop leaves its own
