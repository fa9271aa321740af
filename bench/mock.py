"""What the simulated server costs: CPU a stream at 300 streams/s of 20 tokens, and how exact its pace is."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bench.figure import Figure
from knee.core.clock import RealClock
from knee.core.units import NS_PER_S
from knee.engine.config import EngineConfig, StepCost
from knee.http1.loop import new_event_loop
from knee.mock.config import MockConfig
from knee.mock.process import mock_process

RATE, SECONDS, TOKENS = 300, 6, 20
STEP_NS = 10_000_000
ENGINE = EngineConfig(
    step_cost=StepCost(fixed_ns=STEP_NS, per_seq_ns=0, per_prefill_token_ns=0),
    max_num_seqs=512,
    version="0.32.0",
)


def run() -> Iterator[Figure]:
    """CPU a stream, share of a core, and the pace of one stream beside the load."""
    with mock_process(MockConfig(engine=ENGINE)) as server:
        port = int(server.url.rsplit(":", 1)[1])
        before = _cpu_s(server.pid)
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            late_ms = runner.run(_load(port))
        used = _cpu_s(server.pid) - before
    late_ms.sort()
    figures = (
        (f"CPU a stream of {TOKENS} tokens at {RATE}/s", 1e6 * used / (RATE * SECONDS), "us", None),
        (f"share of a core at {RATE} streams/s", 100 * used / SECONDS, "%", 60.0),
        ("how late a token is in a stream beside these, p50", late_ms[len(late_ms) // 2], "ms", None),
        ("how late a token is in a stream beside these, p99", late_ms[int(0.99 * len(late_ms))], "ms", None),
    )
    for figure, value, unit, bar in figures:
        yield Figure(bench="mock", figure=figure, value=round(value, 2), unit=unit, bar=bar, better="lower")


async def _load(port: int) -> list[float]:
    """Streams at `RATE`; how late, in ms, the tokens of one long stream beside them came."""
    clock, tasks = RealClock(), set()
    origin_ns = clock.monotonic_ns()
    watched = asyncio.create_task(_watched(port, clock, SECONDS * NS_PER_S // STEP_NS - 20))
    for number in range(RATE * SECONDS):
        due_s = number / RATE
        await asyncio.sleep(max(0.0, due_s - (clock.monotonic_ns() - origin_ns) / NS_PER_S))
        task = asyncio.create_task(_stream(port, number))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    return await watched


def _request(prompt: str, tokens: int) -> bytes:
    usage = {"include_usage": True, "continuous_usage_stats": True}
    body = {
        "prompt": prompt,
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": usage,
    }
    data = msgspec.json.encode(body)
    head = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


async def _stream(port: int, number: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(_request(f"request {number} " + "word " * 100, TOKENS))
    data = await reader.read()
    writer.close()
    if not data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
        raise RuntimeError(f"a stream did not end: {data[-200:]!r}")


async def _watched(port: int, clock: RealClock, tokens: int) -> list[float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(_request("watch this", tokens))
    await reader.readuntil(b"\r\n\r\n")
    offsets, number = [], 0
    while number < tokens:  # a chunk that came late may hold several tokens
        event = await reader.readuntil(b"\n\n")
        number = int(event.rpartition(b'"completion_tokens":')[2].split(b"}")[0])
        offsets.append(clock.monotonic_ns() - number * STEP_NS)
    writer.close()
    # no token is early: the one that was least late of all shows when the first step began
    return [(offset - min(offsets)) / 1e6 for offset in offsets]


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
