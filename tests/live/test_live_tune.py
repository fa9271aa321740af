"""A session on a real vLLM: from a cap of four it names the cap, moves it, and the knee rises."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.live
MAIN = [sys.executable, "-c", "from knee.cli.main import main; main()"]

CONFIG = """
slo = "ttft p95 < 1s"
[server]
program = "{home}/venv/bin/vllm"
model = "{home}/tiny"
port = {port}
version = "0.32.0"
arguments = [
  "--max-model-len", "2048", "--dtype", "bfloat16", "--enforce-eager", "--no-enable-prefix-caching",
]
ready_within = "6m"
[server.environment]
HF_HUB_OFFLINE = "1"
VLLM_NO_USAGE_STATS = "1"
DO_NOT_TRACK = "1"
VLLM_CPU_KVCACHE_SPACE = "1"
[client]
realtime = true
[workload]
prompt = 32
output = 64
[flags]
max_num_seqs = 4
max_num_batched_tokens = 256
[moves.max_num_seqs]
low = 1
high = 64
[moves.max_num_batched_tokens]
low = 64
high = 2048
[budget]
server_time = "20m"
trials = 5
points = 3
precision = "10%"
clients = 32
"""


def test_from_a_cap_of_four_the_knee_rises_by_half(
    vllm_home: Path, tmp_path: Path, unused_tcp_port: int
) -> None:
    config = tmp_path / "knee.toml"
    config.write_text(CONFIG.format(home=vllm_home, port=unused_tcp_port))
    with (tmp_path / "journal.txt").open("w") as journal:
        done = subprocess.run(
            [*MAIN, "tune", str(config), "--out", str(tmp_path / "session"), "--json"],
            stdout=subprocess.PIPE,
            stderr=journal,
            text=True,
            timeout=1800,
            check=False,
        )
    assert done.returncode == 0, (tmp_path / "journal.txt").read_text()[-3000:]
    outcome = json.loads(done.stdout)
    first, second = outcome["entries"][0]["result"], outcome["entries"][1]["trial"]
    assert first["limit"] == "sequence_cap", first
    assert second["move"]["changes"][0]["flag"] == "max_num_seqs"
    knees = [outcome[end]["estimate"] for end in ("before", "after")]
    assert knees[1] >= 1.5 * knees[0], knees
