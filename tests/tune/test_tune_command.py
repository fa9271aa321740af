"""`knee tune` as a user runs it: a server that dies, Ctrl-C, a session that was killed, bad input."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.tune.fake_vllm import free_port, write_vllm

from knee.cli.main import run
from knee.tune.journal import JOURNAL, Journal
from knee.tune.process import members

KNEE = [sys.executable, "-c", "from knee.cli.main import main; main()"]
SIMULATED = """
slo = "ttft p95 < 300ms"
[server]
kind = "simulated"
step_ms = 5
[workload]
prompt = 60
output = 12
[flags]
max_num_seqs = 4
max_num_batched_tokens = 256
[moves.max_num_seqs]
low = 1
high = 128
[budget]
trials = 3
points = 2
precision = "20%"
"""


def live(folder: Path, program: Path) -> Path:
    path = folder / "knee.toml"
    path.write_text(
        f'slo = "ttft p95 < 500ms"\n[server]\nprogram = "{program}"\nmodel = "tiny"\nport = {free_port()}\n'
        'stop_within = "5s"\n[workload]\nprompt = 40\noutput = 10\n[flags]\nmax_num_seqs = 2\n'
        "[moves.max_num_seqs]\nlow = 1\nhigh = 4\n[budget]\nclients = 8\n"
    )
    return path


def test_a_simulated_session_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "knee.toml"
    config.write_text(SIMULATED)
    assert run(["tune", str(config), "--out", str(tmp_path / "session")]) == 0
    shown = capsys.readouterr()
    assert "hypothesis: sequence_cap binds; max_num_seqs 4 →" in shown.err
    assert "stopped: budget: 2 of 3 trials are done" in shown.out
    assert "knee before: [" in shown.out
    assert "--max-num-queued-reqs" in shown.out
    assert run(["tune", str(config), "--resume", str(tmp_path / "session"), "--json"]) == 0
    outcome = json.loads(capsys.readouterr().out)
    assert outcome["stop"]["reason"] == "budget"
    assert [entry["trial"]["number"] for entry in outcome["entries"]] == [1, 2, 3]


def test_a_server_that_dies_under_load_is_told_with_its_cause(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = live(tmp_path, write_vllm(tmp_path, fault="crash@1s"))
    assert run(["tune", str(config), "--out", str(tmp_path / "session")]) == 4
    shown = capsys.readouterr().out
    assert "stopped: server cannot start:" in shown
    assert "; its log: EngineDeadError" in shown


def running_from(folder: Path) -> list[str]:
    """The live processes whose command line names a file of `folder`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes()
        except OSError:
            continue
        if str(folder / "vllm").encode() in command:
            found.append(command.decode())
    return found


def wait_for(journal: Path, text: bytes) -> None:
    for _ in range(600):
        if journal.is_file() and text in journal.read_bytes():
            return
        time.sleep(0.05)
    pytest.fail(f"{journal} never held {text!r}")


def test_ctrl_c_stops_the_server_and_says_how_to_go_on(tmp_path: Path) -> None:
    config, session = live(tmp_path, write_vllm(tmp_path)), tmp_path / "session"
    process = subprocess.Popen(
        [*KNEE, "tune", str(config), "--out", str(session)], stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for(session / JOURNAL, b'"kind":"server"')
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert f"go on with: knee tune {config} --resume {session}" in told
    assert "Traceback" not in told
    assert not running_from(tmp_path)


def test_what_a_killed_session_leaves_is_stopped_when_it_is_resumed(tmp_path: Path) -> None:
    config, session = live(tmp_path, write_vllm(tmp_path)), tmp_path / "session"
    process = subprocess.Popen([*KNEE, "tune", str(config), "--out", str(session)], stderr=subprocess.DEVNULL)
    wait_for(session / JOURNAL, b'"kind":"server"')
    process.send_signal(signal.SIGKILL)
    process.wait()
    left = Journal(session).read().left
    assert left is not None
    assert members(left.pid)  # nobody could stop it
    again = subprocess.Popen(
        [*KNEE, "tune", str(config), "--resume", str(session)], stderr=subprocess.PIPE, text=True
    )
    try:
        assert again.stderr is not None
        told = [again.stderr.readline() for _ in range(2)]
        assert any(f"stopped the server that the killed session left (process {left.pid})" in t for t in told)
        assert not members(left.pid)
        again.send_signal(signal.SIGTERM)
        again.communicate(timeout=60)
    finally:
        again.kill()
        again.wait()
    assert again.returncode == 130
    assert not running_from(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["tune"], 2, "no session to run"),
        (["tune", "absent.toml"], 3, "cannot read absent.toml"),
        (["tune", "{config}", "--resume", "{folder}"], 3, "is not a run directory"),
        (["tune", "--like", "{folder}"], 3, "is not a run directory"),
        (["tune", "{config}", "--out", "{folder}"], 3, "exists and is not empty"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, line: str
) -> None:
    config = tmp_path / "knee.toml"
    config.write_text(SIMULATED)
    filled = [text.format(config=config, folder=tmp_path) for text in arguments]
    assert run(filled) == code
    assert line in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["knee.toml"]
