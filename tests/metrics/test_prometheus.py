"""A real Prometheus that scrapes our simulated server gives the same verdict as the server itself."""

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest
from tests.raw_server import read_request, serving

from knee.cli.main import run
from knee.core.clock import ManualClock, RealClock
from knee.core.errors import TargetError, UsageError
from knee.http1.client import fetch
from knee.metrics.normalise import parse_page
from knee.metrics.prometheus import matchers, query_range
from knee.metrics.window import window
from knee.mock.config import MockConfig
from knee.mock.running import mock_server

PROMETHEUS = shutil.which("prometheus")
needs_prometheus = pytest.mark.skipif(
    PROMETHEUS is None, reason="needs the program prometheus (Debian package prometheus)"
)


@contextmanager
def prometheus(folder: Path, targets: list[str]) -> Iterator[str]:
    """Debian's Prometheus, scraping `targets` every second."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    listed = ", ".join(f"'{target}'" for target in targets)
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s}\n"
        f"scrape_configs: [{{job_name: vllm, static_configs: [{{targets: [{listed}]}}]}}]\n"
    )
    command = [
        str(PROMETHEUS),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            wait(lambda: fetch(f"{url}/-/ready", timeout_s=1).status == 200)
            yield url
        finally:
            process.terminate()
            process.wait(10)


def wait(what: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with suppress(TargetError):
            if what():
                return
        time.sleep(0.1)
    raise AssertionError("it did not come about in time")


def ask(url: str, count: int) -> None:
    for _ in range(count):
        answer = fetch(f"{url}/v1/completions", body={"model": "mock", "prompt": "a b c", "max_tokens": 20})
        assert answer.status == 200


@needs_prometheus
def test_a_real_prometheus_tells_what_the_server_tells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with mock_server(MockConfig(speed=50)) as one, mock_server(MockConfig(speed=50)) as two:
        places = [server.url.removeprefix("http://") for server in (one, two)]
        with prometheus(tmp_path, places) as url:
            wait(lambda: len(query_range(url, 'job="vllm"', 30, RealClock(), step_s=1)) >= 4)
            ask(one.url, 7)
            time.sleep(2.5)
            snapshots = query_range(url, '{job="vllm"}', 30, RealClock(), step_s=1)
            truth = parse_page(fetch(f"{one.url}/metrics").body.decode(), 0).engines["0"]
            told = run(
                ["diagnose", "--prometheus", url, "--selector", 'job="vllm"', "--since", "30s", "--json"]
            )
            verdict = json.loads(capsys.readouterr().out)
            with pytest.raises(TargetError, match="no vLLM series") as caught:
                query_range(url, 'job="other"', 30, RealClock())
            assert "vllm" in caught.value.hint
        whole = window(snapshots)
    assert set(whole.engines) == {f"{place}#0" for place in places}
    busy = whole.engines[f"{places[0]}#0"]
    assert busy.counters["generation_tokens"] == truth.counters["generation_tokens"] > 0
    assert busy.counters["request_success{length}"] == 7
    assert busy.histograms["time_to_first_token_seconds"].count == 7
    assert (
        busy.histograms["time_to_first_token_seconds"].counts
        == truth.histograms["time_to_first_token_seconds"].counts
    )
    assert busy.histograms["iteration_tokens"].count == truth.histograms["iteration_tokens"].count
    assert busy.info["kv_cache_size_tokens"] == truth.info["kv_cache_size_tokens"]
    assert whole.engines[f"{places[1]}#0"].counters["generation_tokens"] == 0
    assert not busy.reset
    assert (told, verdict["answer"], verdict["engines"]) == (0, "not bound", 2)


def saying(body: bytes) -> Callable[[socket.socket, int], None]:
    def handle(connection: socket.socket, number: int) -> None:  # noqa: ARG001 - the shape of a handler
        while read_request(connection):
            connection.sendall(b"HTTP/1.1 200 x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))

    return handle


def test_a_restart_and_an_old_name_in_the_series() -> None:
    series = [
        {
            "metric": {"__name__": name, "instance": "a:1", "job": "j", "model_name": "m", "engine": "0"},
            "values": values,
        }
        for name, values in {
            "vllm:gpu_cache_usage_perc": [[1, "0.5"], [2, "0.25"], [3, "0.75"]],
            "vllm:generation_tokens_total": [[1, "100"], [2, "5"], [3, "45"]],
            "process_start_time_seconds": [[0, "1"]],
        }.items()
    ]
    body = msgspec.json.encode({"status": "success", "data": {"resultType": "matrix", "result": series}})
    with serving(saying(body)) as url:
        engine = window(query_range(url, "", 3, ManualClock())).engines["0"]
    assert engine.reset
    assert engine.counters == {"generation_tokens": 45}
    assert engine.gauges["kv_cache_usage_perc"].high == 0.75


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"<html>", "not as Prometheus"),
        (b'{"status": "error", "error": "parse error"}', "parse error"),
        (b'{"status": "success", "data": {"result": []}}', "no vLLM series"),
    ],
)
def test_answers_that_are_no_answer(body: bytes, says: str) -> None:
    with serving(saying(body)) as url, pytest.raises(TargetError, match=says):
        query_range(url, "", 60, ManualClock())


@pytest.mark.parametrize("selector", ["", "{}", 'job="a"', '{job="a", pod=~"x.*"}', 'a!="b",c!~"d\\"e"'])
def test_selectors(selector: str) -> None:
    assert "{" not in matchers(selector)


@pytest.mark.parametrize("selector", ["vllm", 'job="a"} or up{', "job=a", 'job="a'])
def test_what_is_no_selector(selector: str) -> None:
    with pytest.raises(UsageError, match="not a selector"):
        matchers(selector)
