"""Result files of other benchmark tools, read as points.

Their percentiles are of successful requests only and count from the send. Where a file holds every request
(`vllm bench serve --save-detailed`, GuideLLM, AIPerf's `profile_export.jsonl`), the point is made anew, with
failures as infinitely slow. Where it holds only percentiles, one that lies among the failures is unbounded,
the others stand as they are, and a note says so.
"""

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from knee.core.errors import InputError
from knee.core.point import Point, Summary
from knee.core.slo import Slo
from knee.core.units import NS_PER_S
from knee.measure.foreign_requests import (
    REFUSALS,
    aiperf_point,
    cause_of,
    clients_of,
    guidellm_point,
    rate_of,
    vllm_point,
)

SHARES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
SUCCESSES = "percentiles are of successful requests only, counted from the send"


class Latencies(NamedTuple):
    """The four distributions of a point."""

    ttft: Summary
    itl: Summary
    tpot: Summary
    e2e: Summary


def read_results(path: Path, slo: Slo | None = None) -> list[Point]:
    """The points in a result file of `vllm bench serve`, GuideLLM or AIPerf.

    Only a file with every request can be judged by `slo`.

    Raises:
        InputError: the file cannot be read, or is of none of these.
    """
    data = _decoded(path)
    try:
        if isinstance(data, list):
            return [aiperf_point(data, slo)]
        if "request_throughput" in data and "completed" in data:
            detailed = all(data.get(name) for name in ("ttfts", "latencies", "start_times", "errors"))
            return [vllm_point(data, slo) if detailed else _vllm(data)]
        if isinstance(data.get("benchmarks"), list) and data["benchmarks"]:
            return [guidellm_point(one, slo) or _guidellm(one) for one in data["benchmarks"]]
        if isinstance(data.get("request_throughput"), dict):
            return [_aiperf(data)]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(f"{path} is not as its tool writes it: {error!r}", _KNOWN) from error
    raise InputError(f"{path} holds no result of a known tool", _KNOWN)


def _decoded(path: Path) -> dict[str, Any] | list[dict[str, Any]]:
    """The JSON object in a file, or the objects of JSON lines.

    Raises:
        InputError: the file cannot be read, or holds neither.
    """
    try:
        text = path.read_bytes()
        data = msgspec.json.decode(text)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (msgspec.DecodeError, RecursionError) as error:
        try:
            return msgspec.json.Decoder(dict[str, Any]).decode_lines(text)
        except (msgspec.MsgspecError, RecursionError):
            raise InputError(f"{path} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise InputError(f"{path} holds no result of a known tool", _KNOWN)
    return data


def _vllm(data: dict[str, Any]) -> Point:
    completed, failed = int(data["completed"]), int(data.get("failed") or 0)

    def summary(name: str) -> Summary:
        found = {share: data.get(f"{share}_{name}_ms") for share in SHARES}
        found["p50"] = found["p50"] or data.get(f"median_{name}_ms")
        return _summary(found, data.get(f"mean_{name}_ms"), completed, failed)

    return _point(
        rate=rate_of(data["request_rate"]),
        served=float(data["request_throughput"]),
        seconds=float(data["duration"]),
        books=Counted(completed, failed, 0, 0, _causes(failed)),
        latencies=Latencies(*(summary(name) for name in ("ttft", "itl", "tpot", "e2el"))),
        tokens=(data["total_input_tokens"] / completed, data["total_output_tokens"] / completed)
        if completed
        else (0.0, 0.0),
        max_concurrency=data.get("max_concurrency"),
        note=f"from vllm bench serve: {SUCCESSES}",
    )


def _guidellm(benchmark: dict[str, Any]) -> Point:
    metrics = benchmark["metrics"]
    totals = metrics["request_totals"]
    ok, failed, open_still = (int(totals[name]) for name in ("successful", "errored", "incomplete"))

    def summary(name: str, scale: float = 1.0) -> Summary:
        block = metrics.get(name, {}).get("successful") or {}
        shares = block.get("percentiles") or {}
        found = {share: _scaled(shares.get(share), scale) for share in SHARES}
        return _summary(found, _scaled(block.get("mean"), scale), ok, failed + open_still)

    def mean(name: str) -> float:
        return float((metrics.get(name, {}).get("successful") or {}).get("mean") or 0.0)

    strategy = benchmark.get("config", {}).get("strategy", {})
    return _point(
        rate=float(strategy.get("rate") or 0.0),
        served=mean("requests_per_second"),
        seconds=float(benchmark.get("duration") or 0.0),
        books=Counted(ok, failed, 0, open_still, _causes(failed)),
        latencies=Latencies(
            summary("time_to_first_token_ms"),
            summary("inter_token_latency_ms"),
            summary("inter_token_latency_ms"),  # "time_per_output_token_ms" holds the wait for the first too
            summary("request_latency", 1_000.0),
        ),
        tokens=(mean("prompt_token_count"), mean("output_token_count")),
        max_concurrency=clients_of(strategy),
        note=f"from GuideLLM, whose ITL is the mean of each request: {SUCCESSES}",
    )


def _aiperf(data: dict[str, Any]) -> Point:
    def average(name: str) -> float:
        return float((data.get(name) or {}).get("avg") or 0.0)

    causes = Counter[str]()
    for error in data.get("error_summary") or ():
        causes[cause_of(error["error_details"].get("code"))] += int(error["count"])
    ok, lost = int(average("request_count")), int(average("error_request_count"))
    rejected = min(lost, sum(causes[refusal] for refusal in REFUSALS))

    def summary(name: str) -> Summary:
        block = data.get(name) or {}
        scale = {"ms": 1.0, "s": 1_000.0, "sec": 1_000.0, "us": 0.001, "ns": 1e-6}[block.get("unit", "ms")]
        shares = data.get(f"adj_{name}") or block  # "adj": failures count as infinite, as here
        found = {share: _scaled(shares.get(share), scale) for share in SHARES}
        return _summary(found, _scaled(block.get("avg"), scale), ok, lost)

    phases = (data.get("input_config") or {}).get("phases") or [{}]
    load = next((phase for phase in phases if phase.get("kind") == "profiling"), phases[-1])
    served = average("request_throughput")
    counted, told = average("output_sequence_length"), average("usage_completion_tokens")
    note = "from AIPerf: latencies count from the send, ITL is of chunks"
    if told and told != counted:
        note += f"; TPOT is of {counted:.1f} tokens an answer, where the server counted {told:.1f}"
    return _point(
        rate=float(load.get("rate") or 0.0),
        served=served,
        seconds=average("benchmark_duration") or (ok / served if served else 0.0),
        books=Counted(ok, lost - rejected, rejected, 0, dict(causes)),
        latencies=Latencies(
            summary("time_to_first_token"),
            summary("inter_chunk_latency" if "inter_chunk_latency" in data else "inter_token_latency"),
            summary("inter_token_latency"),
            summary("request_latency"),
        ),
        tokens=(average("usage_prompt_tokens") or average("input_sequence_length"), told or counted),
        max_concurrency=load.get("concurrency") if load.get("type") == "concurrency" else None,
        note=note,
    )


class Counted(NamedTuple):
    """What became of the requests, and why some were not answered."""

    ok: int
    failed: int
    rejected: int
    censored: int
    causes: dict[str, int]


def _point(
    *,
    rate: float,
    served: float,
    seconds: float,
    books: Counted,
    latencies: Latencies,
    tokens: tuple[float, float],
    max_concurrency: int | None,
    note: str,
) -> Point:
    offered = books.ok + books.failed + books.rejected + books.censored
    return Point(
        rate=rate,
        attained_rate=offered / seconds if seconds else 0.0,
        served_rate=served,
        seed=0,
        window_start_ns=0,
        window_end_ns=round(seconds * NS_PER_S),
        spent_ns=round(seconds * NS_PER_S),
        offered=offered,
        ok=books.ok,
        failed=books.failed,
        rejected=books.rejected,
        censored=books.censored,
        ttft_ms=latencies.ttft,
        itl_ms=latencies.itl,
        tpot_ms=latencies.tpot,
        e2e_ms=latencies.e2e,
        send_lag_ms=Summary(n=0, unsupported=tuple(SHARES)),
        output_tokens_per_s=served * tokens[1],
        prompt_tokens_mean=tokens[0],
        output_tokens_mean=tokens[1],
        causes=books.causes,
        notes=(note,),
        max_concurrency=max_concurrency,
    )


def _summary(found: dict[str, float | None], mean: float | None, ok: int, lost: int) -> Summary:
    """Percentiles of successes; those that the `lost` requests push beyond every success are unbounded."""
    offered = ok + lost
    missing = tuple(name for name, value in found.items() if value is None)
    unbounded = {name for name, share in SHARES.items() if offered and share > ok / offered}
    kept = {
        name: None if name in unbounded or value is None else float(value) for name, value in found.items()
    }
    return Summary(
        n=offered,
        n_infinite=lost,
        mean_finite=None if mean is None else float(mean),
        unsupported=tuple(name for name in missing if name not in unbounded),
        **kept,
    )


def _causes(failed: int) -> dict[str, int]:
    return {"failed": failed} if failed else {}


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else float(value) * scale


_KNOWN = (
    "known: vllm bench serve --save-result, GuideLLM benchmarks.json,"
    " AIPerf profile_export_aiperf.json and profile_export.jsonl"
)
