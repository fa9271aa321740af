"""Load workers on a Ray cluster: one schedule, one set of books; a clear line where there is no cluster."""

import gc
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.measure.test_live_load import offer
from tests.raw_server import serving

from knee.cli.main import run
from knee.core.point import Point
from knee.core.requests import Observed
from knee.core.units import NS_PER_S
from knee.measure.client.actors import _places, on_ray
from knee.measure.client.books import COLUMNS
from knee.measure.client.connection import Connection
from knee.measure.client.line import Line, WorkerLost
from knee.measure.client.live import connect
from knee.measure.client.relay import Relay
from knee.measure.client.worker import Delta, unpack
from knee.mock.config import MockConfig
from knee.mock.process import mock_process
from knee.workload.schedule import schedule

SHORT = ["--rate", "40", "--prompt", "40", "--output", "4", "--duration", "500ms", "--warmup", "100ms"]
STORE_BYTES = 80 * 2**20
"""Of a node's object store, which nothing here uses; Ray takes no less than 75 MiB."""


class Tapped:
    """A line that keeps what it hears."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.heard: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.line, name)

    async def receive(self) -> bytes:
        message = await self.line.receive()
        self.heard.append(message)
        return message

    def told(self) -> list[Delta]:
        return [unpack(message, Delta) for message in self.heard if message]


@contextmanager
def two_nodes() -> Iterator[str]:
    """A cluster of two nodes with a core each, both on this machine; its processes are gone afterwards."""
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES, include_dashboard=False)
        cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
        session = Path(cluster.head_node.get_session_dir_path()).name.encode()
        yield str(cluster.address)
    finally:
        cluster.shutdown()
        gc.collect()  # here, where warnings of Ray's are no errors
    until_s = time.monotonic() + 15
    while running(session) and time.monotonic() < until_s:
        time.sleep(0.2)
    assert not running(session)


def running(session: bytes) -> list[bytes]:
    """The command lines of processes of a Ray session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:  # it has just ended
            continue
        if session in line:
            found.append(line)
    return found


def rows(deltas: Sequence[Delta]) -> Any:
    """All that a worker entered in its books, by when it was due."""
    closed = b"".join(delta.closed for delta in deltas) + deltas[-1].open
    found = np.frombuffer(closed, dtype=np.int64).reshape(-1, len(COLUMNS))
    return found[np.argsort(found[:, COLUMNS.index("due_ns")], kind="stable")]


def check_sum(merged: Observed, parts: list[list[Delta]]) -> None:
    """The merged books are the sum of the workers' own."""
    own = [rows(deltas) for deltas in parts]
    assert all(len(part) > 10 for part in own)
    whole = np.concatenate(own)
    whole = whole[np.argsort(whole[:, COLUMNS.index("due_ns")], kind="stable")]
    for at, name in enumerate(COLUMNS):
        column = getattr(merged, name)
        assert (column == whole[:, at]).all(), name
    told = [delta for deltas in parts for delta in deltas]
    assert len(merged.gaps.ns) == sum(len(delta.gaps) for delta in told) // 24 > 100
    counted: dict[str, int] = {}
    for delta in told:
        for cause, times in delta.causes.items():
            counted[cause] = counted.get(cause, 0) + times
    assert dict(merged.causes) == counted


@pytest.mark.filterwarnings("default")  # Ray's own
def test_two_ray_nodes_carry_one_load(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    asked = offer(rate=60, window_s=1.0)
    wanted = next(iter(schedule(asked.workload, asked.rate, asked.seed)))
    with mock_process(MockConfig()) as server, two_nodes() as address:
        with on_ray(address, None) as hands:
            assert hands.workers == 2
            lines: list[Tapped] = []

            async def tapping(count: int) -> list[Any]:
                lines[:] = [Tapped(line) for line in await hands.hire(count)]
                return list(lines)

            for workers in (1, 2):
                live = connect(Connection(url=server.url), None, workers, tapping)
                got = live.measure(asked)
                seen, n = got.observed, len(got.observed)
                assert n > 60
                assert (seen.due_ns == wanted.due_ns[:n]).all()  # whatever the number of workers
                assert (seen.asked_tokens == wanted.output_tokens[:n]).all()
                check_sum(seen, [line.told() for line in lines])
            assert len({line.place for line in lines}) == 2
            for line in lines:  # both nodes are this machine, with one clock
                assert abs(line.ahead_ns) <= line.unsure_ns < NS_PER_S // 10
        assert run(["bench", server.url, *SHORT, "--ray", address, "--json"]) in (0, 1)
        point = msgspec.json.decode(capsys.readouterr().out, type=Point)
        assert point.offered == point.ok + point.failed + point.rejected + point.censored > 10
        assert any(
            note.startswith("2 workers on 2 Ray nodes, clocks known to within ") for note in point.notes
        )
        refused(
            capsys, [server.url, "--workers", "3", "--ray", address], "3 workers on a Ray cluster of 2 cores"
        )


def refused(capsys: pytest.CaptureFixture[str], arguments: list[str], what: str) -> None:
    """One clear line, a hint, and the exit code of a command line that cannot be followed."""
    assert run(["bench", *arguments, *SHORT]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"knee: {what}")
    assert err.count("\n") == 2
    assert "hint: " in err


@pytest.mark.parametrize("address", ["here", "ray://127.0.0.1:10001", "127.0.0.1:", "x:99999", "local"])
def test_no_address(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, ["http://x", "--ray", address], f"not the address of a Ray cluster: {address!r}")


def test_nothing_listens(capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, ["http://x", "--ray", "127.0.0.1:1"], "no Ray cluster at 127.0.0.1:1: Connection refused")


def test_ray_is_not_installed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    refused(capsys, ["http://x", "--ray", "127.0.0.1:1"], "--ray needs the package ray")


def test_what_listens_is_no_cluster() -> None:
    """Ray would try for minutes; the process ends all the same."""
    held = threading.Event()
    script = (
        "import sys\n"
        "from knee.cli.main import run\n"
        "from knee.measure.client import actors\n"
        "actors.JOIN_S = 2.0\n"
        "sys.exit(run(sys.argv[1:]))\n"
    )

    def silent(connection: socket.socket, number: int) -> None:  # noqa: ARG001
        held.wait(60)

    with serving(silent) as url:
        address = url.removeprefix("http://")
        done = subprocess.run(
            [sys.executable, "-c", script, "bench", "http://x", *SHORT, "--ray", address],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        held.set()
    assert done.returncode == 2
    assert done.stdout == ""
    ours = done.stderr.splitlines()[-2:]  # after warnings of Ray's own
    assert ours[0] == f"knee: no Ray cluster at {address}: no answer within 2 s"
    assert ours[1].startswith("  hint: ")


def test_every_node_has_a_worker_before_any_has_two() -> None:
    nodes = [
        {"NodeID": "b", "Alive": True, "Resources": {"CPU": 2.0}},
        {"NodeID": "a", "Alive": True, "Resources": {"CPU": 1.5}},
        {"NodeID": "c", "Alive": True, "Resources": {"memory": 1.0}},
        {"NodeID": "d", "Alive": False, "Resources": {"CPU": 9.0}},
    ]
    assert _places(nodes) == ["a", "b", "b"]
    assert _places([]) == []


def test_a_relay_says_what_a_lost_worker_wrote() -> None:
    """Without Ray: a worker that cannot read its job ends, and says why on its stderr."""
    relay = Relay()
    relay.start()
    relay.tell(b"\x01\x00\x00\x00?")
    with pytest.raises(WorkerLost, match=r"msgspec\.(Decode|Validation)Error"):
        relay.hear()
    relay.tell(b"more")  # is lost, and nobody minds
    relay.end()
    relay.end()
