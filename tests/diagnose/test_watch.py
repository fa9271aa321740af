"""The live view: its lines, and the command against simulated servers."""

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.diagnose.worlds import ITL, TTFT, histogram, world

from knee.cli.main import run
from knee.core.snapshot import EngineSnapshot, Snapshot
from knee.diagnose.diagnose import diagnose
from knee.diagnose.facts import Facts
from knee.diagnose.screen import BARS, note, screen_lines, sparkline
from knee.metrics.window import window
from knee.mock.config import MockConfig
from knee.mock.running import mock_server

MAIN = "from knee.cli.main import main; main()"


def test_a_screen_shows_what_matters_and_the_verdict() -> None:
    seen = world(
        [128, 128, 128],
        [40, 60, 80],
        [0.5, 0.6, 0.7],
        counters={
            "generation_tokens": 40_000.0,
            "num_preemptions": 0.0,
            "prefix_cache_hits": 5.0,
            "prefix_cache_queries": 10.0,
        },
        histograms={
            "time_to_first_token_seconds": histogram([0.2] * 9 + [3.0], TTFT),
            "inter_token_latency_seconds": histogram([0.02] * 99 + [0.3], ITL),
        },
    )
    verdict = diagnose(seen, Facts(flags={"max_num_seqs": "128"}))
    history = {"waiting": [0.0, 40.0, 60.0, 80.0], "KV": [0.5, 0.6, 0.7]}
    text = "\n".join(screen_lines(seen, verdict, history, width=100))
    for part in (
        "128",
        "80",
        "70%",
        "<250ms/<5s",
        "22.8ms/<25ms",
        "2e+03",
        "50%",
        "▄▆█ 80",
        "Limit:     sequence_cap",
    ):
        assert part in text
    assert all(len(line) <= 100 for line in text.splitlines()[:6])
    plain = "\n".join(screen_lines(seen, verdict, history, width=80, plain=True))
    assert not set(plain) & set(BARS[1:])


@pytest.mark.parametrize(
    ("values", "top", "bars"),
    [([0, 1, 2, 4], None, " ▂▄█"), ([0.5], 1.0, "▄"), ([0, 0], None, "  "), ([], None, "")],
)
def test_history_lines(values: list[float], top: float | None, bars: str) -> None:
    assert sparkline(values, len(bars), top=top) == bars
    assert len(sparkline(values, 3, top=top)) == 3


def test_requests_add_up_over_servers_and_usage_does_not() -> None:
    def at(source: str, waiting: float, kv: float) -> Snapshot:
        gauges = {"num_requests_waiting": waiting, "kv_cache_usage_perc": kv}
        return Snapshot(at_ns=0, source=source, engines={"0": EngineSnapshot(gauges=gauges)})

    history: dict[str, list[float]] = {}
    for _ in range(5):
        note(history, [at("a", 3, 0.4), at("b", 4, 0.6)], keep=3)
    assert history == {"waiting": [7.0] * 3, "KV": [0.6] * 3}


def test_many_engines_fit_on_a_screen() -> None:
    snapshots = [
        Snapshot(
            at_ns=0,
            source=f"http://h{i}:8000",
            engines={"0": EngineSnapshot(gauges={"num_requests_running": 1.0})},
        )
        for i in range(40)
    ]
    seen = window(snapshots)
    lines = screen_lines(seen, diagnose(seen), {})
    assert "and 28 more engines" in lines
    assert len(lines) < 24


def test_looks_at_several_servers_for_a_while(capsys: pytest.CaptureFixture[str]) -> None:
    with mock_server(MockConfig()) as one, mock_server(MockConfig()) as two:
        assert (
            run(["watch", one.url, two.url, "--every", "100ms", "--over", "1s", "--for", "350ms", "--json"])
            == 0
        )
        looks = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert run(["watch", one.url, "--every", "100ms", "--over", "1s", "--for", "200ms"]) == 0
    assert len(looks) >= 4
    assert {look["engines"] for look in looks} == {2}
    assert {look["limit"] for look in looks} == {"none"}
    assert "nothing binds" in capsys.readouterr().out


@contextlib.contextmanager
def _ended(process: subprocess.Popen[Any]) -> Iterator[None]:
    """The process is not waited for without end, whatever comes of the test."""
    try:
        yield
    finally:
        process.kill()


def test_ctrl_c_ends_it_cleanly() -> None:
    with mock_server(MockConfig()) as server:
        command = [sys.executable, "-c", MAIN, "watch", server.url, "--every", "200ms"]
        with (
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
            _ended(process),
        ):
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline().startswith("engine")
            time.sleep(0.3)
            os.kill(process.pid, signal.SIGINT)
            _, err = process.communicate(timeout=10)
    assert process.returncode == 0
    assert err == ""


def test_looking_too_often_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["watch", "http://127.0.0.1:1", "--every", "1ms"]) == 2
    assert "cannot look every" in capsys.readouterr().err


def _until(terminal: int, said: bytes, within_s: float = 30.0) -> Iterator[bytes]:
    """What comes on a terminal, up to where `said` does."""
    seen, end_s = b"", time.monotonic() + within_s
    while said not in seen:
        assert select.select([terminal], [], [], max(0.0, end_s - time.monotonic()))[0], seen[-500:]
        piece = os.read(terminal, 65_536)
        seen += piece
        yield piece
        assert time.monotonic() < end_s, seen[-500:]


def test_on_a_terminal_it_redraws_and_leaves_the_screen_as_it_was() -> None:
    main, there = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    with mock_server(MockConfig()) as server:
        command = [sys.executable, "-c", MAIN, "watch", server.url, "--every", "200ms"]
        with (
            subprocess.Popen(command, stdin=there, stdout=there, stderr=there, env=environment) as process,
            _ended(process),
        ):
            os.close(there)
            seen = b"".join(_until(main, b"nothing binds"))
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(OSError):  # the terminal is gone when the process is
                for piece in _until(main, b"\x1b[?1049l"):
                    seen += piece
            process.wait(timeout=30)
        os.close(main)
    assert process.returncode == 0
    assert seen.index(b"\x1b[?1049h") < seen.rindex(b"\x1b[?1049l")  # the other screen, and back
    assert b"Traceback" not in seen
