"""A real vLLM server on the CPU, from a folder with `venv/bin/vllm` and a small model in `tiny`."""

import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

READY_WITHIN_S = 240
STOP_WITHIN_S = 30


class Server:
    """A running server: where it listens, what it logged."""

    def __init__(self, url: str, log: Path, process: subprocess.Popen[bytes]) -> None:
        self.url = url
        self.log = log
        self.process = process


@contextmanager
def running(home: Path, log: Path, port: int, flags: tuple[str, ...]) -> Iterator[Server]:
    """`vllm serve` until the block ends; it is always stopped, by the process group it was started in.

    Raises:
        RuntimeError: it ended, or was not ready in time; with the end of its log.
    """
    command = [
        *(str(home / "venv/bin/vllm"), "serve", str(home / "tiny"), "--host", "127.0.0.1"),
        *("--port", str(port), "--max-model-len", "2048", "--dtype", "bfloat16", "--enforce-eager", *flags),
    ]
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }
    if not any(flag.startswith("--kv-cache-memory-bytes") for flag in flags):
        environment["VLLM_CPU_KVCACHE_SPACE"] = "1"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_ready(url, process, log)
        yield Server(url, log, process)
    finally:
        stop(process)


def wait_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the server says that it is healthy."""
    for _ in range(READY_WITHIN_S * 2):
        if process.poll() is not None:
            raise RuntimeError(f"vLLM ended with {process.returncode}:\n{log.read_text()[-3000:]}")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            pass
        time.sleep(0.5)
    raise RuntimeError(f"vLLM was not ready within {READY_WITHIN_S} s:\n{log.read_text()[-3000:]}")


def stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the whole group, then SIGKILL."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, kind)
        except ProcessLookupError:
            return
        try:
            process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            continue
    process.wait(STOP_WITHIN_S)
