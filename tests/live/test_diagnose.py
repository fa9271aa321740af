"""Four states provoked on a real vLLM, each named correctly from its /metrics alone."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.live.conftest import Start

from knee.core.snapshot import EngineSnapshot
from knee.http1.client import fetch
from knee.metrics.normalise import parse_page

pytestmark = pytest.mark.live
MAIN = [sys.executable, "-c", "from knee.cli.main import main; main()"]


@contextmanager
def load(url: str, *loads: tuple[str, ...], least: float = 6000, running: int = 1) -> Iterator[None]:
    """`knee bench` with each of `loads` at once, under way when the block begins.

    That is, `least` prompt tokens were read, and `running` requests run at once.
    """
    processes = [
        subprocess.Popen(
            [*MAIN, "bench", url, "--warmup", "1s", "--duration", "60s", "--drain", "5s", "--realtime", *one],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for one in loads
    ]
    try:
        wait_until_busy(url, least, running)
        yield
    finally:
        for process in processes:
            process.terminate()
            process.wait(30)


def wait_until_busy(url: str, prompt_tokens: float, running: int, seconds: float = 90.0) -> None:
    """Wait until the load has come through: its own preparations take a while on two cores."""
    end = time.monotonic() + seconds
    before = prompt_tokens_at(url)
    while time.monotonic() < end:
        if prompt_tokens_at(url) - before >= prompt_tokens and running_at(url) >= running:
            return
        time.sleep(0.5)
    pytest.fail(f"no load reached {url} within {seconds} s")


def prompt_tokens_at(url: str) -> float:
    return engine_at(url).counters["prompt_tokens"]


def running_at(url: str) -> float:
    return engine_at(url).gauges["num_requests_running"]


def engine_at(url: str) -> EngineSnapshot:
    return parse_page(fetch(f"{url}/metrics", timeout_s=30).body.decode(), 0).engines["0"]


def verdict(url: str, seconds: int = 15) -> dict[str, object]:
    done = subprocess.run(
        [*MAIN, "diagnose", url, "--for", f"{seconds}s", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in (0, 1, 5), done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def seconds_alone(url: str, asked: tuple[str, ...]) -> float:
    """How long one such request takes on an idle server."""
    one_by_one = ["--max-concurrency", "1", "--warmup", "1s", "--duration", "6s", "--json"]
    done = subprocess.run(
        [*MAIN, "bench", url, *asked, *one_by_one], capture_output=True, text=True, timeout=120, check=False
    )
    return float(json.loads(done.stdout)["e2e_ms"]["mean_finite"]) / 1000


def test_a_cap_of_four_sequences(start_vllm: Start) -> None:
    server = start_vllm("--max-num-seqs", "4")
    with load(server.url, ("--rate", "40", "--prompt", "128", "--output", "32")):
        found = verdict(server.url)
    assert found["limit"] == "sequence_cap", found
    assert found["move"]["flag"] == "max_num_seqs"  # type: ignore[index]


def test_a_tiny_cache_with_long_outputs(start_vllm: Start) -> None:
    server = start_vllm("--kv-cache-memory-bytes", "6M", "--max-model-len", "1024", "--max-num-seqs", "16")
    with load(server.url, ("--max-concurrency", "24", "--prompt", "32", "--output", "700"), least=700):
        found = verdict(server.url)
    assert found["limit"] == "kv_memory", found
    assert found["move"]["flag"] == "max_num_seqs"  # type: ignore[index]
    assert int(found["move"]["to"]) in range(2, 7)  # type: ignore[index]


def test_long_prompts_against_steady_decodes(start_vllm: Start) -> None:
    server = start_vllm("--max-num-batched-tokens", "8192", "--no-enable-prefix-caching")
    decodes = ("--max-concurrency", "4", "--prompt", "16", "--output", "1000")
    long = ("--prompt", "1900", "--output", "2")
    # Prompts take two fifths of the server's time, however fast it is: at half of that they were the gaps
    # above the 99th percentile or not; in all of its time they wait for each other, which is another limit.
    rate = 0.4 / seconds_alone(server.url, long)
    prompts = (*long, "--rate", f"{rate:.3g}", "--constant")
    with load(server.url, decodes, prompts, running=4):
        found = verdict(server.url, seconds=30)  # a busy server may say nothing for seconds on two cores
    assert found["limit"] == "prefill_interference", (rate, found)


def test_an_idle_server(start_vllm: Start) -> None:
    found = verdict(start_vllm().url, seconds=5)
    assert (found["limit"], found["answer"]) == ("none", "not bound"), found
