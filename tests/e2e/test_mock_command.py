"""`knee mock` as a user runs it."""

import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

KNEE = [sys.executable, "-c", "from knee.cli.main import main; main()"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_says_ready_serves_and_stops_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    log = tmp_path / "server.log"
    command = [*KNEE, "mock", "--port", "0", "--model", "tiny", "--max-num-seqs", "7", "--log", str(log)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        ready = re.fullmatch(
            r"ready: (http://127\.0\.0\.1:\d+) \(simulated vLLM 0\.32\.0\)\n", process.stderr.readline()
        )
        assert ready is not None
        with urllib.request.urlopen(f"{ready[1]}/v1/models", timeout=5) as reply:
            assert json.load(reply)["data"][0]["id"] == "tiny"
        process.send_signal(number)
        out, err = process.communicate(timeout=10)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out, err) == (0, "", "")
    assert "'max_num_seqs': 7" in log.read_text()


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--port", "70000"], "cannot listen on port 70000"),
        (["--version", "0.5.4"], "vLLM 0.5.4 cannot be simulated"),
        (["--fault", "flood"], "no such fault: 'flood'"),
        (["--max-num-seqs", "0"], "max_num_seqs must be at least 1, not 0"),
        (["--speed", "0"], "a speed of 0"),
    ],
)
def test_flags_that_make_no_server_give_one_clear_line(flags: list[str], line: str) -> None:
    found = subprocess.run([*KNEE, "mock", *flags], capture_output=True, text=True, timeout=20, check=False)
    assert found.returncode == 2
    assert found.stderr.startswith(f"knee: {line}")
    assert "Traceback" not in found.stderr
