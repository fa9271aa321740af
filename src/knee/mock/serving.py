"""Serve in the foreground until a signal says to stop."""

import asyncio
import os
import signal
from collections.abc import Callable
from typing import TextIO

from knee.core.clock import RealClock
from knee.http1.loop import new_event_loop
from knee.mock.config import MockConfig
from knee.mock.server import MockServer


def serve_until_stopped(
    config: MockConfig,
    host: str,
    port: int,
    *,
    log: TextIO | None,
    opened: Callable[[str], None],
    until_eof: int | None = None,
) -> int:
    """Run a server until SIGTERM or SIGINT; its exit code.

    A second signal ends it at once. `opened` is told the URL when the port is open. `until_eof` is a file
    descriptor whose end also ends the server.

    Raises:
        UsageError: the configuration or the address cannot be used.
    """

    async def main() -> int:
        server = MockServer(config, RealClock(), log)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, server.terminate)

        def read() -> None:
            if until_eof is not None and not os.read(until_eof, 1024):
                loop.remove_reader(until_eof)
                server.end_now()

        if until_eof is not None:
            loop.add_reader(until_eof, read)
        if await server.start(host, port):
            opened(server.url)
        return await server.wait()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main())
