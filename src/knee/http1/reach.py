"""Whether anything listens at an address, for services that speak something else than HTTP."""

import socket

from knee.http1.failure import name_failure


def why_unreachable(host: str, port: int, timeout_s: float) -> str:
    """Why no connection to `host`:`port` can be opened within `timeout_s`; "" where one could be."""
    try:
        socket.create_connection((host, port), timeout_s).close()
    except OSError as error:
        return name_failure(error)[1]
    return ""
