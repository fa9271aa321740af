"""A simulated server in a thread of this process, for as long as a block lasts.

with mock_server(MockConfig()) as server:
    ...  # server.url

Whatever happens inside, the server is gone afterwards. It shares the interpreter with its client, which
costs both some accuracy: to measure, use `mock_process`.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from knee.core.clock import RealClock
from knee.core.errors import KneeError
from knee.http1.loop import new_event_loop
from knee.mock.config import MockConfig
from knee.mock.faults import parse_fault
from knee.mock.server import MockServer

END_S = 10.0
"""How long a server may take to end once asked."""


class Running:
    """A server in a thread. `exit_code` is None while it runs."""

    def __init__(self, config: MockConfig, log: TextIO | None) -> None:
        self.config = config
        self.url = ""
        self.exit_code: int | None = None
        self._log = log
        self._error: Exception | None = None
        self._address = ("", 0)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: MockServer | None = None
        self._open = threading.Event()
        self._thread = threading.Thread(target=self._run, name="knee-mock", daemon=True)

    @property
    def port(self) -> int:
        """The port it serves on."""
        return int(self.url.rsplit(":", 1)[1])

    def terminate(self) -> None:
        """What SIGTERM does."""
        self._call(MockServer.terminate)

    def fault(self, text: str, on: bool = True) -> None:
        """Switch a fault on (`stall`, `slow=3`, ...) or off, now."""
        fault = parse_fault(text)
        self._call(lambda server: server.apply(fault, on))

    def join(self, seconds: float = END_S) -> bool:
        """Wait until it has ended; whether it has."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def open(self, host: str, port: int) -> None:
        """Start, and wait until the port is open."""
        self._address = (host, port)
        self._thread.start()
        self._open.wait()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End it now."""
        if self._loop is not None and self._thread.is_alive():
            self._call(MockServer.end_now)
        if not self.join():
            raise KneeError(f"the simulated server at {self.url} does not end")

    def _call(self, what: Callable[[MockServer], object]) -> None:
        loop, server = self._loop, self._server
        if loop is not None and server is not None:
            with contextlib.suppress(RuntimeError):  # it has ended meanwhile
                loop.call_soon_threadsafe(what, server)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                self._loop = runner.get_loop()
                self.exit_code = runner.run(self._serve())
        except Exception as error:  # noqa: BLE001 - raised again in the thread that waits
            self._error = error
        finally:
            self._open.set()

    async def _serve(self) -> int:
        self._server = server = MockServer(self.config, RealClock(), self._log)
        await server.start(*self._address)
        self.url = server.url
        self._open.set()
        return await server.wait()


@contextmanager
def mock_server(
    config: MockConfig | None = None, host: str = "127.0.0.1", port: int = 0, log: TextIO | None = None
) -> Iterator[Running]:
    """A server while the block lasts; it is open when the block begins.

    Raises:
        UsageError: the configuration or the address cannot be used.
    """
    server = Running(config or MockConfig(), log)
    try:
        server.open(host, port)
        yield server
    finally:
        server.close()
