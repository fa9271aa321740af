"""A server whose timing is known: it writes every chunk at a set instant and puts that instant into it.

One thread on one core, raw sockets and epoll; no HTTP library, so that it can carry more streams than a
client on the other core. Run as a program, `python -m bench._truth_server TTFT_MS GAP_MS [CORE]`, it prints
its port and, when its standard input closes, one JSON line of what it did.
"""

import json
import os
import select
import socket
import sys
import time
from collections import deque

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
PAGES = {
    b"/v1/models": b'{"object":"list","data":[{"id":"truth","object":"model","max_model_len":1000000}]}',
    b"/version": b'{"version":"0.0.0"}',
}
PREFIX = (
    b'data: {"id":"cmpl-b9d5c87c2d9806ca","object":"text_completion","created":1795971011,"model":"truth",'
    b'"choices":[{"index":0,"text":"'
)
SUFFIX = (
    b'","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}],'
    b'"usage":{"prompt_tokens":%d,"total_tokens":0,"completion_tokens":%d}}\n\n'
)
DONE = b"data: [DONE]\n\n"


class Stream:
    """One connection, and the stream it carries."""

    __slots__ = ("chunks", "due_ns", "held", "left", "prompt", "socket", "started_ns", "wrote_ns")

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.held = b""
        self.chunks = self.left = self.prompt = 0
        self.due_ns = self.started_ns = self.wrote_ns = 0


class Truth:
    """The server's loop. Streams all have the same times, so two queues in order of due time are enough."""

    def __init__(self, ttft_ms: float, gap_ms: float) -> None:
        self.ttft_ns, self.gap_ns = int(ttft_ms * 1e6), int(gap_ms * 1e6)
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.listener.setblocking(False)
        self.poll = select.epoll()
        self.poll.register(self.listener, select.EPOLLIN)
        self.poll.register(sys.stdin, select.EPOLLIN)
        self.by_fd: dict[int, Stream] = {}
        self.firsts: deque[Stream] = deque()
        self.laters: deque[Stream] = deque()
        self.streams = self.connections = 0
        self.late_ns: list[int] = []
        self.ttft_seen_ns: list[int] = []
        self.gaps_seen_ns: list[int] = []

    def run(self) -> None:
        """Serve until standard input closes."""
        while True:
            due_ns = min((q[0].due_ns for q in (self.firsts, self.laters) if q), default=1 << 62)
            wait_s = min(0.1, max(0.0, (due_ns - time.monotonic_ns()) / 1e9))
            if 0.0002 < wait_s < 0.0012:  # epoll waits whole milliseconds
                time.sleep(0.0001)
            for fd, _ in self.poll.poll(wait_s - 0.001 if wait_s > 0.0012 else 0):
                if fd == sys.stdin.fileno():
                    return
                if fd == self.listener.fileno():
                    self.accept()
                else:
                    self.read(self.by_fd[fd])
            self.write_due()

    def accept(self) -> None:
        """Take all waiting connections."""
        while True:
            try:
                connected, _ = self.listener.accept()
            except BlockingIOError:
                return
            connected.setblocking(False)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.by_fd[connected.fileno()] = Stream(connected)
            self.poll.register(connected, select.EPOLLIN)
            self.connections += 1

    def read(self, stream: Stream) -> None:
        """Take what a client sent; start its stream once the request is whole."""
        try:
            data = stream.socket.recv(262_144)
        except (BlockingIOError, ConnectionError):
            data = b""
        if not data:
            self.drop(stream)
            return
        stream.held += data
        head, blank, body = stream.held.partition(b"\r\n\r\n")
        if not blank:
            return
        at = head.lower().find(b"content-length: ")
        length = int(head[at + 16 :].split(b"\r\n", 1)[0]) if at > 0 else 0
        if len(body) < length:
            return
        stream.held = b""
        path = head.split(b" ", 2)[1]
        if length == 0 or path == b"/tokenize":
            self.page(stream, path, body)
            return
        now_ns = time.monotonic_ns()
        tokens = body[body.find(b'"max_tokens":') + 13 :]
        stream.chunks = stream.left = int(tokens.split(b",", 1)[0])
        stream.prompt = body.count(b" ", 0, body.find(b'","max_tokens"')) + 1
        stream.started_ns, stream.due_ns = now_ns, now_ns + self.ttft_ns
        self.streams += 1
        self.firsts.append(stream)

    def page(self, stream: Stream, path: bytes, body: bytes) -> None:
        """Answer what is not a stream."""
        text = PAGES.get(path, b"")
        if path == b"/tokenize":
            text = b'{"count":%d}' % len(json.loads(body)["prompt"].split())
        status = b"200 OK" if text else b"404 Not Found"
        stream.socket.send(b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(text), text))

    def write_due(self) -> None:
        """Write every chunk that is due."""
        for queue in (self.firsts, self.laters):
            while queue:
                now_ns = time.monotonic_ns()
                if queue[0].due_ns > now_ns:
                    break
                self.chunk(queue.popleft(), now_ns)

    def chunk(self, stream: Stream, now_ns: int) -> None:
        """One chunk, with the instant of its write in it; the last one brings the end."""
        if stream.left == 0:  # the client went away
            return
        first = stream.left == stream.chunks
        stream.left -= 1
        if len(self.late_ns) < 2_000_000:
            self.late_ns.append(now_ns - stream.due_ns)
            if not first:
                self.gaps_seen_ns.append(now_ns - stream.wrote_ns)
        stream.wrote_ns = now_ns
        data = PREFIX + b"%d" % now_ns + SUFFIX % (stream.prompt, stream.chunks - stream.left)
        wire = b"%x\r\n%b\r\n" % (len(data), data)
        if first:
            wire = HEAD + wire
            self.ttft_seen_ns.append(now_ns - stream.started_ns)
        if stream.left == 0:
            wire += b"%x\r\n%b\r\n0\r\n\r\n" % (len(DONE), DONE)
        else:
            stream.due_ns += self.gap_ns
            self.laters.append(stream)
        try:
            stream.socket.send(wire)
        except (BlockingIOError, ConnectionError):
            self.drop(stream)

    def drop(self, stream: Stream) -> None:
        """Forget a connection."""
        stream.left = stream.chunks = 0
        if self.by_fd.pop(stream.socket.fileno(), None) is not None:
            self.poll.unregister(stream.socket)
            stream.socket.close()


def main() -> None:
    ttft_ms, gap_ms, *core = (float(text) for text in sys.argv[1:])
    if core:
        os.sched_setaffinity(0, {int(core[0])})
    truth = Truth(ttft_ms, gap_ms)
    print(truth.listener.getsockname()[1], flush=True)
    truth.run()
    seen = {"late": truth.late_ns, "ttft": truth.ttft_seen_ns, "itl": truth.gaps_seen_ns}
    quantiles = {
        f"{name}_p{share}_ms": sorted(values)[int(len(values) * share / 100)] / 1e6 if values else 0.0
        for name, values in seen.items()
        for share in (50, 99)
    }
    done = {"streams": truth.streams, "connections": truth.connections, "cpu_s": time.process_time()}
    print(json.dumps({**done, **quantiles}))


if __name__ == "__main__":
    main()
