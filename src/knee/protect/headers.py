"""Which headers cross the gateway, in both directions.

What belongs to one connection (RFC 9110, 7.6.1) stays there, and so does what frames a body: each side's
framing is written anew, so that the two cannot disagree on where a request ends.
"""

from knee.http1.exchange import Request
from knee.http1.origin import Origin

_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    }
)
_NOT_UP = _HOP | {b"host", b"content-length", b"expect", b"x-request-id"}
_NOT_DOWN = _HOP | {b"content-length", b"date", b"server"}

Headers = list[tuple[bytes, bytes]]


def request_up(request: Request, origin: Origin, request_id: str) -> bytes:
    """The request as a replica gets it: same target, headers and body, one length, the replica as Host."""
    named = _named_by_connection(request.headers)
    lines = [f"{request.method} {origin.base}{raw_target(request.target)} HTTP/1.1\r\n".encode("latin-1")]
    for name, value in request.headers:
        if name not in _NOT_UP and name not in named:
            lines.append(name + b": " + value + b"\r\n")
    if request.body or request.method in ("POST", "PUT", "PATCH"):
        lines.append(b"content-length: %d\r\n" % len(request.body))
    lines.append(b"host: %b\r\nx-request-id: %b\r\n\r\n" % (origin.authority.encode(), request_id.encode()))
    lines.append(request.body)
    return b"".join(lines)


def headers_down(headers: Headers, request_id: str) -> tuple[Headers, int | None]:
    """The headers of an answer as the client gets them, and its length where it has one."""
    named = _named_by_connection(headers)
    length: int | None = None
    kept = []
    seen_id = False
    for name, value in headers:
        if name == b"content-length":
            length = int(value)
        elif name not in _NOT_DOWN and name not in named:
            kept.append((name, value))
            seen_id = seen_id or name == b"x-request-id"
    if not seen_id:
        kept.append((b"x-request-id", request_id.encode()))
    return kept, length


def raw_target(target: str) -> str:
    """Path and query of a request target, still encoded, whether it was sent in origin or absolute form."""
    target = target.partition("#")[0]
    if not target.startswith("/") and "://" in target:
        target = "/" + target.split("://", 1)[1].partition("/")[2]
    return target


def _named_by_connection(headers: Headers) -> frozenset[bytes]:
    """Headers that the sender says belong to this connection only."""
    named = [value for name, value in headers if name == b"connection"]
    if not named:
        return frozenset()
    return frozenset(token.strip().lower() for value in named for token in value.split(b","))
