"""Limits that make requests wait before the engine takes them: memory, the sequence cap, the token budget."""

from knee.diagnose.moves import fp8_kv, lower_max_num_seqs, more_memory, raise_budget, raise_max_num_seqs
from knee.diagnose.rules.state import (
    FULL_STEPS,
    KV_FULL,
    PACKED,
    bursts,
    busy,
    drained,
    kv_full,
    plateau,
    queue_evidence,
    queues,
    reached,
    saturated,
)
from knee.diagnose.signals import KV, RUNNING, TTFT, WAITING, Signals
from knee.diagnose.verdict import Binding, Confidence, Evidence

THRASHING = 0.1
"""Preemptions per finished request from which on the work done twice costs more than the room it saves."""

TAIL = f"{TTFT} p99"
PREEMPTIONS = "num_preemptions"


def kv_memory(s: Signals) -> Binding | None:
    """Requests wait, or are preempted, because the KV cache is full."""
    waits = queues(s) and not drained(s)
    full = kv_full(s) if waits else None
    preempts = bool(s.preemptions) and (s.kv is None or s.kv.high >= 0.8)
    if busy(s) and (s.preemptions or 0) < THRASHING * (s.finished or 0):
        return None  # the cache filled up because the device is slow, and more of it would fill up too
    if full is None and not preempts:
        return None
    evidence = [full] if full else []
    per_request = None
    if preempts:
        assert s.preemptions is not None
        per_request = s.preemptions / s.finished if s.finished else None
        told = f"{per_request:.2f} per finished request" if per_request is not None else "in this window"
        evidence.append(
            Evidence(
                metric=f"{PREEMPTIONS} increase",
                value=s.preemptions,
                threshold=0,
                reason=f"running requests lose their cache and start again, {told}",
            )
        )
        if s.kv is not None and full is None:
            evidence.append(
                Evidence(
                    metric=f"{KV} highest", value=s.kv.high, threshold=0.8, reason="the KV cache fills up"
                )
            )
    if not preempts and s.samples < 2 and (s.kv is None or s.kv.high < 0.95):
        confidence: Confidence = "low"
    else:
        confidence = (
            "high" if (preempts and (per_request or 1) > 0.01) or (full and s.samples > 1) else "medium"
        )
    room = [move for move in (fp8_kv(s), more_memory(s)) if move]
    fewer = lower_max_num_seqs(s) if preempts else None
    # Fewer at once stops the work that is done twice, but what no longer runs waits: against an objective on
    # the first token, more room is what raises the knee.
    waiting_matters = s.facts.point is not None and (
        s.facts.breaks("ttft", "e2e") or not s.facts.breaks("itl", "tpot")
    )
    thrashing = (
        fewer is not None and not waiting_matters and (per_request is None or per_request >= THRASHING)
    )
    moves = [fewer, *room] if thrashing else [*room, fewer]
    return Binding(
        limit="kv_memory",
        confidence=confidence,
        why="the KV cache is full"
        + (" and running requests are preempted" if preempts else " while requests wait"),
        evidence=tuple(evidence + (queue_evidence(s) if waits else [])),
        moves=tuple(move for move in moves if move),
        watch=(f"{PREEMPTIONS} rate", KV, TAIL, WAITING),
        strength=0.5 if not waits and (per_request or 0) < 0.02 else 1.0,
    )


def sequence_cap(s: Signals) -> Binding | None:
    """Requests wait while as many run as max_num_seqs allows, and the cache has room."""
    running = s.queued_running or (s.running if s.waiting is None else None)
    if running is None or not queues(s) or drained(s) or running.high < 1 or saturated(s):
        return None
    cap = s.cap
    if cap is not None:
        if not reached(running, cap, bursts(s)):
            return None
        confidence: Confidence = "high"
        reason = f"as many as max_num_seqs ({cap:g}) allows run while others wait"
    else:
        # Without the flag, a plateau stands for it, if requests come and go under it.
        if not plateau(s):
            return None
        cap = running.high
        confidence = "medium" if running.samples < 8 else "high"
        reason = f"never more than {cap:g} run while others wait and requests come and go: a cap"
    kv = s.queued_kv or s.kv
    room = (
        [
            Evidence(
                metric=f"{KV} mean while requests wait",
                value=kv.mean,
                threshold=KV_FULL,
                reason="the cache has room",
            )
        ]
        if kv is not None and kv_full(s) is None
        else []
    )
    raised = raise_max_num_seqs(s, cap, with_twice_the_cache=kv_full(s) is not None)
    return Binding(
        limit="sequence_cap",
        confidence=confidence if kv is not None else "medium",
        why=reason,
        evidence=(
            Evidence(
                metric=f"{RUNNING} mean while requests wait", value=running.mean, threshold=cap, reason=reason
            ),
            *queue_evidence(s),
            *room,
        ),
        moves=(raised,) if raised else (),
        watch=(WAITING, f"{PREEMPTIONS} rate", KV, TAIL, "inter_token_latency_seconds p99"),
        strength=0.9,
    )


def token_budget(s: Signals) -> Binding | None:
    """Requests wait, or prefill for long, though sequences and cache have room: steps are full of prompts."""
    chunked = _chunked(s)
    if ((not queues(s) or drained(s)) and chunked is None) or s.fill is None:
        return None
    if (s.fill < FULL_STEPS and chunked is None) or saturated(s):
        return None
    running = s.queued_running or s.running
    capped = s.cap is not None and running is not None and reached(running, s.cap, bursts(s))
    if s.fill < PACKED and (capped or kv_full(s) is not None):
        return None  # steps are half full because what fits runs
    raised = raise_budget(s)
    return Binding(
        limit="token_budget",
        confidence="medium",
        why="steps are full of prompt tokens, while sequences and KV cache have room",
        evidence=(
            Evidence(
                metric="iteration_tokens mean share of the budget",
                value=s.fill,
                threshold=FULL_STEPS,
                reason="these steps are full of prompt tokens",
            ),
            *([chunked] if chunked else []),
            *queue_evidence(s),
        ),
        moves=(raised,) if raised else (),
        watch=(WAITING, TAIL, "inter_token_latency_seconds p99"),
        strength=max(0.6, min(1.0, s.fill)),
    )


def _chunked(s: Signals) -> Evidence | None:
    """That a client saw TTFT break by prompts that take several steps."""
    if not s.facts.breaks("ttft") or not s.prefill_s or not s.ttft_s or not s.prompt_tokens or not s.budget:
        return None
    if s.prefill_s < 0.5 * s.ttft_s or s.prompt_tokens < 0.5 * s.budget:
        return None
    return Evidence(
        metric="request_prefill_time_seconds mean",
        value=s.prefill_s,
        threshold=0.5 * s.ttft_s,
        reason=f"a prompt of {s.prompt_tokens:,.0f} tokens takes several steps of at most {s.budget:g}",
    )
