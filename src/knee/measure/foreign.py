"""Result files of other benchmark tools, read as points.

Their percentiles are of successful requests only and count from the send. Where a file holds every request
(`vllm bench serve --save-detailed`), the point is made anew, with failures as infinitely slow. Where it holds
only percentiles, one that lies among the failures is unbounded, the others stand as they are, and a note says
so.
"""

from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from knee.core.errors import InputError
from knee.core.point import Point, Summary
from knee.core.requests import FAILED, NEVER, OK, Gaps, Observed, column
from knee.core.slo import Slo
from knee.core.units import NS_PER_S
from knee.measure.point import make_point
from knee.measure.target import Measured, Offer
from knee.workload.spec import Lengths, Workload

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
    try:
        data = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise InputError(f"{path} holds no result of a known tool", _KNOWN)
    try:
        if "request_throughput" in data and "completed" in data:
            detailed = all(data.get(name) for name in ("ttfts", "latencies", "start_times", "errors"))
            return [_vllm_detailed(data, slo) if detailed else _vllm(data)]
        if isinstance(data.get("benchmarks"), list) and data["benchmarks"]:
            return [_guidellm(benchmark) for benchmark in data["benchmarks"]]
        if isinstance(data.get("request_throughput"), dict):
            return [_aiperf(data)]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(f"{path} is not as its tool writes it: {error!r}", _KNOWN) from error
    raise InputError(f"{path} holds no result of a known tool", _KNOWN)


def _vllm_detailed(data: dict[str, Any], slo: Slo | None) -> Point:
    begun = min(data["start_times"])
    due = column([round((at - begun) * NS_PER_S) for at in data["start_times"]])
    ok = np.array([not error for error in data["errors"]])
    waits, spans = (_ns(data[name]) for name in ("ttfts", "latencies"))
    gap_ns, gap_at = [], []
    for start, wait, gaps, good in zip(due.tolist(), waits.tolist(), data["itls"], ok.tolist(), strict=True):
        at = start + wait
        for gap in gaps if good else ():
            at += round(gap * NS_PER_S)
            gap_ns.append(round(gap * NS_PER_S))
            gap_at.append(at)
    order = np.argsort(column(gap_at), kind="stable")
    outputs = column(data["output_lens"])
    end_ns = int((due + spans).max()) + 1
    observed = Observed(
        due_ns=due,
        sent_ns=due,
        first_ns=np.where(ok, due + waits, NEVER),
        last_ns=np.where(ok, due + spans, NEVER),
        end_ns=due + spans,
        outcome=np.where(ok, OK, FAILED).astype(np.int8),
        prompt_tokens=column(data["input_lens"]),
        asked_tokens=outputs,
        output_tokens=outputs * ok,
        first_tokens=np.minimum(1, outputs),
        gaps=Gaps(ns=column(gap_ns)[order], count=np.ones_like(order), at_ns=column(gap_at)[order]),
        end_of_load_ns=end_ns,
        causes={"failed": int((~ok).sum())} if not ok.all() else {},
    )
    lengths = [Lengths(mean=max(1.0, float(np.mean(data[name])))) for name in ("input_lens", "output_lens")]
    offer = Offer(
        workload=Workload(prompt_tokens=lengths[0], output_tokens=lengths[1]),
        rate=_rate(data["request_rate"]),
        seed=0,
        warmup_ns=0,
        window_ns=end_ns,
        drain_ns=0,
        max_concurrency=data.get("max_concurrency"),
    )
    notes = ("from vllm bench serve, all requests: latencies count from the send, chunks as tokens",)
    return make_point(Measured(observed=observed, spent_ns=end_ns), offer, slo, notes=notes)


def _vllm(data: dict[str, Any]) -> Point:
    completed, failed = int(data["completed"]), int(data.get("failed") or 0)

    def summary(name: str) -> Summary:
        found = {share: data.get(f"{share}_{name}_ms") for share in SHARES}
        found["p50"] = found["p50"] or data.get(f"median_{name}_ms")
        return _summary(found, data.get(f"mean_{name}_ms"), completed, failed)

    return _point(
        rate=_rate(data["request_rate"]),
        served=float(data["request_throughput"]),
        seconds=float(data["duration"]),
        books=(completed, failed, 0),
        latencies=Latencies(*(summary(name) for name in ("ttft", "itl", "tpot", "e2el"))),
        tokens=(data["total_input_tokens"] / completed, data["total_output_tokens"] / completed)
        if completed
        else (0.0, 0.0),
        max_concurrency=data.get("max_concurrency"),
        tool="vllm bench serve",
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
        books=(ok, failed, open_still),
        latencies=Latencies(
            summary("time_to_first_token_ms"),
            summary("inter_token_latency_ms"),
            summary("time_per_output_token_ms"),
            summary("request_latency", 1_000.0),
        ),
        tokens=(mean("prompt_token_count"), mean("output_token_count")),
        max_concurrency=strategy.get("streams") or strategy.get("max_concurrency"),
        tool="GuideLLM, whose ITL is the mean of each request",
    )


def _aiperf(data: dict[str, Any]) -> Point:
    def average(name: str) -> float:
        return float((data.get(name) or {}).get("avg") or 0.0)

    ok, failed = int(average("request_count")), int(average("error_request_count"))

    def summary(name: str) -> Summary:
        block = data.get(name) or {}
        scale = {"ms": 1.0, "s": 1_000.0, "sec": 1_000.0, "us": 0.001, "ns": 1e-6}[block.get("unit", "ms")]
        found = {share: _scaled(block.get(share), scale) for share in SHARES}
        return _summary(found, _scaled(block.get("avg"), scale), ok, failed)

    served = average("request_throughput")
    return _point(
        rate=0.0,
        served=served,
        seconds=average("benchmark_duration") or (ok / served if served else 0.0),
        books=(ok, failed, 0),
        latencies=Latencies(
            summary("time_to_first_token"),
            summary("inter_token_latency"),
            summary("inter_token_latency"),
            summary("request_latency"),
        ),
        tokens=(average("input_sequence_length"), average("output_sequence_length")),
        max_concurrency=None,
        tool="AIPerf, whose ITL is the mean of each request; the rate asked is not in its file",
    )


def _point(
    *,
    rate: float,
    served: float,
    seconds: float,
    books: tuple[int, int, int],
    latencies: Latencies,
    tokens: tuple[float, float],
    max_concurrency: int | None,
    tool: str,
) -> Point:
    ok, failed, censored = books
    return Point(
        rate=rate,
        attained_rate=sum(books) / seconds if seconds else 0.0,
        served_rate=served,
        seed=0,
        window_start_ns=0,
        window_end_ns=round(seconds * NS_PER_S),
        spent_ns=round(seconds * NS_PER_S),
        offered=sum(books),
        ok=ok,
        failed=failed,
        rejected=0,
        censored=censored,
        ttft_ms=latencies.ttft,
        itl_ms=latencies.itl,
        tpot_ms=latencies.tpot,
        e2e_ms=latencies.e2e,
        send_lag_ms=Summary(n=0, unsupported=tuple(SHARES)),
        output_tokens_per_s=served * tokens[1],
        prompt_tokens_mean=tokens[0],
        output_tokens_mean=tokens[1],
        causes={"failed": failed} if failed else {},
        notes=(f"from {tool}: {SUCCESSES}",),
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


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else float(value) * scale


def _rate(value: Any) -> float:
    """The rate asked; "inf", as vLLM writes where all requests are sent at once, is none."""
    return 0.0 if value in ("inf", None) else float(value)


def _ns(seconds: list[float]) -> Any:
    return column([round(value * NS_PER_S) for value in seconds])


_KNOWN = "known: vllm bench serve --save-result, GuideLLM benchmarks.json, AIPerf profile_export_aiperf.json"
