"""The operator's side of the gateway, on a port of its own: probes, metrics, and emptying a replica.

Probes are answered here and not on the way of requests, so that a full gateway still answers them at once.
"""

from typing import Any
from urllib.parse import parse_qs

import msgspec

from knee.http1.exchange import JSON, Request, Response
from knee.protect.answers import answer, not_served
from knee.protect.books import CONTENT_TYPE
from knee.protect.gateway import Gateway

TEXT = (b"content-type", b"text/plain; charset=utf-8")


class Admin:
    """GET /healthz, /readyz, /metrics and /replicas; POST /replicas/drain?name=URL and /replicas/undrain."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def handle(self, request: Request, response: Response) -> None:
        """One request of the operator's."""
        gateway = self._gateway
        route = (request.method, request.path)
        if route == ("GET", "/healthz"):
            response.send(200, (TEXT,), b"ok\n")
        elif route == ("GET", "/readyz"):
            response.send(*((200, (TEXT,), b"ready\n") if gateway.ready else (503, (TEXT,), b"not ready\n")))
        elif route == ("GET", "/metrics"):
            response.send(200, ((b"content-type", CONTENT_TYPE),), gateway.books.page())
        elif route == ("GET", "/replicas"):
            response.send(200, (JSON,), msgspec.json.encode(self.replicas()))
        elif route in (("POST", "/replicas/drain"), ("POST", "/replicas/undrain")):
            self._drain(request, response)
        else:
            answer(
                response, not_served("GET /healthz, /readyz, /metrics, /replicas; POST /replicas/drain?name=")
            )

    def replicas(self) -> list[dict[str, Any]]:
        """Every replica's name, state, why it was put out, and what it has in flight."""
        books = self._gateway.replicas.router.replicas
        return [
            {
                "name": name,
                "state": upstream.state,
                "cause": upstream.health.cause,
                "in_flight": books[name].in_flight,
            }
            for name, upstream in self._gateway.replicas.all.items()
        ]

    def _drain(self, request: Request, response: Response) -> None:
        name = parse_qs(request.query).get("name", [""])[0]
        if name not in self._gateway.replicas.all:
            known = ", ".join(self._gateway.replicas.all)
            answer(response, not_served(f"No replica {name!r}; known: {known}"))
            return
        self._gateway.set_draining(name, request.path.endswith("/drain"))
        response.send(200, (JSON,), msgspec.json.encode(self.replicas()))
