"""One request on its way through the gateway: what the log and the metrics will say of it."""

from typing import TYPE_CHECKING, Literal

from knee.core.units import ns_to_ms
from knee.http1.exchange import Request
from knee.protect.answers import STOPPING
from knee.protect.books import Books, Entry
from knee.protect.relay import Relay

if TYPE_CHECKING:
    from knee.policy.admission import Ticket

End = Literal["ok", "shed", "upstream_error", "client_gone", "stopped"]


class Journey:
    """Filled in as the request goes on; `close` writes it down, once."""

    __slots__ = ("_request", "arrived_ns", "end", "id", "relay", "replica", "status", "stopped", "ticket")

    def __init__(self, request: Request, request_id: str, arrived_ns: int) -> None:
        self._request = request
        self.id = request_id
        self.arrived_ns = arrived_ns
        self.ticket: Ticket | None = None
        self.relay: Relay | None = None
        self.replica = ""
        self.status = 0
        self.end: End = "ok"
        self.stopped = False

    def stop(self) -> None:
        """The gateway's grace is over."""
        self.stopped = True
        if self.relay is not None:
            self.relay.stop("The gateway is stopping.", STOPPING)

    def settle(self, relay: Relay) -> None:
        """The relay is over: whole, or for a cause."""
        if self.stopped:
            self.end = "stopped"
        elif relay.cause is not None:
            self.end = "upstream_error"

    def close(self, now_ns: int, wall_ns: int, bytes_out: int, books: Books) -> None:
        """Write the request down."""
        relay = self.relay
        sent_ns = relay.sent_ns if relay is not None else 0
        first_ns = relay.first_ns if relay is not None else 0
        if first_ns:
            books.first_byte.add(first_ns - self.arrived_ns)
        if self.end == "ok":
            books.total.add(now_ns - self.arrived_ns)
        books.note(
            Entry(
                at=books.stamp(wall_ns),
                id=self.id,
                method=self._request.method,
                path=self._request.path[:256],
                status=self.status,
                end=self.end,
                replica=self.replica,
                queue_ms=round(ns_to_ms(sent_ns - self.arrived_ns), 3) if sent_ns else 0.0,
                first_byte_ms=round(ns_to_ms(first_ns - self.arrived_ns), 3) if first_ns else 0.0,
                total_ms=round(ns_to_ms(now_ns - self.arrived_ns), 3),
                bytes_in=len(self._request.body),
                bytes_out=bytes_out,
            )
        )
