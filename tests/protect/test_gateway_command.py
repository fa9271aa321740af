"""`knee gateway` as an operator runs it: a process in front of simulated vLLM servers."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from knee.cli.main import run as knee
from knee.core.lock import Lock, write_lock
from knee.core.point import Judged, Knee, Point, Summary
from knee.core.slo import parse_slo
from knee.engine.config import REFERENCE
from knee.http1.client import fetch
from knee.mock.config import MockConfig
from knee.mock.process import mock_process

ENGINE = msgspec.structs.replace(REFERENCE, version="0.32.0")
MOCK = MockConfig(engine=ENGINE, speed=4.0)
SLO = parse_slo("ttft p95 < 1s")


class Gateway:
    """A running `knee gateway`."""

    def __init__(self, process: "subprocess.Popen[str]", told: dict[str, Any]) -> None:
        self.process = process
        self.told = told
        self.url = f"http://127.0.0.1:{told['port']}"
        self.admin = f"http://127.0.0.1:{told['admin_port']}"

    def replicas(self) -> dict[str, dict[str, Any]]:
        return {replica["name"]: replica for replica in fetch(f"{self.admin}/replicas").json()}

    def await_ready(self, count: int) -> None:
        for _ in range(500):
            if sum(replica["state"] == "ready" for replica in self.replicas().values()) == count:
                return
            time.sleep(0.02)
        pytest.fail(f"not ready: {self.replicas()}")

    def await_empty(self, name: str) -> None:
        for _ in range(500):
            if self.replicas()[name]["in_flight"] == 0:
                return
            time.sleep(0.02)
        pytest.fail(f"still busy: {self.replicas()}")


@contextmanager
def gateway(*arguments: str) -> Iterator[Gateway]:
    command = [
        sys.executable, "-c", "from knee.cli.main import main; main()", "gateway", *arguments,
        "--port", "0", "--admin-port", "0", "--json",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield Gateway(process, json.loads(process.stdout.readline()))
    finally:
        process.kill()
        process.communicate()


def stream(url: str, tokens: int, prompt: str = "hello") -> bytes:
    body = {"prompt": prompt, "max_tokens": tokens, "stream": True, "ignore_eos": True}
    return fetch(f"{url}/v1/completions", body=body, timeout_s=30).body


def a_lock(path: Path) -> Path:
    some = Summary(n=100)
    judged = (Judged(objective=SLO.objectives[0], value=400.0, low=None, high=None, holds=True, n=100),)
    point = Point(
        rate=16.0, attained_rate=16.0, served_rate=16.0, seed=1, window_start_ns=0, window_end_ns=1,
        spent_ns=1, offered=100, ok=100, failed=0, rejected=0, censored=0, ttft_ms=some, itl_ms=some,
        tpot_ms=some, e2e_ms=Summary(n=100, mean_finite=4000.0), send_lag_ms=some, output_tokens_per_s=1.0,
        prompt_tokens_mean=1.0, output_tokens_mean=1.0, judged=judged,
    )  # fmt: skip
    knee = Knee(slo=SLO, holds=16.0, breaks=18.0, estimate=17.0, confidence=0.95, reason="measured")
    write_lock(path, Lock(vllm_version="0.32.0", model="m", slo=SLO, knee=knee, at_knee=point))
    return path


def test_limits_come_from_the_lock_and_a_flag_goes_before_it(tmp_path: Path) -> None:
    lock = a_lock(tmp_path / "knee.lock")
    with gateway(
        "http://127.0.0.1:9", "--from", str(lock), "--max-queue", "3", "--access-log", "none"
    ) as running:
        limits = running.told["limits"]
        assert (limits["max_in_flight"], limits["max_queue"]) == (80, 3)
        assert limits["queue_deadline_ns"] == 300_000_000
        assert fetch(f"{running.admin}/healthz").status == 200
        assert fetch(f"{running.admin}/readyz").status == 503


def test_the_openai_client_works_through_it_as_it_does_without_it() -> None:
    import openai

    with mock_process(MOCK) as server, gateway(server.url, "--max-in-flight", "8") as running:
        running.await_ready(1)

        def said(url: str) -> list[Any]:
            client: Any = openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)
            with client:
                model = client.models.list().data[0].id
                asked = [{"role": "user", "content": "Say something."}]
                chunks = client.chat.completions.create(
                    model=model, messages=asked, max_tokens=20, stream=True
                )
                text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
                whole = client.completions.create(model=model, prompt="x", max_tokens=5)
                with pytest.raises(openai.NotFoundError) as unknown:
                    client.completions.create(model="nobody", prompt="x")
                return [model, len(text.split()), whole.usage.completion_tokens, str(unknown.value)]

        assert said(running.url) == said(server.url)


def test_sigterm_lets_streams_finish_and_exits_0_and_the_log_has_no_prompts() -> None:
    with mock_process(MOCK) as server:
        with gateway(server.url, "--max-in-flight", "8", "--unready", "0s") as running:
            running.await_ready(1)
            got: list[bytes] = []
            asking = threading.Thread(target=lambda: got.append(stream(running.url, 300, "a secret wish")))
            asking.start()
            while running.replicas()[server.url]["in_flight"] == 0:
                time.sleep(0.01)
            running.process.send_signal(signal.SIGTERM)
            asking.join()
            _, err = running.process.communicate(timeout=20)
            assert running.process.returncode == 0
        assert b'"finish_reason":"length"' in got[0]
        assert got[0].endswith(b"data: [DONE]\n\n")
        entry = json.loads(err.splitlines()[-1])
        assert (entry["end"], entry["replica"]) == ("ok", server.url)
        assert "secret" not in err


def test_a_stream_that_outlives_the_grace_ends_with_an_error_event_and_the_exit_code_says_so() -> None:
    with mock_process(MOCK) as server:
        with gateway(server.url, "--max-in-flight", "8", "--unready", "0s", "--grace", "300ms") as running:
            running.await_ready(1)
            got: list[bytes] = []
            asking = threading.Thread(target=lambda: got.append(stream(running.url, 5000)))
            asking.start()
            while running.replicas()[server.url]["in_flight"] == 0:
                time.sleep(0.01)
            running.process.send_signal(signal.SIGTERM)
            asking.join()
            running.process.communicate(timeout=20)
            assert running.process.returncode == 1
        assert b'"type":"gateway_stopping"' in got[0]
        assert got[0].endswith(b"data: [DONE]\n\n")


def test_rolling_restarts_under_load_break_no_stream() -> None:
    config = msgspec.structs.replace(MOCK, shutdown_timeout=5)
    with ExitStack() as stack:
        children = [stack.enter_context(mock_process(config)) for _ in range(2)]
        urls = [child.url for child in children]
        running = stack.enter_context(gateway(*urls, "--max-in-flight", "32", "--access-log", "none"))
        running.await_ready(2)
        over = threading.Event()
        whole: list[bool] = []

        def load() -> None:
            while not over.is_set():
                got = stream(running.url, 100)
                whole.append(b'"finish_reason":"length"' in got and b'"error"' not in got)

        loading = [threading.Thread(target=load) for _ in range(6)]
        for thread in loading:
            thread.start()
        try:
            for child, url in zip(children, urls, strict=True):
                fetch(f"{running.admin}/replicas/drain?name={url}", method="POST")
                running.await_empty(url)
                child.terminate()
                assert child.join(20)
                stack.enter_context(mock_process(config, port=int(url.rpartition(":")[2])))
                fetch(f"{running.admin}/replicas/undrain?name={url}", method="POST")
                running.await_ready(2)
        finally:
            over.set()
            for thread in loading:
                thread.join()
        assert len(whole) > 10
        assert all(whole)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 2, "no server to protect"),
        (["http://127.0.0.1:1"], 2, "no limit on requests in flight"),
        (["ftp://x", "--max-in-flight", "1"], 2, "not an http or https URL"),
        (["http://127.0.0.1:1", "--max-in-flight", "1", "--policy", "best"], 2, "no policy 'best'"),
        (["http://127.0.0.1:1", "--max-in-flight", "1", "--grace", "soon"], 2, "not a duration"),
        (["http://127.0.0.1:1", "--max-in-flight", "1", "--connect-timeout", "0s"], 2, "longer than zero"),
        (["http://127.0.0.1:1", "--from", "nowhere"], 3, "nowhere"),
        (["http://127.0.0.1:1", "--max-in-flight", "1", "--access-log", "/nowhere/log"], 3, "access log"),
    ],
)
def test_bad_input_is_one_clear_line(
    arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert knee(["gateway", *arguments]) == code
    said = capsys.readouterr().err
    assert says in said
    assert "Traceback" not in said


def test_a_port_that_is_taken_is_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    with mock_process(MOCK) as server:
        port = server.url.rpartition(":")[2]
        assert knee(["gateway", server.url, "--max-in-flight", "1", "--port", port, "--admin-port", "0"]) == 2
        assert "in use" in capsys.readouterr().err
