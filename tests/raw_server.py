"""Servers that say exactly the bytes they are told to, for tests of the client."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def serving(handle: Callable[[socket.socket, int], None]) -> Iterator[str]:
    """A server on a free port; `handle(connection, number)` runs in a thread per connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.05)
    over = threading.Event()
    threads: list[threading.Thread] = []

    def one(connection: socket.socket, number: int) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(5)
            handle(connection, number)

    def accept() -> None:
        while not over.is_set():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            thread = threading.Thread(target=one, args=(connection, len(threads)))
            threads.append(thread)
            thread.start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        over.set()
        accepting.join()
        listener.close()
        for thread in threads:
            thread.join()


def read_request(connection: socket.socket) -> bytes:
    """One request, head and body; b"" where the client closed."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65_536)
        if not piece:
            return b""
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        (
            int(line.split(b":")[1])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length:")
        ),
        0,
    )
    while len(body) < length:
        body += connection.recv(65_536)
    return head + b"\r\n\r\n" + body


def answering(*pieces: bytes, pause_s: float = 0.0) -> Callable[[socket.socket, int], None]:
    """A handler that answers every request with `pieces`, then closes."""
    pause = threading.Event()

    def handle(connection: socket.socket, number: int) -> None:  # noqa: ARG001 - every connection alike
        if read_request(connection):
            for piece in pieces:
                connection.sendall(piece)
                if pause_s:
                    pause.wait(pause_s)

    return handle
