"""Start-up, shutdown and faults, as they were recorded from a vLLM 0.32.0."""

import http.client
import io
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.mock.asking import QUICK, ask

from knee.catalog.logs import log_patterns, pattern
from knee.core.errors import TargetError, UsageError
from knee.core.units import NS_PER_S
from knee.mock.config import MockConfig
from knee.mock.faults import parse_fault
from knee.mock.process import mock_process
from knee.mock.running import Running, mock_server

SLOW = msgspec.structs.replace(QUICK, step_cost=msgspec.structs.replace(QUICK.step_cost, fixed_ns=20_000_000))
LONG = {"prompt": "one two three", "max_tokens": 40, "ignore_eos": True}
DEATH = '{"error": {"message": "EngineCore encountered an issue. See stack trace (above) for the root cause.", "type": "InternalServerError", "param": null, "code": 500}}'  # noqa: E501


class Stream:
    """A streaming request under way in a thread of its own; `body` is what came of it."""

    def __init__(self, url: str, tokens: int = 40) -> None:
        self._connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
        body = msgspec.json.encode({**LONG, "max_tokens": tokens, "stream": True})
        self._connection.request("POST", "/v1/completions", body)
        self._answer = self._connection.getresponse()
        self.body = b""
        self.broken = False
        self.first = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        assert self.first.wait(5)

    def _read(self) -> None:
        try:
            while piece := self._answer.read1(65536):
                self.body += piece
                self.first.set()
        except (http.client.HTTPException, OSError):
            self.broken = True
        finally:
            self._connection.close()

    def join(self, seconds: float = 10) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    @property
    def events(self) -> list[bytes]:
        return [part for part in self.body.split(b"\n\n") if part]


def refused(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port)), timeout=2).close()
    except ConnectionRefusedError:
        return True
    return False


def until(condition: Any, seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return bool(condition())


@contextmanager
def slow_server(**options: Any) -> Iterator[Running]:
    with mock_server(MockConfig(engine=SLOW, **options)) as server:
        yield server


def test_sigterm_without_a_timeout_aborts_with_an_error_event_and_done() -> None:
    with slow_server() as server:
        stream = Stream(server.url)
        whole: list[int] = []
        waiting = threading.Thread(
            target=lambda: whole.append(ask(server.url, "/v1/completions", LONG).status)
        )
        waiting.start()
        time.sleep(0.1)
        server.terminate()
        assert stream.join()
        assert stream.events[-2:] == [f"data: {DEATH}".encode(), b"data: [DONE]"]
        waiting.join(5)
        assert whole == [500]
        assert server.join()
        assert server.exit_code == 0
        assert refused(server.url)


def test_sigterm_with_a_timeout_drains_while_new_requests_fail_and_health_is_well() -> None:
    with slow_server(shutdown_timeout=30) as server:
        stream = Stream(server.url, tokens=40)
        server.terminate()
        time.sleep(0.1)
        assert ask(server.url, "/health").status == 200
        late = ask(server.url, "/v1/completions", LONG)
        assert late.status == 500
        assert late.document["error"]["message"] == "cannot schedule new futures after shutdown"
        assert stream.join()
        assert stream.events[-1] == b"data: [DONE]"
        assert b'"finish_reason":"length"' in stream.events[-2]
        assert not stream.broken
        assert server.join()
        assert server.exit_code == 0


def test_work_that_outlasts_the_timeout_hangs_with_its_streams() -> None:
    with slow_server(shutdown_timeout=1, hang_ns=2 * NS_PER_S) as server:
        stream = Stream(server.url, tokens=400)
        server.terminate()
        assert until(lambda: refused(server.url))
        time.sleep(0.3)  # what was on its way has arrived
        at_close = len(stream.body)
        assert not stream.join(0.5), "the stream neither goes on nor ends"
        assert len(stream.body) == at_close
        assert server.join()
        assert server.exit_code == 1
        assert stream.join()
        assert b"[DONE]" not in stream.body


def test_old_versions_abort_whatever_the_timeout() -> None:
    engine = msgspec.structs.replace(SLOW, version="0.12.0")
    with mock_server(MockConfig(engine=engine, shutdown_timeout=30)) as server:
        stream = Stream(server.url, tokens=400)
        server.terminate()
        assert server.join(3)
        assert stream.join()
        assert DEATH.encode() in stream.body


def test_a_dead_engine_is_unhealthy_and_takes_the_server_with_it() -> None:
    with slow_server() as server:
        stream = Stream(server.url, tokens=400)
        server.fault("crash")
        assert stream.join()
        assert stream.events[-2:] == [f"data: {DEATH}".encode(), b"data: [DONE]"]
        assert ask(server.url, "/health").status == 503
        late = ask(server.url, "/v1/completions", LONG)
        assert late.status == 500
        assert late.document["error"]["message"].startswith("EngineCore encountered an issue")
        assert server.join(3)
        assert server.exit_code == 1


def test_the_fault_dead_leaves_the_port_open() -> None:
    with slow_server() as server:
        server.fault("dead")
        assert until(lambda: ask(server.url, "/health").status == 503)
        time.sleep(0.7)
        assert ask(server.url, "/health").status == 503
        assert ask(server.url, "/v1/completions", LONG).status == 500
        assert b"vllm:num_requests_running" in ask(server.url, "/metrics").body


def test_a_stall_stops_tokens_and_leaves_health_alone() -> None:
    with slow_server() as server:
        stream = Stream(server.url, tokens=20)
        server.fault("stall")
        time.sleep(0.1)
        stalled = len(stream.body)
        time.sleep(0.3)
        assert len(stream.body) == stalled
        assert ask(server.url, "/health").status == 200
        page = ask(server.url, "/metrics").body.decode()
        assert 'vllm:num_requests_running{engine="0",model_name="mock"} 1.0' in page
        server.fault("stall", on=False)
        assert stream.join()
        assert stream.events[-1] == b"data: [DONE]"
        page = ask(server.url, "/metrics").body.decode()
        total = re.search(r"inter_token_latency_seconds_sum\S* (\S+)", page)
        assert total is not None
        assert float(total[1]) > 0.4 + 18 * 0.02, "the pause is in the inter-token latency"


def test_slow_steps() -> None:
    with slow_server() as server:

        def seconds() -> float:
            began = time.monotonic()
            ask(server.url, "/v1/completions", {**LONG, "max_tokens": 5})
            return time.monotonic() - began

        assert seconds() < 0.3
        server.fault("slow=4")
        assert seconds() > 0.39
        server.fault("slow=4", on=False)
        assert seconds() < 0.3


def test_cut_streams_break_without_an_end() -> None:
    with slow_server() as server:
        server.fault("cut=3")
        stream = Stream(server.url, tokens=20)
        assert stream.join()
        assert stream.broken
        assert len(stream.events) == 3
        assert until(
            lambda: 'running{engine="0",model_name="mock"} 0.0' in ask(server.url, "/metrics").body.decode()
        )


def test_metrics_can_be_late_or_of_another_version() -> None:
    with slow_server() as server:
        server.fault("metrics-latency=300ms")
        began = time.monotonic()
        ask(server.url, "/metrics")
        assert time.monotonic() - began >= 0.3
        server.fault("metrics-latency=300ms", on=False)
        server.fault("metrics-version=0.8.0")
        page = ask(server.url, "/metrics").body.decode()
        assert "vllm:gpu_cache_usage_perc{" in page
        assert "kv_cache_usage_perc{" not in page.replace("gpu_cache", "")
        assert 'engine="0"' not in page.split("vllm:cache_config_info")[0]


def test_faults_on_schedule() -> None:
    with slow_server(faults=(parse_fault("stall@0.3s+0.4s"),)) as server:
        began = time.monotonic()
        ask(server.url, "/v1/completions", {**LONG, "max_tokens": 20})
        assert 0.7 < time.monotonic() - began < 2


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (
            "slow=3@10s+5s",
            {"kind": "slow", "factor": 3.0, "start_ns": 10 * NS_PER_S, "length_ns": 5 * NS_PER_S},
        ),
        ("stall@1m", {"kind": "stall", "start_ns": 60 * NS_PER_S, "length_ns": None}),
        ("cut=5", {"kind": "cut", "tokens": 5, "start_ns": 0}),
        ("metrics-latency=2s", {"kind": "metrics-latency", "latency_ns": 2 * NS_PER_S}),
        ("metrics-version=0.10.0", {"kind": "metrics-version", "version": "0.10.0"}),
    ],
)
def test_fault_texts(text: str, fields: dict[str, object]) -> None:
    fault = parse_fault(text)
    assert {name: getattr(fault, name) for name in fields} == fields


@pytest.mark.parametrize(
    "text",
    ["", "slow", "slow=fast", "stall=1", "cut=-1", "nope", "stall@soon", "metrics-version=new", "slow=0"],
)
def test_bad_fault_texts(text: str) -> None:
    with pytest.raises(UsageError):
        parse_fault(text)


def test_a_client_that_leaves_frees_its_seat() -> None:
    with slow_server() as server:
        running = 'vllm:num_requests_running{engine="0",model_name="mock"} '
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
        connection.request("POST", "/v1/completions", msgspec.json.encode({**LONG, "max_tokens": 2000}))
        assert until(lambda: running + "1.0" in ask(server.url, "/metrics").body.decode())
        connection.close()
        assert until(lambda: running + "0.0" in ask(server.url, "/metrics").body.decode(), 1.0)


def test_a_request_that_can_never_run_waits_for_ever() -> None:
    engine = msgspec.structs.replace(SLOW, num_gpu_blocks=4)
    with mock_server(MockConfig(engine=engine)) as server:
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=0.5)
        connection.request("POST", "/v1/completions", msgspec.json.encode({**LONG, "max_tokens": 100}))
        with pytest.raises(TimeoutError):
            connection.getresponse()
        waiting = 'vllm:num_requests_waiting{engine="0",model_name="mock"} '
        assert waiting + "1.0" in ask(server.url, "/metrics").body.decode()
        assert ask(server.url, "/v1/completions", {**LONG, "max_tokens": 3}).status == 200
        connection.close()
        assert until(lambda: waiting + "0.0" in ask(server.url, "/metrics").body.decode())


def test_server_load_counts_when_asked() -> None:
    with slow_server(enable_server_load_tracking=True) as server:
        stream = Stream(server.url, tokens=400)
        assert ask(server.url, "/load").document == {"server_load": 1}
        server.fault("dead")
        assert stream.join()
        assert ask(server.url, "/load").document == {"server_load": 0}


# --- in a process of its own


def test_the_port_is_closed_while_the_server_starts_and_a_signal_ends_the_start() -> None:
    script = "from knee.cli.main import main; main()"
    command = [sys.executable, "-c", script, "mock", "--port", "0", "--startup-seconds", "30"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "non-default args" in line)
        port = re.search(r"'port': (\d+)", line)
        assert port is not None
        assert refused(f"http://127.0.0.1:{port[1]}")
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(5) == 0
        assert "Traceback" not in rest
        assert "ready" not in rest
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def test_start_up_takes_its_time_phase_by_phase() -> None:
    log = io.StringIO()
    config = MockConfig(engine=QUICK, startup_ns=NS_PER_S)
    began = time.monotonic()
    with mock_server(config, log=log):
        assert 1.0 <= time.monotonic() - began < 3
    stamps = [m[1] for m in re.finditer(r"INFO (\d\d-\d\d \d\d:\d\d:\d\d) ", log.getvalue())]
    assert len(set(stamps)) >= 2


def test_a_process_serves_and_ends_with_its_block(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with mock_process(MockConfig(engine=QUICK), log=log) as child:
        assert ask(child.url, "/v1/completions", {"prompt": "a", "max_tokens": 2}).status == 200
        pid, url = child.pid, child.url
    assert child.exit_code == 0
    assert refused(url)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert "Application startup complete." in log.read_text()


def test_a_process_takes_sigterm_and_reports_a_bad_address() -> None:
    with mock_process(MockConfig(engine=QUICK)) as child:
        child.terminate()
        assert child.join()
        assert child.exit_code == 0
    with pytest.raises(TargetError, match=r"cannot listen on 192\.0\.2\.1:0"), mock_process(host="192.0.2.1"):
        pass


def test_a_process_ends_when_its_parent_does() -> None:
    script = (
        "import os; from knee.mock.process import mock_process\n"
        "with mock_process() as child:\n"
        "    print(child.pid, flush=True); os._exit(0)"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=20
    )
    pid = int(found.stdout)

    def gone() -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return "Z" in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]

    assert until(gone)


# --- the log


WRITTEN = {
    "kv_tokens", "max_concurrency", "model_load", "weights_load_time", "torch_compile", "graph_capture",
    "init_engine", "ready", "chunked_prefill", "engine_init", "available_kv_memory", "memory_breakdown",
    "kv_in_use", "non_default_args", "mem_breakdown_hint", "compile_graph", "dynamo_time", "max_model_len",
    "architecture",
}  # fmt: skip


@pytest.mark.parametrize(
    "version", ["0.8.0", "0.9.2", "0.11.0", "0.18.0", "0.27.1", "0.28.0", "0.32.0", "0.33.0"]
)
def test_the_start_up_log_is_in_the_wording_of_its_version(version: str) -> None:
    log = io.StringIO()
    engine = msgspec.structs.replace(QUICK, version=version, max_num_queued_reqs=7)
    with mock_server(MockConfig(engine=engine), log=log):
        pass
    text = log.getvalue()
    known = {line.name for line in log_patterns(version)}
    for name in sorted(WRITTEN & known):
        assert pattern(name).search(text), f"{version} writes {name}"
    for name in ("version_logo", "version_api_server"):
        assert bool(pattern(name).search(text)) == (name in known), name
    tokens = pattern("kv_tokens").search(text)
    assert tokens is not None
    assert f"{QUICK.num_gpu_blocks * QUICK.block_size:,} tokens" in tokens[0]
    merged = [line for line in text.splitlines() if "tokens, Maximum concurrency" in line]
    assert bool(merged) == (version in ("0.28.0", "0.32.0", "0.33.0"))


def test_the_log_names_a_drain() -> None:
    log = io.StringIO()
    with mock_server(MockConfig(engine=SLOW, shutdown_timeout=20), log=log) as server:
        stream = Stream(server.url, tokens=10)
        server.terminate()
        assert stream.join()
        assert server.join()
    drained = pattern("shutdown_drain").search(log.getvalue())
    assert drained is not None
    assert "count=1 timeout=20s" in drained[0]
    assert log.getvalue().endswith("INFO:     Application shutdown complete.\n")
