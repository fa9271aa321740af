"""Limits that show in latencies: prompts in decode steps, the front end, plain compute, the client itself."""

from knee.core.snapshot import GaugeStats
from knee.diagnose.moves import lower_budget, more_api_servers
from knee.diagnose.rules.state import (
    FULL_STEPS,
    KV_FULL,
    PINNED,
    PLATEAU,
    WORTH,
    bursts,
    busy,
    drained,
    kv_full,
    plateau,
    queue_evidence,
    queues,
    saturated,
)
from knee.diagnose.signals import ITL, KV, RUNNING, TTFT, Signals
from knee.diagnose.verdict import Binding, Confidence, Evidence

FAR_ABOVE = 3.0
"""p99 over p50 of the gap between tokens from which on it is far above."""

LONG_GAP_S = 0.05
"""Gaps below this disturb no reader, whatever their ratio."""

FRONT_SHARE = 0.4
FRONT_LEAST_S = 0.05
"""Share of TTFT beyond queue and prefill, and its length, from which on the front end matters."""

LATE_SHARE = 0.2
"""Send lag over TTFT from which on the client's own lateness shapes what it measures."""


def prefill_interference(s: Signals) -> Binding | None:
    """The gap between tokens is long now and then: steps that carry prompts hold up those who decode."""
    itl = _gaps(s)
    if itl is None:
        return None
    p50, p99, source = itl
    bound = s.facts.bound_s("itl") or s.facts.bound_s("tpot")
    broken = s.facts.breaks("itl", "tpot")
    if broken and bound is not None:  # shorter steps with prompts help only where steps without are short
        far = p99 >= 1.5 * p50 and p50 <= 0.8 * bound
    else:
        far = broken is None and p99 >= FAR_ABOVE * p50 and p99 >= LONG_GAP_S
    if not far or s.prefilled == 0:
        return None
    confidence: Confidence = "high" if p99 >= 2 * FAR_ABOVE * p50 or broken else "medium"
    evidence = [
        Evidence(
            metric=f"{source} p99",
            value=p99,
            threshold=FAR_ABOVE * p50,
            reason=f"p99 is at least {p99 / p50:.1f} times p50 ({p50 * 1000:.0f} ms): some steps carry "
            "prompts",
        )
    ]
    if s.preemptions:
        confidence = "low"  # a preempted request's gap looks the same
        evidence.append(
            Evidence(
                metric="num_preemptions increase",
                value=s.preemptions,
                reason="preemptions also make long gaps",
            )
        )
    if s.prefill_rate:
        evidence.append(
            Evidence(
                metric="prompt_tokens rate", value=s.prefill_rate, reason="prompt tokens computed per second"
            )
        )
    moved = lower_budget(s)
    return Binding(
        limit="prefill_interference",
        confidence=confidence,
        why="steps that carry prompts hold up the requests that decode",
        evidence=tuple(evidence),
        moves=(moved,) if moved else (),
        watch=(f"{ITL} p99", f"{TTFT} p95"),
        strength=0.95 if broken else 0.5,
    )


def _gaps(s: Signals) -> tuple[float, float, str] | None:
    """p50 (at most) and p99 (at least) of the gap between tokens, in seconds, and where they come from."""
    point = s.facts.point
    if point is not None and point.itl_ms.p50 and point.itl_ms.p99:
        return point.itl_ms.p50 / 1000, point.itl_ms.p99 / 1000, "client itl_ms"
    if s.itl_p50 is None or s.itl_p99 is None or s.itl_p50.high is None:
        return None
    return s.itl_p50.high, s.itl_p99.low, ITL


def front_end(s: Signals) -> Binding | None:
    """Requests spend their time before the engine sees them, or their tokens after it has made them."""
    evidence: list[Evidence] = []
    strength = 0.0
    front = s.front_s
    if front is not None and s.ttft_s and front >= FRONT_LEAST_S and front >= FRONT_SHARE * s.ttft_s:
        strength = front / s.ttft_s
        evidence.append(
            Evidence(
                metric=f"{TTFT} - queue - prefill, mean",
                value=front,
                threshold=FRONT_SHARE * s.ttft_s,
                reason=f"{strength:.0%} of the time to first token is neither queue nor prefill",
            )
        )
    point = s.facts.point
    if point is not None and s.ttft_s is not None and point.ttft_ms.mean_finite is not None:
        lag_s = (point.send_lag_ms.mean_finite or 0.0) / 1000
        client_s = point.ttft_ms.mean_finite / 1000 - lag_s
        beyond = client_s - s.ttft_s
        if beyond >= FRONT_LEAST_S and beyond >= FRONT_SHARE * client_s:
            strength = max(strength, beyond / client_s)
            evidence.append(
                Evidence(
                    metric="client ttft_ms mean - server's",
                    value=beyond,
                    threshold=FRONT_SHARE * client_s,
                    reason="the client waits longer than the server counts: connections, HTTP, or the "
                    "way between",
                )
            )
    if not evidence:
        return None
    return Binding(
        limit="front_end",
        confidence="high" if strength >= 0.6 else "medium",
        why="time to first token goes by outside the engine: HTTP, tokenization, streaming",
        evidence=tuple(evidence),
        moves=(more_api_servers(s),),
        watch=(f"{TTFT} - queue - prefill", "process_cpu_seconds rate", f"{TTFT} p99"),
        strength=strength,
    )


def compute(s: Signals) -> Binding | None:
    """Requests wait or decode slowly though no flag holds them back."""
    waits = queues(s) and not drained(s)
    if not waits and not s.facts.breaks("itl", "tpot", "e2e", "ttft"):
        return None
    running, kv = s.queued_running or s.running, s.queued_kv or s.kv
    if running is None or kv is None:
        return None
    has_room = kv.mean < KV_FULL and kv_full(s) is None and not s.preemptions
    if not busy(s) and not (has_room and (_below_cap(s, running) or saturated(s))):
        return None
    roomy_steps = s.fill is not None and s.fill < FULL_STEPS
    evidence = [
        Evidence(metric=f"{RUNNING} mean", value=running.mean, threshold=s.cap, reason="requests that run")
    ]
    if has_room:
        evidence.append(
            Evidence(metric=f"{KV} mean", value=kv.mean, threshold=KV_FULL, reason="the KV cache has room")
        )
    if roomy_steps and s.fill is not None:
        evidence.append(
            Evidence(
                metric="iteration_tokens mean share of the budget",
                value=s.fill,
                threshold=FULL_STEPS,
                reason="the token budget has room",
            )
        )
    if s.batch_gain is not None:
        evidence.append(
            Evidence(
                metric="gain of twice the batch",
                value=s.batch_gain,
                threshold=WORTH,
                reason="from the gap between tokens of a request alone and of one in this batch",
            )
        )
    return Binding(
        limit="compute",
        confidence="medium" if roomy_steps or saturated(s) else "low",
        why=_why_compute(s),
        evidence=(*evidence, *queue_evidence(s)),
        watch=(f"{TTFT} p95", f"{ITL} p50", "generation_tokens rate"),
        strength=0.7 if waits else 0.4,
    )


def _why_compute(s: Signals) -> str:
    if busy(s) and s.batch_gain is not None:
        return f"a batch of twice the size would serve only {s.batch_gain - 1:.0%} more: the device is busy"
    if saturated(s):
        return "a larger batch would break the objective on the gap between tokens"
    return "requests wait for the step under way though sequences, KV cache and token budget have room"


def _below_cap(s: Signals, running: GaugeStats) -> bool:
    """Whether fewer ran than the cap allows, or, where it is not known, than ran at another time."""
    if s.cap is not None:
        return (running.high if bursts(s) else running.mean / PINNED) < s.cap
    return s.running is not None and not plateau(s) and _has_been_more(running, s.running)


def _has_been_more(queued: GaugeStats, ever: GaugeStats) -> bool:
    """Whether more ran at another time than while requests waited: so no cap held these back."""
    return queued.mean < 0.9 * ever.high or (queued.samples >= 4 and queued.at_high < PLATEAU)


def client(s: Signals) -> Binding | None:
    """What was measured is the client: it sent late, or it offers no more."""
    point = s.facts.point
    if point is None:
        return None
    lag, ttft = point.send_lag_ms, point.ttft_ms
    if lag.mean_finite is None or ttft.mean_finite is None or ttft.mean_finite <= 0:
        return None
    share = lag.mean_finite / ttft.mean_finite
    if share < LATE_SHARE or lag.mean_finite < 10:
        return None
    return Binding(
        limit="client",
        confidence="high" if share >= 0.5 else "medium",
        why="the client sends late: what it measures is its own queue",
        evidence=(
            Evidence(
                metric="client send_lag_ms mean",
                value=lag.mean_finite,
                threshold=LATE_SHARE * ttft.mean_finite,
                reason=f"{share:.0%} of the time to first token, counted from the due instant, is "
                "lateness of the client",
            ),
        ),
        watch=("send_lag_ms p99",),
        strength=min(1.0, share),
    )
