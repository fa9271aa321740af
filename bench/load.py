"""The load generator against a server whose timing is known: the server on one core, the client on another.

Every figure of the client comes from a process of its own, pinned to the second core, so that figures do not
disturb one another. The truth is what the server wrote and when; each chunk carries the instant of its write.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from bench._load_peers import installed
from bench.figure import Figure

CHUNKS = 20
TTFT_MS, GAP_MS = 50.0, 10.0
SECONDS = 8.0
TURNS = 3
PEER_ROWS = (("vllm", "vllm bench serve", (300, 1_000)), ("aiperf", "AIPerf", (300,)))
"""Program, name, and the rates at which it is measured."""


def run() -> Iterator[Figure]:
    """All figures, in the order of their bars; comparisons with other tools last."""
    yield from paced()
    yield from sustained()
    yield from many_streams()
    yield from memory()
    yield from peers()


def figure(name: str, value: float, unit: str, bar: float | None = None, better: str = "lower") -> Figure:
    return Figure(bench="load", figure=name, value=round(value, 4), unit=unit, bar=bar, better=better)  # type: ignore[arg-type]


def paced() -> Iterator[Figure]:
    """300 streams/s of 20 chunks: CPU beside an aiohttp client's, lags beside the truth.

    The speed of a virtual core varies by half from one minute to the next, so the clients take turns, and
    each figure is the median of its runs; the comparison is the median over neighbours.
    """
    turns = [(measure("knee", rate=300), measure("aiohttp", rate=300)) for _ in range(TURNS)]
    ours, stamped = (
        [mine for mine, _ in turns],
        [measure("knee", rate=300, stamps=True) for _ in range(TURNS)],
    )
    common = measure("aiohttp", rate=300, uvloop=False)
    yield figure(
        "CPU per stream, bare aiohttp client on uvloop, 300/s", middle(t["cpu_ms"] for _, t in turns), "ms"
    )
    yield figure("CPU per stream, bare aiohttp client on asyncio, 300/s", common["cpu_ms"], "ms")
    yield figure("CPU per stream, 300/s", middle(mine["cpu_ms"] for mine in ours), "ms")
    share = middle(mine["cpu_ms"] / theirs["cpu_ms"] for mine, theirs in turns)
    yield figure("CPU per stream of an aiohttp client's, 300/s", share, "share", 0.5)
    yield figure("chunk-stamp lag p99, 300/s", middle(s["stamp_p99_ms"] for s in stamped), "ms", 0.5)
    yield figure("send lag p99, 300/s", middle(mine["send_p99_ms"] for mine in ours), "ms", 0.3)
    beyond = middle(mine["ttft_p99_ms"] - mine["true"]["ttft_p99_ms"] for mine in ours)
    yield figure("TTFT p99 beyond the truth, 300/s", beyond, "ms")


def sustained() -> Iterator[Figure]:
    """The rate that one worker carries, and what it says of itself where it carries no more."""
    at = measure("knee", rate=3_000, seconds=5)
    yield figure("attained of 3,000 streams/s", at["attained_share"], "share", 0.99, "higher")
    yield figure("core used at 3,000 streams/s", at["core"], "share")
    yield figure("TTFT p99 beyond the truth, 3,000/s", at["ttft_p99_ms"] - at["true"]["ttft_p99_ms"], "ms")
    yield figure("holds itself valid at 3,000/s", float(not at["invalid"]), "yes", 1, "higher")
    beyond = measure("knee", rate=30_000, seconds=2)
    bound = any(reason.startswith("client-bound") for reason in beyond["invalid"])
    yield figure("calls itself client-bound at 30,000/s", float(bound), "yes", 1, "higher")


def many_streams() -> Iterator[Figure]:
    """About 500 open streams at 50 tokens/s each: what is reported against what was written, and when.

    Where a host takes the cores away for tens of milliseconds, server and client are late by turns. Of a few
    runs, the one counts in which the server, by its own record, was least late.
    """
    runs = [
        measure("knee", rate=124, chunks=200, gap_ms=20.0, seconds=12, warmup=0.0, stamps=True)
        for _ in range(TURNS)
    ]
    seen = min(runs, key=lambda run: float(run["true"]["late_p99_ms"]))
    for name in ("ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms"):
        wrote = seen[f"wrote_{name}"]
        yield figure(f"500 streams: {name} as written", wrote, "ms")
        yield figure(f"500 streams: {name} off the truth", abs(seen[name] - wrote) / wrote, "share", 0.05)
    yield figure("500 streams: how late the server wrote, p99", seen["true"]["late_p99_ms"], "ms")
    yield figure("500 streams: core used", seen["core"], "share")
    yield figure("500 streams: most open at once", seen["most_open"], "streams")


def memory() -> Iterator[Figure]:
    """A million requests of 20 chunks through one set of books."""
    seen = client("memory", {})
    yield figure("peak memory after 1,000,000 requests", seen["rss_mb"], "MB", 500)
    yield figure("CPU of the books alone, per chunk", seen["us_per_chunk"], "us")


def peers() -> Iterator[Figure]:
    """The same rows from tools that are installed; that one is not is said on stderr."""
    for name, title, rates in PEER_ROWS:
        if not installed(name):
            sys.stderr.write(
                f"load: no rows of {title}: that wants {name} in {name.upper()}_HOME or on PATH,"
                " and a tokenizer in VLLM_TOKENIZER or VLLM_HOME/tiny\n"
            )
            continue
        for rate in rates:
            try:
                seen = measure(name, rate=rate)
            except subprocess.CalledProcessError:  # its own words are above
                sys.stderr.write(f"load: no row of {title} at {rate}/s: it failed\n")
                continue
            yield figure(f"{title}: CPU per stream, {rate}/s", seen["cpu_ms"], "ms")
            yield figure(f"{title}: TTFT p99, {rate}/s", seen["ttft_p99_ms"], "ms")
            yield figure(f"{title}: true TTFT p99, {rate}/s", seen["true"]["ttft_p99_ms"], "ms")


def middle(values: Iterable[float]) -> float:
    """The median."""
    return statistics.median(values)


def measure(
    kind: str,
    *,
    rate: float,
    seconds: float = SECONDS,
    chunks: int = CHUNKS,
    gap_ms: float = GAP_MS,
    warmup: float = 2.0,
    stamps: bool = False,
    uvloop: bool = True,
) -> dict[str, Any]:
    """One client run against a fresh server: what the client says, and under `true` what the server did."""
    cores = sorted(os.sched_getaffinity(0))
    server = subprocess.Popen(
        [sys.executable, "-m", "bench._truth_server", str(TTFT_MS), str(gap_ms), str(cores[0])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        port = int(server.stdout.readline())
        asked = {
            "url": f"http://127.0.0.1:{port}",
            "rate": rate,
            "seconds": seconds,
            "warmup": warmup,
            "chunks": chunks,
            "stamps": stamps,
            "uvloop": uvloop,
        }
        seen = client(kind, asked, core=cores[-1])
        server.stdin.close()
        return {**seen, "true": json.loads(server.stdout.readline())}
    finally:
        server.kill()
        server.wait()


def client(kind: str, asked: dict[str, Any], core: int | None = None) -> dict[str, Any]:
    """What a client process of that kind reports."""
    command = [
        sys.executable,
        "-m",
        "bench._load_client",
        kind,
        json.dumps(asked),
        str(-1 if core is None else core),
    ]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=600)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
