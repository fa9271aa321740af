"""Sampling a server over HTTP: pages, what it tells about itself, and servers that cannot be used."""

import signal
import socket
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from tests.raw_server import read_request, serving

from knee.core.clock import RealClock
from knee.core.errors import TargetError
from knee.metrics.live import base_url, sample
from knee.metrics.window import window

LABELS = 'engine="0",model_name="m"'
PAGE = f"vllm:num_requests_running{{{{{LABELS}}}}} 3\nvllm:generation_tokens_total{{{{{LABELS}}}}} {{n}}\n"
MODELS = '{"data": [{"id": "m", "max_model_len": 4096}]}'
SCHEDULER = '{"max_num_seqs": 8, "max_num_queued_reqs": null, "policy": "fcfs"}'
INFO = f'{{"vllm_config": {{"scheduler_config": {SCHEDULER}}}}}'

Answer = tuple[int, str]


@contextmanager
def server(answer: Callable[[str, int], Answer]) -> Iterator[str]:
    """A server whose answer to a path and its how-manieth request `answer` gives."""
    seen: dict[str, int] = {}

    def handle(connection: socket.socket, number: int) -> None:  # noqa: ARG001 - the shape of a handler
        while request := read_request(connection):
            path = request.split(b" ", 2)[1].decode()
            seen[path] = seen.get(path, 0) + 1
            status, body = answer(path, seen[path])
            data = body.encode()
            connection.sendall(f"HTTP/1.1 {status} x\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)

    with serving(handle) as url:
        yield url


def vllm(path: str, number: int) -> Answer:
    return {
        "/metrics": (200, PAGE.format(n=100 * number)),
        "/health": (200, ""),
        "/version": (200, '{"version": "0.32.0"}'),
        "/v1/models": (200, MODELS),
        "/server_info?config_format=json": (200, INFO),
    }.get(path, (404, ""))


def test_samples_and_what_the_server_tells() -> None:
    with server(vllm) as url:
        seen = sample([f"{url}/metrics"], 0.3, 0.1, RealClock())
    assert len(seen.snapshots) >= 4
    about = seen.about[url]
    assert (about.version, about.dead) == ("0.32.0", False)
    assert about.flags == {"max_model_len": "4096", "max_num_seqs": "8"}
    whole = window(seen.snapshots)
    assert whole.version == "0.32.0"
    assert whole.engines["0"].counters["generation_tokens"] == 100 * (len(seen.snapshots) - 1)
    assert 0.25 < whole.seconds < 2


def test_an_interrupt_in_the_callback_of_a_weak_reference_is_not_lost() -> None:
    """There Python drops a KeyboardInterrupt, and such a callback runs whenever a task is dropped."""

    class Thing:
        pass

    def look(_: object) -> bool:
        thing = Thing()
        watched = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGINT))
        del thing
        return watched() is None

    with server(vllm) as url, pytest.raises(KeyboardInterrupt):
        sample([url], 1.0, 0.1, RealClock(), seen=look)


@pytest.mark.parametrize(
    ("version", "says"), [("9.1.0", "newer than"), ("main", "none of vLLM"), ("0.32.0", "")]
)
def test_a_version_that_is_not_known_works_with_a_warning(version: str, says: str) -> None:
    def answer(path: str, number: int) -> Answer:
        return (200, f'{{"version": "{version}"}}') if path == "/version" else vllm(path, number)

    with server(answer) as url:
        warnings = sample([url], 0.1, 0.1, RealClock()).snapshots[0].warnings
    assert [says in warning for warning in warnings] == ([True] if says else [])


def test_several_servers_at_the_same_instants() -> None:
    with server(vllm) as one, server(vllm) as two:
        seen = sample([one, two], 0.1, 0.1, RealClock())
    assert set(window(seen.snapshots).engines) == {f"{one}#0", f"{two}#0"}


def test_a_dead_engine_and_a_server_that_tells_nothing() -> None:
    def answer(path: str, number: int) -> Answer:
        return vllm(path, number) if path == "/metrics" else (503 if path == "/health" else 404, "")

    with server(answer) as url:
        seen = sample([url], 0.1, 0.1, RealClock())
    assert seen.about[url].dead
    assert seen.about[url].flags == {}


def test_a_scrape_that_fails_on_the_way_is_missed() -> None:
    def answer(path: str, number: int) -> Answer:
        return (500, "") if path == "/metrics" and number == 2 else vllm(path, number)

    with server(answer) as url:
        seen = sample([url], 0.3, 0.1, RealClock())
    assert seen.missed == 1


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [(401, "", "wants a key"), (404, "", "404"), (500, "", "500"), (200, "<html>", "no metrics page")],
)
def test_servers_that_cannot_be_used(status: int, body: str, says: str) -> None:
    with server(lambda *_: (status, body)) as url, pytest.raises(TargetError, match=says):
        sample([url], 0.1, 0.1, RealClock())


def test_nothing_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(TargetError, match=str(port)):
        sample([f"http://127.0.0.1:{port}"], 0.1, 0.1, RealClock())


@pytest.mark.parametrize(
    "url", ["http://h:1", "http://h:1/", "http://h:1/metrics", "http://h:1/v1/", "http://h:1/health"]
)
def test_any_address_that_people_copy(url: str) -> None:
    assert base_url(url) == "http://h:1"
