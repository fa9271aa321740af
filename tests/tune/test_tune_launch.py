"""Starting and stopping real processes: nothing is left behind, and every failure has its cause."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.tune.fake_vllm import free_port, write_vllm

from knee.core.errors import TargetError, UsageError
from knee.tune.config import CommandServer, LocalServer
from knee.tune.gpu import free_again, memory_used
from knee.tune.launch import ProcessLauncher, facts_of, plan_of
from knee.tune.process import Group, Process, began, members, stop_left_behind
from knee.tune.server import StartFailed

SHARED = Path(__file__).parents[2].parent / "shared"


class Watched:
    """A launcher of a fake vLLM, with what it said and the groups it started."""

    def __init__(self, server: LocalServer | CommandServer) -> None:
        self.groups: list[Group] = []
        self.said: list[str] = []
        self.launcher = ProcessLauncher(server, self.groups.append)


def local(program: Path, **more: object) -> Watched:
    fields: dict[str, object] = {"stop_within": "5s", "ready_within": "30s", "port": free_port(), **more}
    return Watched(LocalServer(model="tiny", program=str(program), **fields))  # type: ignore[arg-type]


def test_a_server_is_started_asked_and_gone(tmp_path: Path) -> None:
    watched = local(write_vllm(tmp_path))
    with watched.launcher.server({"max_num_seqs": "7"}, tmp_path / "log", watched.said.append) as running:
        (group,) = watched.groups
        assert members(group.pid)
        assert (running.version, running.model) == ("0.32.0", "tiny")
        assert running.facts["max_num_seqs"] == "7"
        assert int(running.facts["num_gpu_blocks"]) > 1000
        assert running.startup_s is not None
        assert running.startup_s < 30
        assert running.target.snapshot() is not None
    assert not members(group.pid)
    assert any("--max-num-seqs 7" in line for line in watched.said)


def test_a_start_that_runs_out_of_memory_says_so(tmp_path: Path) -> None:
    watched = local(write_vllm(tmp_path, too_many=16))
    with (
        pytest.raises(StartFailed, match="CUDA out of memory"),
        watched.launcher.server({"max_num_seqs": "64"}, tmp_path / "log", watched.said.append),
    ):
        pass
    assert not members(watched.groups[0].pid)


def test_a_server_that_never_gets_ready_is_given_up_and_killed_with_its_children(tmp_path: Path) -> None:
    watched = local(write_vllm(tmp_path, never=True, stubborn=True), ready_within="2s", stop_within="1s")
    with (
        pytest.raises(StartFailed, match=r"not ready after \S+ s; its last line: .*Loading weights"),
        watched.launcher.server({}, tmp_path / "log", watched.said.append),
    ):
        pass
    assert not members(watched.groups[0].pid)


def test_an_error_in_the_block_leaves_nothing_behind(tmp_path: Path) -> None:
    watched = local(write_vllm(tmp_path))

    def interrupted() -> None:
        with watched.launcher.server({}, tmp_path / "log", watched.said.append):
            assert members(watched.groups[0].pid)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not members(watched.groups[0].pid)


def test_an_interrupt_at_the_very_start_leaves_nothing_behind(tmp_path: Path) -> None:
    watched = local(write_vllm(tmp_path))

    def interrupted_at_once(group: Group) -> None:
        watched.groups.append(group)
        os.kill(os.getpid(), signal.SIGINT)

    launcher = ProcessLauncher(watched.launcher._server, interrupted_at_once)
    with (
        pytest.raises(KeyboardInterrupt),
        launcher.server({}, tmp_path / "log", watched.said.append),
    ):
        pytest.fail("the interrupt came too late")
    assert not members(watched.groups[0].pid)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_while_it_stops_kills_what_is_left(tmp_path: Path) -> None:
    ignores = (
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('on', flush=True)\ntime.sleep(99)"
    )
    log = tmp_path / "log"
    process = Process([sys.executable, "-c", ignores], log, {})
    while not log.read_text():
        time.sleep(0.02)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        process.stop(60)
    assert not members(process.group.pid)


def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        watched = local(write_vllm(tmp_path), port=taken.getsockname()[1])
        with (
            pytest.raises(TargetError, match="something already listens at") as found,
            watched.launcher.server({}, tmp_path / "log", watched.said.append),
        ):
            pass
    assert not isinstance(found.value, StartFailed)  # it says nothing against the flags
    assert watched.groups == []


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    watched = local(tmp_path / "absent")
    with (
        pytest.raises(UsageError, match=r"cannot run .*absent: No such file"),
        watched.launcher.server({}, tmp_path / "log", watched.said.append),
    ):
        pass


def test_a_command_that_returns_at_once_is_undone_by_its_stop(tmp_path: Path) -> None:
    program, port = write_vllm(tmp_path), free_port()
    start, stop, pid = tmp_path / "start.sh", tmp_path / "stop.sh", tmp_path / "pid"
    start.write_text(
        f'#!/bin/sh\nsetsid {program} serve tiny --port {port} "$@" >/dev/null 2>&1 &\necho $! > {pid}\n'
    )
    stop.write_text(f"#!/bin/sh\nkill $(cat {pid})\n")
    for script in (start, stop):
        script.chmod(0o755)
    url = f"http://127.0.0.1:{port}"
    watched = Watched(CommandServer(start=f"{start} {{flags}}", stop=str(stop), url=url, ready_within="30s"))
    with watched.launcher.server({"max_num_seqs": "5"}, tmp_path / "log", watched.said.append) as running:
        assert running.target.snapshot() is not None
        server = int(pid.read_text())
    for _ in range(100):
        if not Path(f"/proc/{server}").exists():
            break
        time.sleep(0.1)
    assert not members(server)


def test_a_server_left_by_a_killed_session_is_stopped_and_no_other() -> None:
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        group = Group(process.pid, began(process.pid))
        assert not stop_left_behind(Group(process.pid, str(int(group.began) + 1)), 1)
        assert process.poll() is None
        assert stop_left_behind(group, 5)
        assert process.wait(5) == -signal.SIGTERM
        assert not stop_left_behind(group, 1)
    finally:
        process.kill()
        process.wait()


def test_a_command_line_holds_the_flags() -> None:
    server = CommandServer(start="ssh gpu 'vllm serve m {flags}'", url="http://gpu:8000/v1")
    plan = plan_of(server, {"max_num_seqs": "4"})
    assert plan.start == ("ssh", "gpu", "vllm serve m --max-num-seqs 4")
    assert plan.ready == "http://gpu:8000/health"
    assert not plan.detached


def test_what_a_real_log_tells() -> None:
    log = SHARED / "captures" / "startup-seqs4.log"
    if not log.is_file():
        pytest.skip("no captured start-up logs")
    facts, device = facts_of(log, {})
    assert facts["max_num_seqs"] == "4"
    assert int(facts["num_gpu_blocks"]) > 1
    assert device == "CPU"


def test_gpu_memory_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = tmp_path / "used"
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat {used}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    used.write_text("100\n20000\n")
    assert memory_used() == 20_100
    assert not free_again(100, within_s=0)
    threading.Timer(0.3, used.write_text, ("100\n0\n",)).start()
    assert free_again(100, within_s=20)
