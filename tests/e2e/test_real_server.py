"""What a real vLLM 0.32 (CPU build, `--max-num-seqs 4`) left when `knee sweep` ran against it."""

import json
from pathlib import Path

import pytest

from knee.cli.main import run
from knee.core.point import Point
from knee.core.requests import RequestRecord
from knee.core.run import POINTS, RECORDS, open_run, read_lines, read_manifest
from knee.fit.log import read_log
from knee.http1.sse import SseParser
from knee.metrics.normalise import parse_page

DATA = Path(__file__).parents[1] / "data" / "real-0.32"
SWEEP = DATA / "sweep"


def test_the_log_reads_as_the_server_was_started() -> None:
    with (DATA / "server.log").open("rb") as stream:
        report = read_log(stream)
    assert report.status == "ready"
    assert report.version.startswith("0.32")
    assert report.max_num_seqs == 4
    assert report.max_model_len == 2048
    assert [engine.kv_tokens for engine in report.engines] == [524_288]
    total = report.seconds("total")
    assert total is not None
    assert 10 < total < 240


def test_the_metrics_page_counts_what_was_asked() -> None:
    snapshot = parse_page((DATA / "metrics.prom").read_text(), at_ns=0)
    assert list(snapshot.engines) == ["0"]
    engine = snapshot.engines["0"]
    assert engine.gauges["num_requests_running"] == 0
    assert engine.gauges["num_requests_waiting"] == 0
    assert engine.counters["num_preemptions"] == 0
    assert engine.counters["generation_tokens"] > 1000
    assert engine.histograms["time_to_first_token_seconds"].count > 100


def test_the_stream_holds_the_tokens_that_usage_says() -> None:
    parser = SseParser()
    events = parser.feed((DATA / "stream.sse").read_bytes())
    assert events[-1] == b"[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert chunks[-1]["usage"]["completion_tokens"] == 12
    assert chunks[-1]["choices"] == []
    assert sum(bool(chunk["choices"] and chunk["choices"][0]["text"]) for chunk in chunks) <= 12


def test_the_books_of_the_sweep_balance() -> None:
    points = list(read_lines(SWEEP / POINTS, Point))
    assert len(points) >= 3
    assert all(p.offered == p.ok + p.failed + p.rejected + p.censored for p in points)
    assert all(p.prompt_tokens_mean == pytest.approx(128, abs=0.5) for p in points if p.ok)
    assert not any(p.simulated for p in points)
    for index, point in enumerate(points):
        due = [
            record
            for record in read_lines(SWEEP / RECORDS, RequestRecord)
            if record.point == index and point.window_start_ns <= record.due_ns < point.window_end_ns
        ]
        assert len(due) == point.offered


def test_the_knee_lies_between_the_points_and_the_cap_binds(capsys: pytest.CaptureFixture[str]) -> None:
    manifest = read_manifest(SWEEP)
    assert manifest is not None
    assert manifest["ended"] == "complete"
    assert manifest["knee"]["holds"] < manifest["knee"]["breaks"]
    assert open_run(SWEEP)["target"]["version"].startswith("0.32")
    code = run(["diagnose", str(SWEEP), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert code == 1
    assert told["limit"] == "sequence_cap"
    assert told["move"]["flag"] == "max_num_seqs"
