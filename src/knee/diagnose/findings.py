"""What is worth knowing beside the limit."""

from collections.abc import Sequence

from knee.core.units import NS_PER_S, format_duration
from knee.diagnose.rules.progress import rejections, sleeping
from knee.diagnose.rules.state import drained
from knee.diagnose.signals import Signals
from knee.diagnose.verdict import Finding

FULL_WITHIN_S = 3600.0


def findings(s: Signals, engine: str = "") -> tuple[Finding, ...]:
    """All findings on one engine, warnings first."""
    seen = [finding for rule in RULES if (finding := rule(s, engine)) is not None]
    return tuple(sorted(seen, key=lambda finding: finding.weight != "warning"))


def _preemptions(s: Signals, engine: str) -> Finding | None:
    if not s.preemptions or s.seconds <= 0:
        return None
    text = f"{s.preemptions:,.0f} preemptions, {s.preemptions / s.seconds:.2f} a second"
    if s.finished:
        text += f", {s.preemptions / s.finished:.2f} per finished request"
    return Finding(name="preemptions", text=text, value=s.preemptions, engine=engine, weight="warning")


def _kv_full_in(s: Signals, engine: str) -> Finding | None:
    kv, running = s.kv, s.running
    if kv is None or s.seconds <= 0 or kv.samples < 2 or kv.last < 0.5 or kv.last >= 0.995:
        return None
    # A slope means something while the same requests grow: where they come and go, usage is a balance.
    if (
        running is None
        or running.high > running.low * 1.2
        or kv.last - kv.first < 0.002
        or kv.last < kv.high - 1e-9
    ):
        return None
    # `samples` instants have one stretch less between them than the window where a log's first line opens it.
    left_s = (1 - kv.last) / ((kv.last - kv.first) / (s.seconds * (kv.samples - 1) / kv.samples))
    if left_s > FULL_WITHIN_S:
        return None
    return Finding(
        name="kv_full_in",
        text=f"at this slope the KV cache ({kv.last:.1%}) is full in {format_duration(left_s * NS_PER_S)}; "
        "from then on running requests are preempted",
        value=left_s,
        engine=engine,
        weight="warning",
    )


def _prefix_cache(s: Signals, engine: str) -> Finding | None:
    counters = s.engine.counters
    queries, hits = counters.get("prefix_cache_queries"), counters.get("prefix_cache_hits")
    if not queries or hits is None:
        recent = s.engine.gauges.get("prefix_cache_hit_rate")
        if recent is None:
            return None
        return Finding(
            name="prefix_cache",
            text=f"prefix cache hit rate {recent.last:.0%} (recent)",
            value=recent.last,
            engine=engine,
        )
    rate = min(1.0, hits / queries)
    if hits == 0 and s.kv is not None and s.kv.mean < 0.5 and queries >= 1000:
        return Finding(
            name="prefix_cache_keeps_nothing",
            text=f"not one of {queries:,.0f} prompt tokens came from the prefix cache though "
            f"{1 - s.kv.mean:.0%} of the "
            "KV cache is free: if prompts share their beginnings, nothing is retained "
            "(--prefix-cache-retention-interval, VLLM_PREFIX_CACHE_RETENTION_INTERVAL); this is "
            "not lack of capacity",
            value=0.0,
            engine=engine,
        )
    return Finding(
        name="prefix_cache",
        text=f"prefix cache hit rate {rate:.0%}: {hits:,.0f} of {queries:,.0f} prompt tokens were not "
        "computed again",
        value=rate,
        engine=engine,
    )


def _no_admission_control(s: Signals, engine: str) -> Finding | None:
    waiting = s.waiting
    if (
        waiting is None
        or waiting.samples < 3
        or waiting.last < max(8.0, 2 * waiting.first)
        or waiting.last < waiting.high
    ):
        return None
    if rejections(s) or s.facts.number("max_num_queued_reqs") or s.facts.number("max_num_queued_tokens"):
        return None
    return Finding(
        name="no_admission_control",
        text=f"the queue grows ({waiting.first:g} → {waiting.last:g} waiting) and nothing is refused: "
        "bound it just above "
        "the knee, at a gateway or with --max-num-queued-reqs (vLLM 0.29+), and answer 503 with Retry-After",
        value=waiting.last,
        engine=engine,
        weight="warning",
    )


def _given_up(s: Signals, engine: str) -> Finding | None:
    aborted = s.engine.counters.get("request_success{abort}")
    if not aborted or not s.finished or aborted < max(3, 0.02 * s.finished):
        return None
    return Finding(
        name="given_up",
        text=f"clients gave up {aborted:,.0f} of {s.finished:,.0f} requests: timeouts, and each retry "
        "is more load",
        value=aborted / s.finished,
        engine=engine,
        weight="warning",
    )


def _refused(s: Signals, engine: str) -> Finding | None:
    refused = rejections(s)
    if not refused:
        return None
    text = f"{refused:,.0f} requests were refused with 503"
    if s.finished and refused > s.finished:
        text += ", more than were served: clients retry, or demand is far above the knee"
    return Finding(name="refused", text=text, value=refused, engine=engine)


def _errors(s: Signals, engine: str) -> Finding | None:
    failed = s.engine.counters.get("request_success{error}")
    if not failed:
        return None
    return Finding(
        name="errors",
        text=f"{failed:,.0f} requests ended in an error",
        value=failed,
        engine=engine,
        weight="warning",
    )


def _asleep(s: Signals, engine: str) -> Finding | None:
    if not sleeping(s):
        return None
    return Finding(
        name="sleeping", text="the engine sleeps (POST /wake_up wakes it)", engine=engine, weight="warning"
    )


def _dead(s: Signals, engine: str) -> Finding | None:
    if not s.facts.dead:
        return None
    return Finding(
        name="dead", text="the engine is dead; only a restart helps", engine=engine, weight="warning"
    )


def _ramp(s: Signals, engine: str) -> Finding | None:
    if not drained(s) or s.waiting is None:
        return None
    return Finding(
        name="ramp",
        text=f"the queue of {s.waiting.first:g} was a ramp: it was gone when the window ended",
        engine=engine,
    )


def _restarted(s: Signals, engine: str) -> Finding | None:
    if not s.engine.reset:
        return None
    return Finding(
        name="restarted",
        text="the engine restarted inside the window; rates cover only what came after and are too low",
        engine=engine,
        weight="warning",
    )


def _too_slow_alone(s: Signals, engine: str) -> Finding | None:
    bound = s.facts.bound_s("ttft")
    if (
        bound is None
        or s.prefill_s is None
        or s.running is None
        or s.running.mean > 1.5
        or s.prefill_s <= bound
    ):
        return None
    return Finding(
        name="infeasible",
        text=f"prefill alone takes {s.prefill_s:.2f} s with {s.running.mean:.1f} requests running, more "
        "than the bound "
        f"of {bound:g} s on TTFT: no rate, no number of replicas and no flag here meets it",
        value=s.prefill_s,
        engine=engine,
        weight="warning",
    )


RULES = (
    _dead, _asleep, _restarted, _errors, _preemptions, _kv_full_in, _no_admission_control, _given_up,
    _refused, _too_slow_alone, _prefix_cache, _ramp,
)  # fmt: skip


def imbalance(every: Sequence[tuple[str, Signals]]) -> Finding | None:
    """Engines that carry very different load."""
    loads = [
        (label, s.running.mean + (s.waiting.mean if s.waiting else 0.0))
        for label, s in every
        if s.running is not None
    ]
    if len(loads) < 2:
        return None
    most, least = max(loads, key=lambda load: load[1]), min(loads, key=lambda load: load[1])
    if most[1] < 4 or most[1] < 2 * max(least[1], 1.0):
        return None
    return Finding(
        name="imbalance",
        text=f"load is uneven: {most[1]:.1f} requests on {most[0]}, {least[1]:.1f} on {least[0]}; route "
        "by waiting "
        "requests and KV usage, not round robin",
        value=most[1] / max(least[1], 1.0),
        engine=most[0],
        weight="warning",
    )
