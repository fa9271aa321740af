"""What the gateway itself answers, in the shape that OpenAI's clients read."""

import msgspec

from knee.http1.exchange import JSON, Response, error_body
from knee.http1.failure import Cause
from knee.http1.reader import Refusal
from knee.policy.admission import Admission
from knee.protect.config import GatewayConfig

OVERLOADED = "overloaded"
NO_REPLICA = "no_replica_ready"
STOPPING = "gateway_stopping"
UPSTREAM = "upstream_error"


def overloaded(admission: Admission, now_ns: int) -> Refusal:
    """503: the replicas have all that they may be given."""
    wait_s = admission.retry_after_s(now_ns)
    message = (
        f"The servers behind this gateway are at their limit of {admission.capacity} requests in flight. "
        "Please try again later."
    )
    return Refusal(503, message, OVERLOADED, _retry_after(wait_s))


def no_replica(config: GatewayConfig) -> Refusal:
    """503: no replica is ready, which more patience than ours may cure."""
    wait_s = min(30, max(1, round(config.limits.ready_wait_ns / 1e9)))
    return Refusal(503, "No server behind this gateway is ready.", NO_REPLICA, _retry_after(wait_s))


def stopping() -> Refusal:
    """503: this gateway is going away; another will answer."""
    return Refusal(503, "This gateway is stopping.", STOPPING, _retry_after(1))


def upstream_failed(cause: Cause) -> Refusal:
    """502 or 504: a replica took the request and did not answer it."""
    if cause in ("timeout_first_byte", "timeout_stalled", "timeout_total"):
        return Refusal(504, "The server took the request and did not answer in time.", UPSTREAM)
    return Refusal(502, f"The server failed before it answered ({cause}).", UPSTREAM)


def not_served(what: str, status: int = 404) -> Refusal:
    """404 or 405: nothing that this gateway forwards."""
    return Refusal(status, what)


def answer(response: Response, refusal: Refusal) -> None:
    """Answer with an error; nothing where an answer has begun."""
    if not response.started:
        body = error_body(refusal.status, refusal.message, refusal.kind)
        response.send(refusal.status, (JSON, *refusal.headers), body)


def error_event(message: str, kind: str, code: int, tail: bytes) -> bytes:
    """The end of an event stream that failed after its first byte, as vLLM ends one (0.32.0).

    `tail` is what the stream last carried: an event that was cut is closed first.
    """
    error = msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": code}})
    between = b"" if not tail or tail.endswith((b"\n\n", b"\r\n\r\n")) else b"\n\n"
    return between + b"data: " + error + b"\n\ndata: [DONE]\n\n"


def _retry_after(seconds: int | None) -> tuple[tuple[bytes, bytes], ...]:
    return () if seconds is None else ((b"retry-after", b"%d" % seconds),)
