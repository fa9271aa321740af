"""A measured point in the JSON layout of `vllm bench serve --save-result`, for scripts that read that.

Keys and definitions are those of vLLM 0.32 (benchmarks/serve.py): percentiles are of completed requests only,
in milliseconds; `itls` are gaps between chunks. One definition is ours: times count from the instant a
request was due, not from its send. What the layout cannot say (failures as infinitely slow, verdicts) stands
under `knee`.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from knee.core.point import Point
from knee.core.requests import NEVER, RequestRecord
from knee.core.units import NS_PER_S
from knee.measure.target import TargetInfo
from knee.workload.spec import Arrivals

SHARES = (50, 90, 95, 99)


def vllm_result(
    point: Point, records: Sequence[RequestRecord], info: TargetInfo, arrivals: Arrivals, wall_ns: int
) -> dict[str, Any]:
    """The result of `point` from the records of its requests; `wall_ns` is when it was measured."""
    chosen = [r for r in records if point.window_start_ns <= r.due_ns < point.window_end_ns]
    chosen.sort(key=lambda record: record.due_ns)
    done = [record for record in chosen if record.outcome == "ok"]
    seconds = (point.window_end_ns - point.window_start_ns) / NS_PER_S
    tokens_in, tokens_out = (sum(r.prompt_tokens for r in done), sum(r.output_tokens for r in done))
    ttfts = [(r.first_ns - r.due_ns) / NS_PER_S if r.first_ns != NEVER else 0.0 for r in chosen]
    latencies = [(r.last_ns - r.due_ns) / NS_PER_S if r.last_ns != NEVER else 0.0 for r in chosen]
    return {
        "date": datetime.fromtimestamp(wall_ns / NS_PER_S, UTC).strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": "vllm",
        "backend": "vllm",
        "label": None,
        "model_id": info.model,
        "tokenizer_id": info.model,
        "num_prompts": len(chosen),
        "request_rate": point.rate if point.max_concurrency is None else "inf",
        "burstiness": arrivals.burstiness,
        "max_concurrency": point.max_concurrency,
        "duration": seconds,
        "completed": len(done),
        "failed": len(chosen) - len(done),
        "total_input_tokens": tokens_in,
        "total_output_tokens": tokens_out,
        "request_throughput": len(done) / seconds,
        "request_goodput": None,
        "output_throughput": tokens_out / seconds,
        "total_token_throughput": (tokens_in + tokens_out) / seconds,
        "input_lens": [r.prompt_tokens for r in chosen],
        "output_lens": [r.output_tokens for r in chosen],
        "ttfts": ttfts,
        "itls": [[ns / NS_PER_S for ns in r.gap_ns] for r in chosen],
        "latencies": latencies,
        "start_times": [r.due_ns / NS_PER_S for r in chosen],
        "queue_times": [max(0, r.sent_ns - r.due_ns) / NS_PER_S for r in chosen],
        "generated_texts": [""] * len(chosen),
        "errors": [r.cause or ("" if r.outcome == "ok" else r.outcome) for r in chosen],
        "max_output_tokens_per_s": _most_tokens(done),
        "max_concurrent_requests": _most_open(chosen),
        "rtfx": 0.0,
        **_statistics("ttft", [t for t, r in zip(ttfts, chosen, strict=True) if r.outcome == "ok"]),
        **_statistics("tpot", [tpot for r in done if (tpot := _tpot(r)) is not None]),
        **_statistics("itl", [ns / NS_PER_S for r in done for ns in r.gap_ns]),
        **_statistics("e2el", [t for t, r in zip(latencies, chosen, strict=True) if r.outcome == "ok"]),
        "knee": point,
    }


def _statistics(name: str, seconds: Sequence[float]) -> dict[str, float]:
    """Mean, median, deviation and percentiles in milliseconds; zeros without samples, as vLLM writes them."""
    values = np.array(seconds or [0.0]) * 1_000
    return {
        f"mean_{name}_ms": float(values.mean()),
        f"median_{name}_ms": float(np.median(values)),
        f"std_{name}_ms": float(values.std()),
        **{f"p{share}_{name}_ms": float(np.percentile(values, share)) for share in SHARES},
    }


def _tpot(record: RequestRecord) -> float | None:
    later = record.output_tokens - 1
    return (record.last_ns - record.first_ns) / NS_PER_S / later if later > 0 else None


def _most_tokens(done: Sequence[RequestRecord]) -> float:
    """The most output tokens in any second of the point."""
    seconds: Counter[int] = Counter()
    for record in done:
        at_ns = record.first_ns
        seconds[at_ns // NS_PER_S] += record.first_tokens
        for gap_ns, tokens in zip(record.gap_ns, record.gap_tokens, strict=True):
            at_ns += gap_ns
            seconds[at_ns // NS_PER_S] += tokens
    return float(max(seconds.values(), default=0))


def _most_open(chosen: Sequence[RequestRecord]) -> int:
    """The most requests under way at one instant."""
    steps = sorted(
        [(r.due_ns, 1) for r in chosen if r.end_ns != NEVER]
        + [(r.end_ns, -1) for r in chosen if r.end_ns != NEVER]
    )
    most = now = 0
    for _, step in steps:
        now += step
        most = max(most, now)
    return most
