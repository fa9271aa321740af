"""Limits that make requests wait before the engine takes them: memory, the sequence cap, the token budget."""

from knee.core.snapshot import GaugeStats
from knee.diagnose.moves import fp8_kv, lower_max_num_seqs, more_memory, raise_budget, raise_max_num_seqs
from knee.diagnose.signals import KV, QUEUE, RUNNING, TTFT, WAITING, Signals
from knee.diagnose.verdict import Binding, Confidence, Evidence

KV_FULL = 0.9
"""From here on a cache counts as full: admission needs whole prompts, and running requests still grow."""

PINNED = 0.95
"""Mean of running requests over the cap while others wait."""

NEARLY = 0.75
"""The same where a client saw TTFT break and bursts reach the cap now and then."""

PLATEAU = 0.6
"""Share of the time of waiting at which as many run as ever do, from which on that is a cap."""

FULL_STEPS = 0.5
"""Mean share of the budget that steps use from which on the budget shapes the queue."""

PACKED = 0.85
"""The same where a cap or the cache holds as well: then only full steps say something of their own."""

WORTH = 1.07
"""What twice the batch must gain, else the device is the limit and not the flag."""

OVER = 1.1
"""The gap between tokens after such a move, over its bound, from which on the move trades one objective for
another."""

THRASHING = 0.1
"""Preemptions per finished request from which on the work done twice costs more than the room it saves."""

TAIL = f"{TTFT} p99"
PREEMPTIONS = "num_preemptions"


def queues(s: Signals) -> bool:
    """Whether requests wait for more than the step under way.

    On average one waits, or queue time is a quarter of TTFT and more than three steps (a gap between tokens
    is one step). Where a client saw TTFT break, a burst of several steps' arrivals is enough: near the knee
    the mean is still short.
    """
    if bursts(s):
        return True
    if s.waiting is not None and s.waiting.mean >= 1:
        running = s.running.mean if s.running is not None else 0.0
        return s.waiting.mean >= 0.02 * running or (s.waiting.low > 0 and s.samples > 1)
    if s.queue_s is None or not s.ttft_s:
        return False
    return s.queue_s > 0.25 * s.ttft_s and s.queue_s > 3 * (s.itl_s or 0.01)


def bursts(s: Signals) -> bool:
    """Whether a client saw TTFT break while now and then far more waited than arrive in a step."""
    if s.waiting is None or not s.facts.breaks("ttft", "e2e"):
        return False
    arrivals = (s.finished or 0.0) / s.seconds * (s.itl_s or 0.0) if s.seconds > 0 else 0.0
    return s.waiting.high >= max(3.0, 5 * arrivals)


def drained(s: Signals) -> bool:
    """Whether the queue was a ramp that ended inside the window: it stood at the start, and is gone."""
    return (
        s.waiting is not None
        and s.samples > 1
        and s.waiting.last == 0
        and s.waiting.first == s.waiting.high
        and s.waiting.first > 0
    )


def queue_evidence(s: Signals) -> list[Evidence]:
    """That requests wait."""
    seen: list[Evidence] = []
    if s.waiting is not None and s.waiting.high > 0:
        seen.append(
            Evidence(
                metric=f"{WAITING} mean",
                value=s.waiting.mean,
                threshold=1,
                reason="requests wait to be admitted",
            )
        )
    if s.queue_s is not None and s.ttft_s:
        seen.append(
            Evidence(
                metric=f"{QUEUE} mean",
                value=s.queue_s,
                threshold=0.25 * s.ttft_s,
                reason=f"{min(1.0, s.queue_s / s.ttft_s):.0%} of the time to first token is queue",
            )
        )
    return seen


def kv_full(s: Signals) -> Evidence | None:
    """That the cache has no room for the next request while requests wait."""
    kv = s.queued_kv or (s.kv if s.waiting is None else None)
    if kv is None:
        return None
    if kv.mean >= KV_FULL or (kv.high >= 0.95 and kv.mean >= 0.8):
        return Evidence(
            metric=f"{KV} mean while requests wait",
            value=kv.mean,
            threshold=KV_FULL,
            reason="the KV cache is full",
        )
    if s.kv_tokens and s.prompt_tokens and kv.mean >= 0.5:
        free = (1 - kv.mean) * s.kv_tokens
        if free < s.prompt_tokens:
            return Evidence(
                metric=f"{KV} mean while requests wait",
                value=kv.mean,
                threshold=1 - s.prompt_tokens / s.kv_tokens,
                reason=f"{free:,.0f} tokens are free and the mean prompt needs {s.prompt_tokens:,.0f}",
            )
    return None


def busy(s: Signals) -> bool:
    """Whether a larger batch would hardly serve more: a step takes as much longer as it is given more."""
    return s.batch_gain is not None and s.batch_gain < WORTH


def saturated(s: Signals) -> bool:
    """Whether twice the batch is no help: it serves no more, or its steps break the ITL objective."""
    bound, light, p50, p99 = s.facts.bound_s("itl"), s.facts.light_itl_s, s.itl_p50_s, s.itl_p99_s
    if busy(s) or bound is None or light is None or p50 is None or p99 is None:
        return busy(s)
    # The batch's share of a step doubles; what prompts add to the longest steps stays.
    return light + 2 * (p50 - light) + (p99 - p50) > OVER * bound


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
        if not _reached(running, cap, bursts(s)):
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


def plateau(s: Signals) -> bool:
    """Whether as many run as ever do for most of the time that others wait, while requests come and go."""
    running = s.queued_running or s.running
    if running is None or s.running is None or not s.moving or running.samples < 3:
        return False
    return running.at_high >= PLATEAU and running.high >= s.running.high


def _reached(running: GaugeStats, cap: float, bursty: bool) -> bool:
    """Whether the cap held requests back while they waited."""
    if running.high < cap:
        return running.mean >= PINNED * cap
    return running.mean >= (NEARLY if bursty else PINNED) * cap or running.at_high >= PLATEAU


def token_budget(s: Signals) -> Binding | None:
    """Requests wait, or prefill for long, though sequences and cache have room: steps are full of prompts."""
    chunked = _chunked(s)
    if ((not queues(s) or drained(s)) and chunked is None) or s.fill is None:
        return None
    if (s.fill < FULL_STEPS and chunked is None) or saturated(s):
        return None
    running = s.queued_running or s.running
    capped = s.cap is not None and running is not None and _reached(running, s.cap, bursts(s))
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
