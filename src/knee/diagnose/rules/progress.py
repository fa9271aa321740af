"""Servers that do not get on: stuck, asleep, dead, blocked by a request that can never run, or refusing."""

from knee.diagnose.moves import shorter_context
from knee.diagnose.signals import KV, RUNNING, WAITING, Signals
from knee.diagnose.verdict import Binding, Confidence, Evidence

LEAST_S = 2.0
"""A window has to be this long before silence means anything."""

ENOUGH_S = 20.0


def idle_counters(s: Signals) -> bool | None:
    """Whether nothing was computed in the window; None where no counter tells."""
    counts = [count for count in (s.generated, s.prefilled, s.steps) if count is not None]
    return all(count == 0 for count in counts) if counts else None


def thrashes(s: Signals) -> bool:
    """Whether requests are preempted and resumed over and over, and nothing comes out."""
    return (
        bool(s.preemptions)
        and s.finished == 0
        and s.generated is not None
        and s.generated <= (s.preemptions or 0)
    )


def no_progress(s: Signals) -> bool:
    """Whether requests are there throughout, and nothing comes of it."""
    if s.seconds < LEAST_S or (s.waiting is None and s.running is None):
        return False
    present = (s.waiting.low if s.waiting else 0) + (s.running.low if s.running else 0) > 0
    return present and (idle_counters(s) is True or thrashes(s))


def _stuck_evidence(s: Signals) -> list[Evidence]:
    seen = []
    if s.waiting is not None:
        seen.append(
            Evidence(metric=f"{WAITING} lowest", value=s.waiting.low, reason="requests wait throughout")
        )
    if s.running is not None:
        seen.append(Evidence(metric=f"{RUNNING} mean", value=s.running.mean, reason="requests that run"))
    if s.generated is not None:
        seen.append(
            Evidence(
                metric="generation_tokens increase",
                value=s.generated,
                threshold=0,
                reason=f"in {s.seconds:.0f} s",
            )
        )
    if s.preemptions:
        seen.append(
            Evidence(
                metric="num_preemptions increase",
                value=s.preemptions,
                reason="preempted and resumed, again and again",
            )
        )
    if s.kv is not None:
        seen.append(Evidence(metric=f"{KV} mean", value=s.kv.mean, reason="so this is not load"))
    return seen


def unservable(s: Signals) -> Binding | None:
    """The head of the queue needs more KV than there is, and everything behind it waits."""
    if not no_progress(s) or s.running is None or s.running.mean >= 1:
        return None
    longest = s.facts.number("max_model_len")
    if longest is None or s.kv_tokens is None or longest <= s.kv_tokens:
        return None
    moved = shorter_context(s)
    return Binding(
        limit="unservable",
        confidence="high",
        why="the head of the queue needs more KV cache than there is, and blocks all behind it",
        evidence=(
            Evidence(
                metric="max_model_len",
                value=longest,
                threshold=s.kv_tokens,
                reason=f"requests of up to {longest:,.0f} tokens are accepted, and the cache holds "
                f"{s.kv_tokens:,.0f}",
            ),
            *_stuck_evidence(s),
        ),
        moves=(moved,) if moved else (),
        watch=(WAITING, "request_success rate"),
        strength=1.0,
    )


def stalled(s: Signals) -> Binding | None:
    """Requests are there and nothing happens: the engine is stuck, asleep or dead."""
    asleep = sleeping(s)
    present = (s.waiting.high if s.waiting else 0) + (s.running.high if s.running else 0) > 0
    if not s.facts.dead and not (asleep and present) and not no_progress(s):
        return None
    if s.facts.dead:
        why = "the engine is dead: /health answers 503"
        confidence: Confidence = "high"
    elif asleep:
        why, confidence = "the engine sleeps while requests wait", "high"
    elif thrashes(s):
        why, confidence = "requests are preempted and resumed without getting on", "high"
    else:
        why = "requests are there and nothing is computed; this is not load"
        confidence = "high" if s.seconds >= ENOUGH_S else "medium"
    deferred = s.engine.gauges.get("num_requests_waiting_by_reason{deferred}")
    evidence = _stuck_evidence(s)
    if deferred is not None and deferred.low > 0:
        evidence.append(
            Evidence(
                metric="num_requests_waiting_by_reason{deferred} lowest",
                value=deferred.low,
                reason="these wait for an adapter, a grammar or a KV transfer, not for the scheduler",
            )
        )
    return Binding(
        limit="stalled",
        confidence=confidence,
        why=why,
        evidence=tuple(evidence),
        watch=("generation_tokens rate", WAITING),
        strength=1.0,
    )


def sleeping(s: Signals) -> bool:
    """Whether the engine was asleep throughout (sleep mode, /sleep)."""
    awake = s.engine.gauges.get("engine_sleep_state{awake}")
    return awake is not None and awake.high == 0


def rejections(s: Signals) -> float | None:
    """Requests that the server's own queue limits refused; None where the version does not say."""
    parts = [v for name, v in s.engine.counters.items() if name.startswith("admission_rejections")]
    return sum(parts) if parts else None


def shedding(s: Signals) -> Binding | None:
    """The server refuses requests by its own queue limits."""
    refused = rejections(s)
    if not refused:
        return None
    ended = s.finished or 0.0
    share = refused / (refused + ended)
    kv = s.kv
    beside = (
        (
            Evidence(
                metric=f"{KV} mean",
                value=kv.mean,
                threshold=0.9,
                reason="the KV cache has room: its usage is no sign of load here",
            ),
        )
        if kv is not None and kv.high < 0.9
        else ()
    )
    return Binding(
        limit="shedding",
        confidence="high",
        why=f"the server refuses {share:.0%} of the requests by its queue limit: more is asked than it "
        "serves",
        evidence=(
            Evidence(
                metric="admission_rejections increase",
                value=refused,
                threshold=0,
                reason=f"{refused:,.0f} refused, {ended:,.0f} finished",
            ),
            *beside,
        ),
        watch=("admission_rejections rate", WAITING),
        strength=0.3,
    )
