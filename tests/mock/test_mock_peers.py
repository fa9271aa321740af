"""Unmodified peers: the openai client, aiohttp, and Prometheus itself."""

import asyncio
import json
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path

import aiohttp
import openai
import pytest
from tests.mock.asking import QUICK

from knee.mock.config import MockConfig
from knee.mock.running import Running, mock_server

PROMETHEUS = shutil.which("prometheus")


@pytest.fixture
def client(quick_server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{quick_server.url}/v1", api_key="none", max_retries=0)


def test_openai_chat(client: openai.OpenAI) -> None:
    with client:
        got = client.chat.completions.create(
            model="./tiny", messages=[{"role": "user", "content": "say something"}], max_tokens=7, n=2, seed=3
        )
        assert [choice.finish_reason for choice in got.choices] == ["length", "length"]
        assert got.usage is not None
        assert got.usage.completion_tokens == 14
        assert got.choices[0].message.role == "assistant"
        assert got.choices[0].message.content != got.choices[1].message.content


def test_openai_chat_streamed(client: openai.OpenAI) -> None:
    with client:
        stream = client.chat.completions.create(
            model="./tiny",
            messages=[{"role": "user", "content": "say something"}],
            max_completion_tokens=20,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices)
    assert len(text.split()) == 20
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 20
    assert chunks[-2].choices[0].finish_reason == "length"


def test_openai_completions_and_models(client: openai.OpenAI) -> None:
    with client:
        assert [model.id for model in client.models.list()] == ["./tiny"]
        got = client.completions.create(
            model="./tiny", prompt="once upon a time", max_tokens=5, logprobs=None
        )
        assert got.usage is not None
        assert (got.usage.prompt_tokens, got.usage.completion_tokens) == (4, 5)
        stream = client.completions.create(model="./tiny", prompt="once", max_tokens=9, stream=True)
        assert len("".join(chunk.choices[0].text for chunk in stream).split()) == 9


def test_openai_errors(client: openai.OpenAI) -> None:
    with client:
        with pytest.raises(openai.NotFoundError, match="The model `nope` does not exist"):
            client.completions.create(model="nope", prompt="x")
        with pytest.raises(openai.BadRequestError, match="cannot be greater than max_model_len"):
            client.completions.create(model="./tiny", prompt="x", max_tokens=100_000)


def test_openai_hears_of_a_dead_engine_in_mid_stream() -> None:
    slow = MockConfig(engine=QUICK, speed=0.05)
    with (
        mock_server(slow) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client,
    ):
        stream = client.completions.create(model="mock", prompt="x", max_tokens=1000, stream=True)
        next(iter(stream))
        server.fault("crash")
        with pytest.raises(openai.APIError, match="EngineCore encountered an issue"):
            list(stream)


def test_aiohttp_streams_side_by_side(quick_server: Running) -> None:
    async def one(session: aiohttp.ClientSession, number: int) -> int:
        body = {
            "prompt": f"request {number}",
            "max_tokens": number % 20 + 1,
            "stream": True,
            "ignore_eos": True,
        }
        async with session.post(f"{quick_server.url}/v1/completions", json=body) as reply:
            data = await reply.read()
            assert data.endswith(b"data: [DONE]\n\n")
            return sum(
                len(json.loads(part[6:])["choices"][0]["text"].split()) for part in data.split(b"\n\n")[:-2]
            )

    async def main() -> None:
        async with aiohttp.ClientSession() as session:
            made = await asyncio.gather(*(one(session, number) for number in range(200)))
        assert made == [number % 20 + 1 for number in range(200)]

    asyncio.run(main())


@pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed")
def test_prometheus_scrapes_it(quick_server: Running, tmp_path: Path) -> None:
    assert PROMETHEUS is not None
    config = tmp_path / "prometheus.yml"
    target = quick_server.url.removeprefix("http://")
    config.write_text(
        "global: {scrape_interval: 1s}\n"
        f"scrape_configs: [{{job_name: vllm, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    with mock_server(MockConfig(engine=QUICK)) as free:
        port = free.port  # a port that was free a moment ago
    process = subprocess.Popen(
        [PROMETHEUS, f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}",
         f"--web.listen-address=127.0.0.1:{port}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def query(text: str) -> list[dict[str, object]]:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{port}/api/v1/query?query={text}", timeout=2
            ) as reply:
                found: list[dict[str, object]] = json.load(reply)["data"]["result"]
                return found
        except OSError:
            return []

    try:
        deadline = time.monotonic() + 20
        while not query("vllm:num_requests_running") and time.monotonic() < deadline:
            time.sleep(0.2)
        assert [str(row["value"][1]) for row in query("up")] == ["1"]  # type: ignore[index]
        assert query("vllm:num_requests_running")[0]["metric"]["model_name"] == "./tiny"  # type: ignore[index]
        assert query("vllm:time_to_first_token_seconds_bucket{le='%2BInf'}".replace("'", "%22"))
        assert query("vllm:request_success_total{finished_reason='length'}".replace("'", "%22"))
    finally:
        process.terminate()
        process.wait(10)
