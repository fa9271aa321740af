"""The gateway in front of two real vLLM servers."""

import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from bench._vllm_server import Server, running, stop
from tests.protect.test_gateway_command import Gateway, gateway

from knee.http1.client import fetch
from knee.metrics.normalise import parse_page

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def servers(vllm_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    with ExitStack() as held, ExitStack() as ports:
        taken = [ports.enter_context(socket.socket()) for _ in range(2)]
        for one in taken:
            one.bind(("127.0.0.1", 0))
        numbers = [one.getsockname()[1] for one in taken]
        ports.close()
        logs = tmp_path_factory.mktemp("vllm")
        yield [
            held.enter_context(
                running(vllm_home, logs / f"{number}.log", number, ("--shutdown-timeout", "30"))
            )
            for number in numbers
        ]


@pytest.fixture(scope="module")
def front(servers: list[Server]) -> Iterator[Gateway]:
    urls = [server.url for server in servers]
    with gateway(*urls, "--max-in-flight", "4", "--access-log", "none", "--unready", "0s") as made:
        made.await_ready(2)
        yield made


def complete(url: str, tokens: int) -> tuple[int, bytes]:
    body = {"prompt": "Once", "max_tokens": tokens, "stream": True, "ignore_eos": True, "temperature": 0}
    answer = fetch(f"{url}/v1/completions", body=body, timeout_s=120)
    return answer.status, answer.body


def at_once(url: str, count: int, tokens: int) -> list[tuple[int, bytes]]:
    answers: list[tuple[int, bytes]] = []
    threads = [threading.Thread(target=lambda: answers.append(complete(url, tokens))) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def whole(answer: tuple[int, bytes]) -> bool:
    status, body = answer
    return status == 200 and b'"finish_reason":"length"' in body and b'"error"' not in body


def running_on(server: Server) -> float:
    page = parse_page(fetch(f"{server.url}/metrics", timeout_s=30).body.decode(), 0)
    return sum(engine.gauges["num_requests_running"] for engine in page.engines.values())


def runs_unanswered(client: socket.socket, servers: list[Server]) -> bool:
    """Wait until a server runs the client's request, or has answered it."""
    end = time.monotonic() + 60
    while time.monotonic() < end and not select.select([client], [], [], 0.02)[0]:
        if any(map(running_on, servers)) and not select.select([client], [], [], 0)[0]:
            return True
    return False


def test_it_answers_as_the_server_does(front: Gateway, servers: list[Server]) -> None:
    assert fetch(f"{front.url}/v1/models").json()["data"][0]["id"].endswith("tiny")
    assert whole(complete(front.url, 20))
    for path, body in (
        ("completions", b'{"prompt": "x'),
        ("completions", b'{"model":"nobody","prompt":"x"}'),
    ):
        through, direct = (fetch(f"{url}/v1/{path}", body=body) for url in (front.url, servers[0].url))
        assert (through.status, through.body) == (direct.status, direct.body)
        assert through.status in (400, 404)


def test_overload_is_refused_and_what_is_let_in_is_whole(front: Gateway) -> None:
    answers = at_once(front.url, 24, 300)
    refused = [answer for answer in answers if answer[0] == 503]
    assert all(b'"type":"overloaded"' in body for _, body in refused)
    assert len(refused) > 0
    assert sum(map(whole, answers)) == 24 - len(refused) >= 8


def test_a_client_that_leaves_ends_the_work_on_the_server(front: Gateway, servers: list[Server]) -> None:
    host, port = front.url.removeprefix("http://").split(":")
    body = b'{"prompt":"x","max_tokens":1900,"stream":false,"ignore_eos":true}'
    for _ in range(5):  # a busy server can show its metrics later than its answer: then once more
        with socket.create_connection((host, int(port))) as client:
            client.sendall(
                b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                b"content-length: %d\r\n\r\n%b" % (len(body), body)
            )
            left_early = runs_unanswered(client, servers)
        if left_early:
            break
    assert left_early
    start = time.monotonic()
    while any(map(running_on, servers)):
        assert time.monotonic() - start < 3, "1,900 tokens take longer than that"
        time.sleep(0.02)


def test_a_server_emptied_and_stopped_breaks_no_stream(front: Gateway, servers: list[Server]) -> None:
    answers: list[tuple[int, bytes]] = []
    loading = threading.Thread(target=lambda: answers.extend(at_once(front.url, 4, 500)))
    loading.start()
    time.sleep(0.3)
    fetch(f"{front.admin}/replicas/drain?name={servers[0].url}", method="POST")
    front.await_empty(servers[0].url)
    stop(servers[0].process)
    answers += at_once(front.url, 3, 100)
    loading.join()
    assert [whole(answer) for answer in answers] == [True] * 7
