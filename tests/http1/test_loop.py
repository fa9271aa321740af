"""Work in an event loop that Ctrl-C ends, wherever Python is when it comes."""

import asyncio
import signal
import weakref

import pytest

from knee.http1.client import private_loop
from knee.http1.loop import run_interruptibly


def test_an_interrupt_in_the_callback_of_a_weak_reference_is_not_lost() -> None:
    """There Python drops a KeyboardInterrupt, and a task that ends runs such a callback."""

    class Thing:
        pass

    async def work() -> None:
        thing = Thing()
        watched = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGINT))
        del thing
        assert watched() is None
        await asyncio.sleep(30)

    with private_loop() as loop, pytest.raises(KeyboardInterrupt):
        run_interruptibly(loop, work())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_work_that_ends_by_itself_gives_its_result() -> None:
    async def work() -> int:
        return 7

    with private_loop() as loop:
        assert run_interruptibly(loop, work()) == 7
