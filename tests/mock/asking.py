"""A plain client for the simulated server, and an engine quick enough for tests."""

import http.client
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from knee.engine.config import REFERENCE, StepCost

QUICK = msgspec.structs.replace(
    REFERENCE,
    step_cost=StepCost(fixed_ns=1_000_000, per_seq_ns=10_000, per_prefill_token_ns=1_000),
    max_model_len=2048,
    version="0.32.0",
)
"""An engine with steps of about a millisecond."""


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def events(self) -> list[Any]:
        """The events of a stream, decoded, without `[DONE]`."""
        parts = [part.removeprefix(b"data: ") for part in self.body.split(b"\n\n") if part]
        return [msgspec.json.decode(part) for part in parts if part != b"[DONE]"]


Ask = Callable[..., Answer]


def ask(server: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> Answer:
    """POST `body` as JSON (bytes as they are), or GET without one."""
    connection = http.client.HTTPConnection(server.removeprefix("http://"), timeout=20)
    try:
        data = body if isinstance(body, bytes) or body is None else msgspec.json.encode(body)
        kind = {"Content-Type": "application/json"} if data is not None else {}
        connection.request("GET" if data is None else "POST", path, data, {**kind, **(headers or {})})
        answer = connection.getresponse()
        return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
    finally:
        connection.close()
