"""A proxy that plants one change between a client and a server: what an upgrade might do to the answers."""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Change = Callable[[dict[str, Any]], dict[str, Any] | int]
"""The fields to pass on instead, or a status to refuse with."""


@contextmanager
def altering(upstream: str, change: Change) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = (
            1 << 16
        )  # head and body in one packet: two would wait 40 ms for the delayed acknowledgement

        def do_GET(self) -> None:
            self._pass_on(None)

        def do_POST(self) -> None:
            fields = json.loads(self.rfile.read(int(self.headers["content-length"])))
            changed = change(fields)
            if isinstance(changed, int):
                self._answer(changed, json.dumps({"error": {"message": "refused", "code": changed}}).encode())
            else:
                self._pass_on(json.dumps(changed).encode())

        def _pass_on(self, body: bytes | None) -> None:
            request = urllib.request.Request(
                upstream + self.path, body, {"content-type": "application/json"} if body else {}
            )
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    self._answer(answer.status, answer.read())
            except urllib.error.HTTPError as error:
                self._answer(error.code, error.read())

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
