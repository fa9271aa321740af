"""What a client may ask of our server. Nothing that a client can make long or slow is without a bound."""

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in bytes, waits in seconds.

    `pipelined` requests may wait behind the one in service; what comes after them is not read, and the
    connection ends after the last of them. `head_bytes` bounds request line and headers, and also trailers
    and chunk extensions. `open_seconds` bounds the wait for the first request and `idle_seconds` that for
    the next; `head_seconds` and `body_seconds` the arrival of a request from its first byte, and of its body
    from the end of its head. `write_seconds` is how long a client may leave more than `write_buffer_bytes` of
    an answer unread, `linger_seconds` how long a connection stays half open after a refusal, so that the
    client can read it.
    """

    connections: int = 4096
    backlog: int = 2048
    head_bytes: int = 65_536
    headers: int = 128
    body_bytes: int = 64 * 1024 * 1024
    pipelined: int = 64
    write_buffer_bytes: int = 65_536
    open_seconds: float = 75.0
    head_seconds: float = 15.0
    body_seconds: float = 120.0
    idle_seconds: float = 75.0
    write_seconds: float = 60.0
    linger_seconds: float = 2.0
