"""Why an exchange failed: one word for the books, one line and a hint for a person."""

import errno
import socket
import ssl
from typing import Literal

from knee.core.errors import TargetError

Cause = Literal[
    "refused",
    "unknown_host",
    "unreachable",
    "tls",
    "timeout_connect",
    "timeout_first_byte",
    "timeout_stalled",
    "timeout_total",
    "cut",
    "reset",
    "not_http",
    "too_large",
    "client_files",
    "client_ports",
    "client_connections",
    "client_stopped",
]
"""Causes that begin with `client_` are this machine's doing and say nothing about the server."""

_SENTENCES: dict[Cause, tuple[str, str]] = {
    "refused": (
        "{at} refuses connections",
        "is the server up and on that port? a vLLM that is still loading does not listen yet",
    ),
    "unknown_host": ("the host of {at} is not known", "check the name; DNS: {detail}"),
    "unreachable": ("{at} cannot be reached: {detail}", "check the address and the network"),
    "tls": (
        "{at} gives no trusted TLS connection: {detail}",
        "check the scheme; a private authority's certificate is read from the file in SSL_CERT_FILE",
    ),
    "timeout_connect": ("{at} did not take a connection in time", "check the address and firewalls"),
    "timeout_first_byte": (
        "{at} took the request and answered nothing in time",
        "the server may be overloaded or hung; is it an HTTP server?",
    ),
    "timeout_stalled": ("{at} stopped in the middle of its answer", "the server may be hung"),
    "timeout_total": ("{at} did not finish its answer in time", "allow more time or ask for less"),
    "cut": ("{at} closed the connection before its answer was whole", "look at the server's log"),
    "reset": ("{at} reset the connection", "look at the server's log; a plain port may expect TLS"),
    "not_http": ("{at} does not answer in HTTP/1.1: {detail}", "check port and scheme (http or https)"),
    "too_large": ("{at} answered with more than the limit: {detail}", "is this the right address?"),
    "client_files": ("this machine has no file descriptor left for {at}", "raise `ulimit -n`"),
    "client_ports": ("this machine has no port left towards {at}", "use more machines or longer streams"),
    "client_connections": (
        "over {detail} connections to {at} are open",
        "the server has stalled or is swamped",
    ),
    "client_stopped": ("the request to {at} was stopped", ""),
}


class HttpError(TargetError):
    """A request that got no whole answer; `cause` says why."""

    def __init__(self, cause: Cause, at: str, detail: str = "") -> None:
        what, hint = _SENTENCES[cause]
        super().__init__(what.format(at=at, detail=detail), hint.format(detail=detail))
        self.cause = cause
        self.detail = detail


_ERRNO: dict[int, Cause] = {
    errno.ECONNREFUSED: "refused",
    errno.ECONNRESET: "reset",
    errno.EPIPE: "reset",
    errno.ETIMEDOUT: "timeout_connect",
    errno.EMFILE: "client_files",
    errno.ENFILE: "client_files",
    errno.EADDRNOTAVAIL: "client_ports",
}


def name_failure(error: BaseException) -> tuple[Cause, str]:
    """The cause of a failed connect or a lost connection, and the system's own words for it."""
    detail = str(getattr(error, "strerror", None) or error) or type(error).__name__
    if isinstance(error, ssl.SSLError):
        reason = getattr(error, "verify_message", "") or (error.reason or detail).replace("_", " ").lower()
        return "tls", reason
    if isinstance(error, socket.gaierror):
        return "unknown_host", detail
    if isinstance(error, OSError) and error.errno in _ERRNO:
        return _ERRNO[error.errno], detail
    if isinstance(error, OSError) and "Multiple exceptions" in detail and "refused" in detail:
        return "refused", detail  # asyncio tried every address of the name
    return "unreachable", detail
