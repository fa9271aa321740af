"""`knee bench` and `knee workload` as a user types them."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.scripted_server import CLOSE, Scripted, plain, scripted, steady

from knee.cli import load_options as load
from knee.cli.main import run
from knee.cli.progress import progress_text
from knee.core.errors import UsageError
from knee.core.point import Point
from knee.core.requests import RequestRecord
from knee.core.run import open_run, read_lines, read_manifest
from knee.core.units import NS_PER_S
from knee.measure.client.books import Books
from knee.measure.client.running import Glance
from knee.workload.spec import Prefixes, Stage, Workload

SHARED = Path(__file__).parents[2].parent / "shared"
SHORT = ["--prompt", "40", "--output", "4", "--duration", "500ms", "--warmup", "100ms"]


BUSY = (0, 1)
"""What a good point ends with: 1 where a busy machine made the client late, which it then says."""


def bench(server: Scripted, *arguments: str) -> int:
    return run(["bench", server.url, *SHORT, *arguments])


def test_one_point(capsys: pytest.CaptureFixture[str]) -> None:
    with scripted(steady(0.01, 0.002)) as server:
        code = bench(server, "--rate", "80")
    out, err = capsys.readouterr()
    assert code == ("invalid:" in out)
    assert "offered" in out
    assert "TTFT" in out
    assert "vLLM 0.32.0" in out
    assert "no vLLM metrics" in err
    assert "\x1b" not in err + out  # no progress line where there is no terminal


def test_json_is_one_point(capsys: pytest.CaptureFixture[str]) -> None:
    with scripted(steady(0.01, 0.002)) as server:
        assert bench(server, "--rate", "80", "--json") in BUSY
    point = msgspec.json.decode(capsys.readouterr().out, type=Point)
    assert point.offered == point.ok + point.failed + point.rejected + point.censored > 20
    assert point.prompt_tokens_mean == 40


def test_the_slo_decides_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with scripted(steady(0.05, 0.002)) as server:
        assert bench(server, "--rate", "200", "--slo", "ttft p50 < 5ms") == 1
        capsys.readouterr()
        code = bench(server, "--rate", "200", "--slo", "ttft p50 < 5s")
        assert code == ("invalid:" in capsys.readouterr().out)


def test_failures_are_shown_with_what_was_said(capsys: pytest.CaptureFixture[str]) -> None:
    async def script(call: Any) -> Any:  # noqa: ARG001
        yield plain(500, b'{"error":{"message":"EngineCore encountered an issue"}}')

    with scripted(script) as server:
        bench(server, "--rate", "40")
    out = capsys.readouterr().out
    assert "not answered: http_500" in out
    assert "http_500: EngineCore encountered an issue" in out


def test_a_run_directory_holds_everything_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "sk-very-secret")
    out = tmp_path / "run"
    with scripted(steady(0.01, 0.002)) as server:
        page = (SHARED / "captures" / "metrics-after-few.txt").read_text()
        server.metrics = lambda: page
        assert bench(server, "--rate", "80", "--out", str(out), "--header", "x-team: also-secret") in BUSY
        assert server.calls[0].headers["authorization"] == "Bearer sk-very-secret"
        assert bench(server, "--rate", "80", "--out", str(out)) == 3
    assert "is not empty" in capsys.readouterr().err
    assert open_run(out)["command"] == "bench"
    assert read_manifest(out) == {"ended": "complete", "points": 1}
    points = list(read_lines(out / "points.jsonl", Point))
    assert len(points) == 1
    assert points[0].window is not None
    assert len(list(read_lines(out / "records.jsonl", RequestRecord))) >= points[0].offered
    assert (out / "snapshots.jsonl").read_text().count("\n") >= 2
    everything = "".join(path.read_text() for path in out.iterdir())
    assert "secret" not in everything


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--rate", "0"], 2, "a rate of 0"),
        (["--rate", "1", "--max-concurrency", "2"], 2, "either --rate or --max-concurrency"),
        ([], 2, "either --rate or --max-concurrency"),
        (["--max-concurrency", "0"], 2, "--max-concurrency 0"),
        (["--rate", "1", "--prompt", "many"], 2, "not a length in tokens: 'many'"),
        (["--rate", "1", "--prompt", "lognormal:5"], 2, "not a length"),
        (["--rate", "1", "--duration", "soon"], 2, "not a duration"),
        (["--rate", "1", "--duration", "0s"], 2, "--duration 0s"),
        (["--rate", "1", "--slo", "fast"], 2, "not an objective"),
        (["--rate", "1", "--body", "a"], 2, "not a body field"),
        (["--rate", "1", "--body", "a=b"], 2, "not JSON in the body field"),
        (["--rate", "1", "--body", "max_tokens=5"], 2, "'max_tokens' is set by other options"),
        (["--rate", "1", "--header", "no colon"], 2, "a header that cannot be one"),
        (["--rate", "1", "--burst", "50"], 2, "not a burst"),
        (["--rate", "1", "--stages", "10s"], 2, "not a stage"),
        (["--rate", "1", "--shared-prefix", "2"], 2, "not a shared prefix"),
        (["--rate", "1", "--constant", "--burstiness", "2"], 2, "no burstiness"),
        (["--rate", "1", "--replay"], 2, "--replay without a trace"),
        (["--rate", "1", "--speed", "2"], 2, "--speed without --replay"),
        (["--rate", "1", "--workload", "/no/such/file"], 3, "cannot read /no/such/file"),
        (["--rate", "1", "--api-key-file", "/no/such/file"], 3, "cannot read the key file"),
        (["--rate", "1", "--model", "gpt-4"], 4, "does not serve the model"),
        (["--rate", "1", "--timeout", "0s"], 2, "--timeout 0s"),
        (["--rate", "1", "--workers", "0"], 2, "0 workers"),
        (["--max-concurrency", "1", "--turns", "3"], 2, "conversations in a closed loop"),
    ],
)
def test_bad_input_is_one_line_and_a_hint(
    arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted(steady(0, 0)) as server:
        assert run(["bench", server.url, *arguments]) == code
        assert not server.calls
    err = capsys.readouterr().err
    assert says in err
    assert "Traceback" not in err


def test_a_lost_server_has_its_own_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def script(call: Any) -> Any:  # noqa: ARG001
        yield CLOSE

    out = tmp_path / "run"
    with scripted(script) as server:
        assert (
            run(["bench", server.url, *SHORT[:4], "--rate", "60", "--duration", "30s", "--out", str(out)])
            == 6
        )
    assert "stopped answering" in capsys.readouterr().err
    assert read_manifest(out) == {"ended": "target lost", "points": 1}


def flags(**changes: Any) -> Workload:
    return load.offer_from(load.LoadFlags(**({"rate": 2.0} | changes))).workload


def test_flags_make_the_workload() -> None:
    spec = flags(
        prompt="lognormal:600:0.8:4-8000", output="uniform:10-300", burst="50/10s", stages="30s:0.1-1,60s:2"
    )
    assert (spec.prompt_tokens.kind, spec.prompt_tokens.high, spec.output_tokens.low) == (
        "lognormal",
        8_000,
        10,
    )
    assert (spec.arrivals.burst_size, spec.arrivals.burst_every_s) == (50, 10)
    assert spec.arrivals.stages == (Stage(seconds=30, start=0.1, end=1), Stage(seconds=60, start=2, end=2))
    assert flags(burstiness=0.5).arrivals.kind == "gamma"
    assert flags(constant=True).arrivals.kind == "constant"
    assert flags(prompt="10,20").prompt_tokens.values == (10, 20)
    assert flags(shared_prefix="0.25:3").prefixes == Prefixes(tokens=250, groups=3)
    talk = flags(turns="4", think="2s").conversations
    assert talk is not None
    assert (talk.turns.mean, talk.think_s) == (4, 2)


def test_a_trace_is_drawn_from_or_replayed() -> None:
    path = SHARED / "traces" / "azure_llm_2023_conv.csv"
    drawn = flags(workload=path)
    assert len(drawn.pairs) > 5_000
    assert drawn.replay is None
    offer = load.offer_from(load.LoadFlags(workload=path, replay=True, speed=2.0))
    assert offer.rate == pytest.approx(11.06, abs=0.01)
    assert offer.workload.replay is not None
    assert offer.workload.replay.sha256
    assert load.offer_from(load.LoadFlags(workload=path, replay=True, rate=3.0)).rate == 3
    with pytest.raises(UsageError):
        load.offer_from(load.LoadFlags(workload=path, replay=True, rate=3.0, speed=2.0))


def test_a_workload_is_learned_and_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, saved = SHARED / "captures" / "metrics-after-quiet-sweep.txt", tmp_path / "workload.json"
    assert run(["workload", "learn", str(page), "--out", str(saved)]) == 0
    with scripted(steady(0.01, 0.001)) as server:
        server.metrics = page.read_text
        assert run(["workload", "learn", server.url, "--json"]) == 0
        live = json.loads(capsys.readouterr().out.split("average", 1)[1])
        assert live == json.loads(saved.read_text())
        assert run(
            ["bench", server.url, "--workload", str(saved), "--rate", "50", "--duration", "300ms"]
        ) in (0, 1)
    lengths = [len(call.prompt.split()) + 3 for call in server.calls]
    assert np.mean(lengths) == pytest.approx(128, rel=0.1)  # what that server had been asked


def test_describe(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(SHARED / "traces" / "mooncake_conversation_head.jsonl")
    assert run(["workload", "describe", path]) == 0
    out = capsys.readouterr().out
    assert "4,000 requests (mooncake)" in out
    assert "shared text 33%" in out
    assert run(["workload", "describe", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rate"] == pytest.approx(3.0714, abs=1e-3)
    assert run(["workload", "describe", str(SHARED / "README.md")]) == 3
    assert run(["workload", "describe", str(SHARED)]) == 3
    assert run(["workload", "learn", "http://127.0.0.1:1"]) == 4


def test_the_progress_line() -> None:
    books = Books()
    for i in range(100):
        books.offer(i * NS_PER_S // 10, 1, 1)
        books.sent_ns[i] = books.due_ns[i]
        books.first_ns[i] = books.due_ns[i] + 50_000_000
    offer = load.offer_from(load.LoadFlags(rate=12.0))
    text = progress_text(offer, Glance(10 * NS_PER_S, 100, 7, books.observed(0)))
    assert text == (
        "  10/35 s measuring: asked 12/s, sent 10/s, 7 in flight, failed 0, rejected 0, TTFT p95 50 ms"
    )
