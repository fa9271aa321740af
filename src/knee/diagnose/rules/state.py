"""What an engine is like while requests wait: whether they queue, and which of its limits is reached."""

from knee.core.snapshot import GaugeStats
from knee.diagnose.signals import KV, QUEUE, WAITING, Signals
from knee.diagnose.verdict import Evidence

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


def plateau(s: Signals) -> bool:
    """Whether as many run as ever do for most of the time that others wait, while requests come and go."""
    running = s.queued_running or s.running
    if running is None or s.running is None or not s.moving or running.samples < 3:
        return False
    return running.at_high >= PLATEAU and running.high >= s.running.high


def reached(running: GaugeStats, cap: float, bursty: bool) -> bool:
    """Whether the cap held requests back while they waited."""
    if running.high < cap:
        return running.mean >= PINNED * cap
    return running.mean >= (NEARLY if bursty else PINNED) * cap or running.at_high >= PLATEAU
