"""The event loop: uvloop where it is installed, asyncio's own elsewhere."""

import asyncio
from typing import Any

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
