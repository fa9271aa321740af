"""A real vLLM server, started by the tests that need one (`make live`).

VLLM_HOME names a folder with `venv/bin/vllm` and a small model in `tiny`.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from bench._vllm_server import Server, running

pytestmark = pytest.mark.live


@pytest.fixture(scope="session")
def vllm_home() -> Path:
    home = Path(os.environ.get("VLLM_HOME", "")).resolve()
    if not (home / "venv/bin/vllm").is_file():
        pytest.fail(f"no vLLM in {home}: set VLLM_HOME to a folder with venv/bin/vllm and tiny/")
    return home


Start = Callable[..., Server]


@pytest.fixture
def start_vllm(vllm_home: Path, tmp_path: Path, unused_tcp_port: int) -> Iterator[Start]:
    """Start servers with further flags; all are stopped when the test ends."""
    with ExitStack() as stack:
        started = 0

        def start(*flags: str) -> Server:
            nonlocal started
            started += 1
            log = tmp_path / f"server-{started}.log"
            return stack.enter_context(running(vllm_home, log, unused_tcp_port + started - 1, flags))

        yield start


@pytest.fixture
def unused_tcp_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
