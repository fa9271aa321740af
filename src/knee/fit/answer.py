"""The answer to "does it fit", with its arithmetic, verdict and the flag to set."""

import msgspec
import numpy as np

from knee.fit.capacity import MARGIN, Capacity, by_count, capacity_of
from knee.fit.occupancy import Tail, percentile_tokens, tail, whole_blocks
from knee.fit.startup import StartupReport
from knee.fit.traffic import REFUSED, Traffic, servable

_SEED = 5


class FitAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`fits` is None where the evidence does not decide; `flag` is the one to set, "" for none.

    `capacity` is the simple rule. `recommended` is the `max_num_seqs` that fits with margin: by the simulated
    occupancy `tail` where the traffic is known, else by the simple rule.
    """

    fits: bool | None
    verdict: str
    flag: str = ""
    arithmetic: tuple[str, ...] = ()
    report: StartupReport | None = None
    capacity: Capacity | None = None
    recommended: int | None = None
    tail: Tail | None = None
    notes: tuple[str, ...] = ()


def judge(
    report: StartupReport,
    p95_tokens: float | None = None,
    *,
    traffic: Traffic | None = None,
    max_num_seqs: int | None = None,
    margin: float = MARGIN,
) -> FitAnswer:
    """The capacity rule applied to what a server said of itself.

    With `traffic` its p95 is the length of a request (unless `p95_tokens` is given), and the tail of the
    sum of its requests stands beside the simple rule.

    Raises:
        UsageError: `p95_tokens` or `margin` make no sense.
    """
    if report.failure is not None:
        return FitAnswer(
            fits=False,
            verdict=f"the server did not start: {report.failure.kind.replace('_', ' ')}",
            flag=report.failure.flag,
            report=report,
        )
    basis, refused = "p95", 0.0
    if traffic is not None and report.max_model_len:
        traffic, refused = servable(traffic, report.max_model_len)
    if traffic is not None and p95_tokens is None:
        p95_tokens, basis = percentile_tokens(traffic.prompt, traffic.output), f"p95 of {traffic.name}"
    found = capacity_of(report, p95_tokens, max_num_seqs=max_num_seqs, margin=margin, basis=basis)
    if found is None:
        return FitAnswer(
            fits=None, verdict="the log holds no KV cache capacity: nothing to judge", report=report
        )
    seen = tail_of(found, traffic, report) if traffic is not None else None
    judged = found if seen is None else by_count(found, seen.full_length)
    made = _at_worst(judged) if judged.basis == "max_model_len" else _at_length(judged)
    return msgspec.structs.replace(
        made,
        report=report,
        capacity=found,
        arithmetic=arithmetic(found),
        recommended=judged.recommended,
        tail=seen,
        notes=(*(traffic.notes if traffic else ()), *((REFUSED.format(refused),) if refused else ())),
    )


def tail_of(item: Capacity, traffic: Traffic, report: StartupReport) -> Tail:
    """Simulated occupancy of the cache that binds, in whole blocks where their size is known."""
    sizes = [engine.block_size for engine in report.engines if engine.block_size]
    cost = whole_blocks(max(sizes)) if sizes else None
    return tail(traffic.prompt, traffic.output, item.kv_tokens, np.random.default_rng(_SEED), cost=cost)


def arithmetic(item: Capacity) -> tuple[str, ...]:
    """The rule with the numbers in it."""
    kv, each = item.kv_tokens, item.tokens_per_request
    whole = f"{kv:,} KV tokens / {each:,} tokens a request ({item.basis}) = {kv / each:.2f}"
    kept = f"{kv:,} x {1 - item.margin:g} / {each:,} = {kv * (1 - item.margin) / each:.2f}"
    lines = [
        f"{whole} -> {item.requests:,} requests",
        f"{kept} -> {item.recommended:,} with {item.margin:.0%} margin",
    ]
    if item.max_num_seqs is not None:
        sign = "<=" if item.max_num_seqs <= item.recommended else ">"
        lines.append(f"max_num_seqs {item.max_num_seqs:,} {sign} {item.recommended:,}")
    return tuple(lines)


def _at_length(item: Capacity) -> FitAnswer:
    flag = f"--max-num-seqs {max(1, item.recommended)}"
    if item.requests < 1:
        return FitAnswer(fits=False, verdict="does not fit: not even one such request does")
    cap = item.max_num_seqs
    if item.verdict == "fits":
        return FitAnswer(
            fits=True, verdict=f"fits: {item.requests:,} requests, of which {cap:,} may run at once"
        )
    if cap is None and item.verdict == "unknown":
        return FitAnswer(
            fits=None,
            verdict=f"max_num_seqs is not known: at most {item.recommended:,} fit with margin",
            flag=flag,
        )
    if cap is None:
        return FitAnswer(
            fits=False,
            verdict=f"does not fit: {item.requests:,} requests fit, fewer than any default max_num_seqs",
            flag=flag,
        )
    if item.verdict == "no margin":
        return FitAnswer(
            fits=False, verdict=f"no margin: {item.requests:,} requests fit and {cap:,} may run", flag=flag
        )
    return FitAnswer(
        fits=False,
        verdict=f"does not fit: {item.requests:,} requests fit, {cap:,} may run; the scheduler will preempt",
        flag=flag,
    )


def _at_worst(item: Capacity) -> FitAnswer:
    """No length was given: judge by max_model_len, and say up to which length the rule holds."""
    if item.requests < 1:
        return FitAnswer(
            fits=False, verdict="does not fit: a request of max_model_len needs more than the cache"
        )
    if item.verdict == "fits":
        return FitAnswer(
            fits=True, verdict=f"fits even if every request is {item.tokens_per_request:,} tokens long"
        )
    if item.max_num_seqs is None:
        return FitAnswer(
            fits=True,
            verdict="it starts; max_num_seqs is not known, so the rule needs --max-num-seqs and --p95-tokens",
        )
    most = int(item.kv_tokens * (1 - item.margin)) // item.max_num_seqs
    return FitAnswer(
        fits=True,
        verdict=f"it starts; max_num_seqs {item.max_num_seqs:,} fits while p95 tokens per request stay at or "
        f"below {most:,} (give --p95-tokens)",
    )
