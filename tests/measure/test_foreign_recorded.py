"""Result files that GuideLLM and AIPerf wrote, of loads on `knee mock` with a queue that was too short."""

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.measure.test_live_interchange import saved, values

from knee.core.errors import InputError
from knee.core.slo import parse_slo
from knee.measure.foreign import read_results

DATA = Path(__file__).parents[1] / "data" / "other-tools"
GUIDELLM = DATA / "guidellm-0.8.1.json"
AIPERF = DATA / "aiperf-0.13.0.json"
AIPERF_LINES = DATA / "aiperf-0.13.0.jsonl"


def of_guidellm() -> tuple[dict[str, Any], dict[str, Any]]:
    """The file, and its one benchmark."""
    whole = json.loads(GUIDELLM.read_text())
    return whole, whole["benchmarks"][0]


def mean_of(rows: list[dict[str, Any]], name: str) -> float:
    return float(np.mean([row[name] for row in rows]))


def test_guidellm_with_every_request() -> None:
    _, theirs = of_guidellm()
    (point,) = read_results(GUIDELLM, parse_slo("ttft p50 < 10ms"))
    assert (point.offered, point.ok, point.failed, point.rejected) == (20, 12, 0, 8)
    assert point.causes == {"http_503": 8}
    assert (point.rate, point.max_concurrency) == (20.0, None)  # not 10,240, a cap that it sets itself
    good = theirs["requests"]["successful"]
    late_ms = 1e3 * mean_of(good, "request_dispatch_delay")
    wait_ms = mean_of(good, "time_to_first_token_ms")
    assert point.ttft_ms.mean_finite == pytest.approx(wait_ms + late_ms, abs=0.01)
    assert point.ttft_ms.n_infinite == 8
    assert point.ttft_ms.p90 is None  # theirs is that of the twelve: no matter how many are refused
    tpot_ms = mean_of(good, "inter_token_latency_ms")
    assert point.tpot_ms.mean_finite == pytest.approx(tpot_ms, abs=0.01)
    assert tpot_ms < mean_of(good, "time_per_output_token_ms") - 0.5  # that holds the first wait too
    times = [request["info"]["timings"] for request in good]
    last_ms = 1e3 * float(np.mean([one["last_token_iteration"] - one["targeted_start"] for one in times]))
    assert point.e2e_ms.mean_finite == pytest.approx(last_ms, abs=0.01)
    assert point.send_lag_ms.p50 is not None
    assert (point.output_tokens_mean, point.judged[0].holds) == (16, False)
    assert "scheduled instant" in point.notes[0]


@pytest.mark.parametrize(
    ("strategy", "clients"),
    [
        ({"type_": "concurrent", "streams": 8}, 8),
        ({"type_": "throughput", "max_concurrency": 512}, 512),
        ({"type_": "synchronous"}, None),
    ],
)
def test_guidellm_in_a_closed_loop(tmp_path: Path, strategy: dict[str, Any], clients: int | None) -> None:
    whole, benchmark = of_guidellm()
    benchmark["config"]["strategy"] = strategy
    (point,) = read_results(saved(tmp_path, whole))
    assert (point.rate, point.max_concurrency) == (0.0, clients)
    first = mean_of(benchmark["requests"]["successful"], "time_to_first_token_ms")
    assert point.ttft_ms.mean_finite == pytest.approx(first, abs=0.01)  # there is no schedule but the send


def test_guidellm_without_its_requests(tmp_path: Path) -> None:
    """`sample_size` leaves them out, in part or all: then only its percentiles are left."""
    whole, benchmark = of_guidellm()
    benchmark["requests"]["successful"].pop()
    (point,) = read_results(saved(tmp_path, whole))
    metrics = benchmark["metrics"]
    assert (point.offered, point.ok, point.failed) == (20, 12, 8)
    assert point.ttft_ms.p50 == metrics["time_to_first_token_ms"]["successful"]["percentiles"]["p50"]
    assert point.tpot_ms.p50 == metrics["inter_token_latency_ms"]["successful"]["percentiles"]["p50"]
    assert point.ttft_ms.p90 is None
    assert point.max_concurrency is None


def test_aiperf() -> None:
    theirs = json.loads(AIPERF.read_text())
    (point,) = read_results(AIPERF)
    assert (point.offered, point.ok, point.failed, point.rejected) == (20, 13, 0, 7)
    assert point.causes == {"http_503": 7}
    assert (point.rate, point.max_concurrency) == (20.0, None)
    assert (
        point.ttft_ms.p50 == theirs["adj_time_to_first_token"]["p50"] > theirs["time_to_first_token"]["p50"]
    )
    assert point.ttft_ms.p90 is None
    assert "p90" not in point.ttft_ms.unsupported  # it is known: infinite
    assert point.itl_ms.p50 == theirs["inter_chunk_latency"]["p50"]
    assert point.served_rate == theirs["request_throughput"]["avg"]
    assert point.output_tokens_mean == 16  # as the server counted, not AIPerf's tokenizer
    assert "where the server counted 16.0" in point.notes[0]


def test_aiperf_closed_loop(tmp_path: Path) -> None:
    theirs = json.loads(AIPERF.read_text())
    theirs["input_config"]["phases"] = [
        {"name": "warmup", "kind": "warmup", "type": "concurrency", "concurrency": 2},
        {"name": "profiling", "kind": "profiling", "type": "concurrency", "requests": 20, "concurrency": 4},
    ]
    (point,) = read_results(saved(tmp_path, theirs))
    assert (point.rate, point.max_concurrency) == (0.0, 4)


def test_aiperf_with_every_request() -> None:
    theirs = json.loads(AIPERF.read_text())
    lines = [json.loads(line) for line in AIPERF_LINES.read_text().splitlines()]
    (point,) = read_results(AIPERF_LINES, parse_slo("ttft p50 < 10ms"))
    assert (point.offered, point.ok, point.failed, point.rejected) == (20, 13, 0, 7)
    assert point.causes == {"http_503": 7}
    good = [line["metadata"] for line in lines if not line.get("error")]
    late_ms = float(np.mean([one["request_start_ns"] - one["credit_issued_ns"] for one in good])) / 1e6
    asked = theirs["time_to_first_token"]["avg"] + late_ms
    assert point.ttft_ms.mean_finite == pytest.approx(asked, abs=0.01)
    assert point.itl_ms.mean_finite == pytest.approx(theirs["inter_chunk_latency"]["avg"], abs=0.001)
    assert point.itl_ms.n == theirs["inter_chunk_latency"]["count"]
    assert point.e2e_ms.mean_finite == pytest.approx(theirs["request_latency"]["avg"] + late_ms, abs=0.1)
    assert (point.output_tokens_mean, point.judged[0].holds) == (16, False)


def test_aiperf_warmup_and_what_was_cancelled(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in AIPERF_LINES.read_text().splitlines()]
    good = [line for line in lines if not line.get("error")]
    good[0]["metadata"]["benchmark_phase"] = "warmup"
    good[1]["metadata"]["was_cancelled"] = True
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    (point,) = read_results(path)
    assert (point.offered, point.ok, point.rejected, point.censored) == (19, 11, 7, 1)


@given(number=st.integers(0, 19), where=st.integers(0, 60), value=values)
@settings(max_examples=100)
def test_damaged_requests_are_an_input_error(
    tmp_path_factory: Any, number: int, where: int, value: Any
) -> None:
    whole, benchmark = of_guidellm()
    every = benchmark["requests"]["successful"] + benchmark["requests"]["errored"]
    lines = [json.loads(line) for line in AIPERF_LINES.read_text().splitlines()]
    for one in (every[number], every[number]["info"], every[number]["info"]["timings"]):
        damage(one, where, value)
    for one in (lines[number], lines[number]["metadata"], lines[number]["metrics"]):
        damage(one, where, value)
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "x.json").write_text(json.dumps(whole))
    (folder / "x.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    for path in folder.iterdir():
        with contextlib.suppress(InputError):
            assert read_results(path)


def damage(record: dict[str, Any], where: int, value: Any) -> None:
    names = sorted(record)
    if where < len(names):
        record[names[where]] = value
