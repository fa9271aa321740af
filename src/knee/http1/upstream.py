"""A proxy's connections to one server: nothing is sent twice, and an answer can be held back."""

from knee.http1.outbound import Exchange, Outbound
from knee.http1.pool import Pool


class UpstreamPool(Pool):
    """A pool that never sends a request again.

    A load generator may repeat a request whose kept connection turned out to be closed; a proxy must not: the
    server may have read it, and a long prompt would be computed twice. So a kept connection is looked at
    before it is used, which leaves only a race of one network delay, and that one fails openly.
    """

    def pause(self, exchange: Exchange) -> None:
        """Hold the answer to `exchange` back; its connection stops reading."""
        for connection in self._busy:
            if connection.carries(exchange):
                connection.pause()

    def resume(self, exchange: Exchange) -> None:
        """Let the answer to `exchange` come on."""
        for connection in self._busy:
            if connection.carries(exchange):
                connection.resume()

    def _usable(self, connection: Outbound) -> bool:
        return super()._usable(connection) and connection.silent()

    def _stale(self, exchange: Exchange, request: bytes) -> None:
        del request
        exchange.fail(self._now(), "cut", "a kept connection was closed as the request was sent")
