"""Points made anew from result files of other tools that hold every request: failures are infinitely slow."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from knee.core.point import Point
from knee.core.requests import CENSORED, FAILED, NEVER, OK, REJECTED, Gaps, Ints, Observed, column
from knee.core.slo import Slo
from knee.core.units import NS_PER_S
from knee.measure.point import make_point
from knee.measure.target import Measured, Offer
from knee.workload.spec import Lengths, Workload

SCHEDULED = ("constant", "poisson")
"""GuideLLM's strategies with a schedule of their own; others target "now" as soon as there is room."""
KINDS = {"successful": OK, "errored": FAILED, "incomplete": CENSORED}
"""GuideLLM's lists of requests."""
REFUSALS = ("http_503", "http_429")
_STATUS = re.compile(r"error '(\d{3}) ")
"""How httpx, under GuideLLM, names a status: "Server error '503 Service Unavailable' for url …"."""


class Row(NamedTuple):
    """One request; instants in seconds of any clock, None where absent, gaps in seconds."""

    due: float
    sent: float
    first: float | None
    last: float | None
    end: float | None
    outcome: int
    prompt_tokens: int
    output_tokens: int
    gaps: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    cause: str = ""


def vllm_point(data: dict[str, Any], slo: Slo | None) -> Point:
    """The point of a file of `vllm bench serve --save-detailed`. It knows no schedule: due is sent."""
    names = ("start_times", "ttfts", "latencies", "itls", "errors", "input_lens", "output_lens")
    rows = [
        Row(
            start,
            start,
            None if error else start + wait,
            None if error else start + span,
            start + span,
            FAILED if error else OK,
            prompt,
            output,
            () if error else tuple(gaps),
            () if error else (1,) * len(gaps),
            "failed" if error else "",
        )
        for start, wait, span, gaps, error, prompt, output in zip(
            *(data[name] for name in names), strict=True
        )
    ]
    notes = ("from vllm bench serve, all requests: latencies count from the send, chunks as tokens",)
    return _made(rows, rate_of(data["request_rate"]), data.get("max_concurrency"), slo, notes)


def rate_of(asked: Any) -> float:
    """The rate asked; "inf", as vLLM writes where all requests are sent at once, is none."""
    return 0.0 if asked in ("inf", None) else float(asked)


def guidellm_point(benchmark: dict[str, Any], slo: Slo | None) -> Point | None:
    """The point of a benchmark of GuideLLM; None where the file does not hold all requests.

    Where its strategy had a schedule, latencies count from that. Of the gaps between tokens it keeps the mean
    of each request only.
    """
    held, totals = benchmark.get("requests") or {}, benchmark["metrics"]["request_totals"]
    strategy = benchmark["config"]["strategy"]
    scheduled = strategy["type_"] in SCHEDULED
    rows = [_guidellm_row(one, kind, scheduled) for kind in KINDS for one in held.get(kind) or ()]
    if not rows or len(rows) != sum(int(totals[kind]) for kind in KINDS):
        return None
    counted = "from the scheduled instant" if scheduled else "from the send"
    notes = (f"from GuideLLM, all requests: latencies count {counted}, ITL is the mean of each request",)
    return _made(rows, float(strategy.get("rate") or 0.0), clients_of(strategy), slo, notes)


def aiperf_point(lines: list[dict[str, Any]], slo: Slo | None) -> Point:
    """The point of AIPerf's `profile_export.jsonl`.

    Latencies count from its credits, which follow its schedule unless a cap on what is in flight holds them.

    Raises:
        KeyError: the lines are something else, or none is of the measured phase.
    """
    rows = [_aiperf_row(one) for one in lines if one["metadata"]["benchmark_phase"] == "profiling"]
    if not rows:
        raise KeyError("profiling")
    notes = ("from AIPerf, all requests: latencies count from its credits, ITL is of chunks",)
    return _made(rows, 0.0, None, slo, notes)


def _aiperf_row(line: dict[str, Any]) -> Row:
    when, metrics, error = line["metadata"], line["metrics"], line.get("error")

    def value(name: str) -> Any:
        return (metrics.get(name) or {}).get("value")

    cause = cause_of(error.get("code")) if error else ""
    outcome = (
        CENSORED if when["was_cancelled"] else (REJECTED if cause in REFUSALS else FAILED if error else OK)
    )
    sent, wait = when["request_start_ns"] / NS_PER_S, value("time_to_first_token")
    first = None if wait is None else sent + wait / 1e3
    gaps = tuple(gap / 1e3 for gap in value("inter_chunk_latency") or ())
    return Row(
        when["credit_issued_ns"] / NS_PER_S,
        sent,
        first,
        None if first is None else first + sum(gaps),
        None if outcome == CENSORED else when["request_end_ns"] / NS_PER_S,
        outcome,
        int(value("usage_prompt_tokens") or value("input_sequence_length") or value("error_isl") or 0),
        int(value("usage_completion_tokens") or value("output_sequence_length") or 0),
        gaps,
        (1,) * len(gaps),
        cause,
    )


def clients_of(strategy: dict[str, Any]) -> int | None:
    """The clients of a closed loop of GuideLLM; its open loops have a cap of that name too, of 10,240."""
    if strategy.get("type_") in SCHEDULED:
        return None
    return strategy.get("streams") or strategy.get("max_concurrency")


def cause_of(status: Any) -> str:
    """The cause in our books for an HTTP status, or for something else that went wrong."""
    return f"http_{status}" if isinstance(status, int) and 400 <= status < 600 else "failed"


def _guidellm_row(request: dict[str, Any], kind: str, scheduled: bool) -> Row:
    found = _STATUS.search(request["info"].get("error") or "")
    cause = cause_of(int(found[1]) if found else None) if kind == "errored" else ""
    times = request["info"]["timings"]
    sent = times["request_start"] or times["resolve_start"] or times["targeted_start"]
    first, last = times["first_token_iteration"], times["last_token_iteration"]
    tokens = int(request["output_tokens"] or 0)
    many = first is not None and last is not None and tokens > 1
    return Row(
        (times["targeted_start"] if scheduled else None) or sent,
        sent,
        first,
        last,
        None if kind == "incomplete" else times["request_end"] or times["resolve_end"],
        REJECTED if cause in REFUSALS else KINDS[kind],
        int(request["prompt_tokens"] or 0),
        tokens,
        ((last - first) / (tokens - 1),) if many else (),
        (tokens - 1,) if many else (),
        cause,
    )


def _made(
    rows: list[Row], rate: float, max_concurrency: int | None, slo: Slo | None, notes: tuple[str, ...]
) -> Point:
    """The point of all requests in `rows`, with the first of them due at 0."""
    rows.sort(key=lambda row: row.due)
    begun = rows[0].due

    def instants(values: Iterable[float | None]) -> Ints:
        return column([NEVER if v is None else round((v - begun) * NS_PER_S) for v in values])

    outputs = column([row.output_tokens for row in rows])
    due, end = instants(row.due for row in rows), instants(row.end for row in rows)
    end_ns = int(max(due.max(), end.max())) + 1
    observed = Observed(
        due_ns=due,
        sent_ns=instants(row.sent for row in rows),
        first_ns=instants(row.first for row in rows),
        last_ns=instants(row.last for row in rows),
        end_ns=end,
        outcome=np.array([row.outcome for row in rows], dtype=np.int8),
        prompt_tokens=column([row.prompt_tokens for row in rows]),
        asked_tokens=outputs,
        output_tokens=outputs * (instants(row.first for row in rows) != NEVER),
        first_tokens=np.minimum(1, outputs),
        gaps=_gaps(rows, begun),
        end_of_load_ns=end_ns,
        causes=dict(Counter(row.cause for row in rows if row.cause)),
    )
    lengths = [Lengths(mean=max(1.0, float(np.mean(values)))) for values in (observed.prompt_tokens, outputs)]
    offer = Offer(
        workload=Workload(prompt_tokens=lengths[0], output_tokens=lengths[1]),
        rate=rate,
        seed=0,
        warmup_ns=0,
        window_ns=end_ns,
        drain_ns=0,
        max_concurrency=max_concurrency,
    )
    return make_point(Measured(observed=observed, spent_ns=end_ns), offer, slo, notes=notes)


def _gaps(rows: list[Row], begun: float) -> Gaps:
    """The gaps of all requests, in order of their ends."""
    gap_ns, counts, ends_ns = [], [], []
    for row in rows:
        at = row.first or row.due
        for gap, count in zip(row.gaps, row.counts, strict=True):
            at += gap * count
            gap_ns.append(round(gap * NS_PER_S))
            counts.append(count)
            ends_ns.append(round((at - begun) * NS_PER_S))
    order = np.argsort(column(ends_ns), kind="stable")
    return Gaps(ns=column(gap_ns)[order], count=column(counts)[order], at_ns=column(ends_ns)[order])
