"""Results in the layout of `vllm bench serve`, and results of other tools as points."""

import contextlib
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.measure.test_live_load import mixed
from tests.scripted_server import scripted

from knee.cli.main import run
from knee.core.errors import InputError
from knee.core.point import Point
from knee.core.slo import parse_slo
from knee.measure.foreign import read_results

BENCH = Path(__file__).parents[2].parent / "shared" / "captures" / "bench"
DETAIL = (
    "input_lens",
    "output_lens",
    "ttfts",
    "itls",
    "latencies",
    "start_times",
    "errors",
    "generated_texts",
)


def saved(tmp_path: Path, value: Any) -> Path:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(value))
    return path


@pytest.mark.parametrize("name", sorted(path.name for path in BENCH.glob("*.json")))
def test_recorded_results_of_vllm(name: str) -> None:
    """Where nothing failed, our percentiles are those that vLLM wrote, within interpolation."""
    theirs = json.loads((BENCH / name).read_text())
    (point,) = read_results(BENCH / name)
    assert (point.rate, point.ok, point.failed) == (
        theirs["request_rate"],
        theirs["completed"],
        theirs["failed"],
    )
    assert point.offered == theirs["num_prompts"]
    assert point.served_rate == pytest.approx(theirs["request_throughput"], rel=0.02)
    if point.failed == 0:
        for ours, key in ((point.ttft_ms, "ttft"), (point.itl_ms, "itl"), (point.e2e_ms, "e2el")):
            assert ours.p50 == pytest.approx(theirs[f"p50_{key}_ms"], rel=0.05)
            assert ours.p95 == pytest.approx(theirs[f"p95_{key}_ms"], rel=0.06)
    else:
        assert point.ttft_ms.p90 is None  # 46 of 350 failed: 13%
        assert point.ttft_ms.n_infinite == point.failed


def test_a_summary_only_file_counts_failures_too(tmp_path: Path) -> None:
    theirs = json.loads((BENCH / "seqs4-r35.json").read_text())
    (point,) = read_results(saved(tmp_path, {k: v for k, v in theirs.items() if k not in DETAIL}))
    assert point.ttft_ms.p50 == theirs["p50_ttft_ms"]
    assert point.ttft_ms.p95 is None  # not vLLM's 2,216 ms: 13% never came
    assert point.ttft_ms.p99 is None
    assert (point.offered, point.ok, point.failed) == (350, 304, 46)


GUIDELLM = {
    "metadata": {"guidellm_version": "0.5.2"},
    "benchmarks": [
        {
            "duration": 60.0,
            "config": {"strategy": {"type_": "constant", "rate": 10.0}},
            "metrics": {
                "request_totals": {"successful": 586, "errored": 0, "incomplete": 23, "total": 609},
                "requests_per_second": {"successful": {"mean": 9.8}},
                "time_to_first_token_ms": {
                    "successful": {
                        "mean": 1_006.2,
                        "percentiles": {"p50": 1_005.9, "p90": 1_011.0, "p95": 1_012.0, "p99": 1_020.0},
                    }
                },
                "inter_token_latency_ms": {
                    "successful": {"mean": 8.0, "percentiles": {"p50": 8.0, "p99": 9.5}}
                },
                "request_latency": {"successful": {"mean": 2.0, "percentiles": {"p50": 2.0, "p95": 2.1}}},
                "prompt_token_count": {"successful": {"mean": 128.0}},
                "output_token_count": {"successful": {"mean": 127.0}},
            },
        }
    ],
}
AIPERF = {
    "schema_version": "1.1",
    "request_throughput": {"unit": "requests/sec", "avg": 20.0},
    "request_count": {"unit": "requests", "avg": 1_188.0},
    "error_request_count": {"unit": "requests", "avg": 12.0},
    "time_to_first_token": {"unit": "ms", "avg": 50.0, "p50": 49.0, "p90": 60.0, "p95": 70.0, "p99": 90.0},
    "inter_token_latency": {"unit": "ms", "avg": 10.0, "p50": 10.0, "p99": 11.0},
    "request_latency": {"unit": "ms", "avg": 500.0, "p50": 490.0, "p99": 900.0},
    "input_sequence_length": {"unit": "tokens", "avg": 100.0},
    "output_sequence_length": {"unit": "tokens", "avg": 40.0},
}


def test_guidellm(tmp_path: Path) -> None:
    (point,) = read_results(saved(tmp_path, GUIDELLM))
    assert (point.rate, point.served_rate) == (10.0, 9.8)
    assert (point.offered, point.ok, point.failed, point.censored) == (609, 586, 0, 23)
    assert (point.ttft_ms.p50, point.ttft_ms.p95) == (1_005.9, 1_012.0)
    assert point.ttft_ms.p99 is None  # 23 of 609 were cut off: 3.8%
    assert point.e2e_ms.p50 == 2_000.0
    assert "p90" in point.e2e_ms.unsupported


def test_aiperf(tmp_path: Path) -> None:
    (point,) = read_results(saved(tmp_path, AIPERF))
    assert (point.offered, point.ok, point.failed) == (1_200, 1_188, 12)
    assert (point.ttft_ms.p50, point.ttft_ms.p99) == (49.0, 90.0)
    assert point.output_tokens_per_s == 800
    assert "AIPerf" in point.notes[0]


def test_our_result_reads_as_one_of_vllm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = tmp_path / "r.json"
    with scripted(mixed) as server:
        arguments = [
            "--rate",
            "100",
            "--prompt",
            "40",
            "--output",
            "5",
            "--duration",
            "1s",
            "--warmup",
            "200ms",
        ]
        run(["bench", server.url, *arguments, "--save-result", str(result), "--json"])
    point = msgspec.json.decode(capsys.readouterr().out, type=Point)
    ours = json.loads(result.read_text())
    theirs = json.loads((BENCH / "quiet-r20.json").read_text())
    assert set(theirs) <= set(ours)
    for key, value in theirs.items():
        if value is not None and ours[key] is not None:
            assert isinstance(ours[key], type(value)) or {type(ours[key]), type(value)} == {int, float}, key
    assert (ours["completed"], ours["num_prompts"]) == (point.ok, point.offered)
    assert ours["failed"] == point.failed + point.rejected + point.censored
    assert len(ours["ttfts"]) == len(ours["errors"]) == len(ours["itls"]) == ours["num_prompts"]
    assert sum(bool(error) for error in ours["errors"]) == ours["failed"]
    assert ours["p50_ttft_ms"] == pytest.approx(
        np.percentile([t for t, e in zip(ours["ttfts"], ours["errors"], strict=True) if not e], 50) * 1e3
    )
    assert ours["knee"]["offered"] == point.offered
    (again,) = read_results(result, parse_slo("ttft p95 < 1s"))
    assert (again.offered, again.ok) == (point.offered, point.ok)
    assert again.ttft_ms.p95 is None
    assert again.judged[0].holds is False
    assert run(["import", str(result), str(BENCH / "quiet-r20.json")]) == 0
    assert "18.9" in capsys.readouterr().out
    assert run(["import", str(tmp_path)]) == 3


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "null", '{"benchmarks": []}', '{"benchmarks": [{}]}', "not json"]
)
def test_what_is_no_result(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(InputError):
        read_results(path)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(base=st.sampled_from([GUIDELLM, AIPERF]), key=st.integers(0, 20), value=values)
@settings(max_examples=150, deadline=None)
def test_a_damaged_file_is_an_input_error(
    tmp_path_factory: Any, base: dict[str, Any], key: int, value: Any
) -> None:
    damaged = json.loads(json.dumps(base))
    where = damaged["benchmarks"][0]["metrics"] if "benchmarks" in damaged else damaged
    where[sorted(where)[key % len(where)]] = value
    path = tmp_path_factory.mktemp("damaged") / "x.json"
    path.write_text(json.dumps(damaged))
    with contextlib.suppress(InputError):
        assert read_results(path)
