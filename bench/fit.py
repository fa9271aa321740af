"""`knee fit` on a log of 2 GB, and its weights against those that vLLM printed in public logs."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.figure import Figure
from knee.fit.config import read_model
from knee.fit.kv import Parallel
from knee.fit.weights import weight_bytes

MODELS = Path(__file__).parents[1] / "tests/data/models"
START = (
    "(APIServer pid=1) INFO 11-29 16:48:25 [api_utils.py:347]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.32.0\n"
    "(APIServer pid=1) INFO 11-29 16:48:26 [api_utils.py:286] non-default args: {'max_num_seqs': 256}\n"
    "(EngineCore pid=2) INFO 11-29 16:49:45 [kv_cache_utils.py:2327] GPU KV cache size: 327,680 tokens, "
    "Maximum concurrency for 32,768 tokens per request: 10.00x\n"
    "INFO:     Application startup complete.\n"
).encode()
ACCESS = 'INFO:     10.0.0.1:44088 - "POST /v1/completions HTTP/1.1" 200 OK\n'
SERVING = (
    ACCESS * 60
    + "(APIServer pid=1) INFO 11-29 17:13:29 [loggers.py:335] Engine 000: "
    + "Avg prompt throughput: 57.6 tokens/s, Avg generation throughput: 893.0 tokens/s, "
    + "Running: 5 reqs, Waiting: 10 reqs, GPU KV cache usage: 95.7%\n"
    + "(APIServer pid=1) ERROR 11-29 17:13:29 [serving.py:500] ValueError: this prompt is too long\n"
).encode()
LOG_BYTES = 2_000_000_000
PRINTED_GIB = (
    ("llama-3.1-8b", 1, 14.96),
    ("llama-3.1-8b", 2, 7.48),
    ("llama-3.1-70b-w8a8", 1, 67.7229),
    ("qwen2.5-1.5b", 1, 2.89),
    ("qwen3-30b-a3b", 2, 28.4767),
    ("qwen3-30b-a3b", 4, 14.2474),
)


def run() -> Iterator[Figure]:
    """Speed and memory of the log reader, and the largest error of weights."""
    for name, start in (("a server's whole log", START), ("a log without the end of its start", START[:-40])):
        seconds, peak = _read_large_log(start)
        speed = round(LOG_BYTES / 1e6 / seconds, 1)
        yield Figure(bench="fit", figure=f"reading {name}", value=speed, unit="MB/s", bar=50)
        yield Figure(
            bench="fit",
            figure=f"memory for {name}",
            value=round(peak / 1e6, 1),
            unit="MB",
            bar=200,
            better="lower",
        )
    errors = [
        abs(weight_bytes(read_model(MODELS / f"{name}.json"), Parallel(tp=tp)) / 2**30 / printed - 1)
        for name, tp, printed in PRINTED_GIB
    ]
    yield Figure(
        bench="fit",
        figure="weights, largest error",
        value=round(100 * max(errors), 2),
        unit="%",
        bar=3,
        better="lower",
    )


def _read_large_log(start: bytes) -> tuple[float, int]:
    """Pipe 2 GB through the command: its CPU seconds, start included, and peak resident memory in bytes.

    CPU seconds, because the pipe's writer shares the machine with it.
    """
    piece = SERVING * (4 * 2**20 // len(SERVING))
    child = subprocess.Popen(
        [sys.executable, "-c", "import knee.cli.main as m; m.main()", "fit", "-", "--p95-tokens", "6000"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(start)
    sent = len(start)
    while sent < LOG_BYTES:
        child.stdin.write(piece)
        sent += len(piece)
    child.stdin.close()
    out = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 1 or b"--max-num-seqs 49" not in out:
        raise RuntimeError(f"the log was not read as it should be: exit code {child.returncode}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
