"""Whether a point can be trusted: what the client, not the server, did to it.

Each reason says what was seen, what the bound is, and what to change. A point with a reason in `invalid` must
not be used for a knee; `notes` are worth reading and leave the point standing.
"""

import msgspec
import numpy as np

from knee.core.requests import CENSORED, FAILED, NEVER, OK, Observed
from knee.core.units import NS_PER_MS, NS_PER_S
from knee.measure.samples import Bools
from knee.measure.target import ClientHealth, Measured, Offer

DISPATCH_LAG_MS = 10.0
"""p99. A send loop with room to spare is 0.2 ms late. Latencies count from due, so a lag only ever adds to
them: where a tenth of the TTFT's p95 is more than 10 ms, that much is allowed."""
LOOP_LAG_MS = 10.0
"""p99. What the loop is late with a timer, it may be late with stamping a chunk."""
CPU_SHARE = 0.95
"""Of one core. Measured ceilings of one worker lie at a full core; lags soar just before."""
UNSENT_SHARE = 0.01
CACHED_SHARE = 0.02
LENGTH_SHARE = 0.02
LUMP_NS = 20_000
"""No server writes two tokens of one stream in 20 us; a read that brings both gives them the same instant."""
LUMP_SHARE = 0.5
CLOCK_JUMP_MS = 1_000.0
MORE = "use more workers (--workers), --realtime where cores are shared, or another machine"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Reasons against a point, and remarks on it."""

    invalid: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def check_validity(measured: Measured, offer: Offer) -> Verdict:
    """Look for everything that makes a point say something other than the server's latency at its rate.

    Cache hits are a fault unless the workload shares text by design.
    """
    observed = measured.observed
    inside: Bools = (observed.due_ns >= offer.warmup_ns) & (
        observed.due_ns < min(offer.warmup_ns + offer.window_ns, observed.end_of_load_ns)
    )
    health = measured.health or ClientHealth()
    reasons = [
        *_unsent(observed, inside, offer),
        *_lags(health, _allowed_lag_ms(observed, inside)),
        *_own_failures(observed),
        *_cached(health, measured, offer.workload.shares_text),
        *_prompts(health),
        *_lengths(observed, inside),
        *_lumps(observed),
        *_clock(health),
    ]
    notes = [*health.notes, *_in_flight(observed, inside, measured), *_foreign(measured)]
    if offer.max_concurrency is not None:
        notes.insert(
            0, "closed loop: arrivals wait for answers, so queueing is hidden; no knee follows from it"
        )
    return Verdict(invalid=tuple(reasons), notes=tuple(notes))


def _unsent(observed: Observed, inside: Bools, offer: Offer) -> list[str]:
    """Requests due in the window that never left, or left after it was over."""
    if offer.max_concurrency is not None or not inside.any():
        return []
    waiting_for_server = observed.outcome[inside] == FAILED  # refused or timed out before it could be sent
    unsent = (observed.sent_ns[inside] == NEVER) & ~waiting_for_server
    share = float(unsent.mean())
    if share <= UNSENT_SHARE:
        return []
    return [
        f"{share:.0%} of the requests due in the window could not be sent: the rate was not attained; {MORE}"
    ]


def _allowed_lag_ms(observed: Observed, inside: Bools) -> float:
    waits = (observed.first_ns - observed.due_ns)[inside & (observed.first_ns != NEVER)]
    return max(DISPATCH_LAG_MS, float(np.percentile(waits, 95)) / NS_PER_MS / 10 if len(waits) else 0.0)


def _lags(health: ClientHealth, allowed_ms: float) -> list[str]:
    found = []
    if health.dispatch_lag_p99_ms is not None and health.dispatch_lag_p99_ms > allowed_ms:
        found.append(
            f"client-bound: requests were started {health.dispatch_lag_p99_ms:.1f} ms late (p99, bound"
            f" {allowed_ms:.3g}); {MORE}"
        )
    if health.loop_lag_p99_ms is not None and health.loop_lag_p99_ms > LOOP_LAG_MS:
        found.append(
            f"client-bound: the client noticed events {health.loop_lag_p99_ms:.1f} ms late (p99, bound"
            f" {LOOP_LAG_MS:g}); {MORE}"
        )
    if health.cpu_share is not None and health.cpu_share > CPU_SHARE:
        found.append(f"client-bound: a worker used {health.cpu_share:.0%} of its core; {MORE}")
    return found


def _own_failures(observed: Observed) -> list[str]:
    hints = {
        "client_files": "raise `ulimit -n`",
        "client_ports": "use more machines: one address has some 28,000 ports",
        "client_connections": "too many requests are open at once for one worker",
    }
    return [
        f"{observed.causes[cause]} requests failed on this machine ({cause}); {hint}"
        for cause, hint in hints.items()
        if observed.causes.get(cause)
    ]


def _cached(health: ClientHealth, measured: Measured, on_purpose: bool) -> list[str]:
    if on_purpose:
        return []
    share = health.cached_share or 0.0
    if measured.window is not None:
        counters = [engine.counters for engine in measured.window.engines.values()]
        queries = sum(c.get("prefix_cache_queries", 0.0) for c in counters)
        hits = sum(c.get("prefix_cache_hits", 0.0) for c in counters)
        share = max(share, hits / queries if queries else 0.0)
    if share <= CACHED_SHARE:
        return []
    what = f"the server took {share:.0%} of the prompt tokens from its prefix cache though all were fresh"
    return [f"{what}; is there other traffic on it?"]


def _prompts(health: ClientHealth) -> list[str]:
    share = health.prompt_error_share
    if share is None or share <= LENGTH_SHARE:
        return []
    return [
        f"the server counts prompt tokens {share:.0%} off those asked for; does its tokenizer vary with text?"
    ]


def _lengths(observed: Observed, inside: Bools) -> list[str]:
    answered = inside & (observed.outcome == OK)
    if not answered.any():
        return []
    asked, came = observed.asked_tokens[answered].sum(), observed.output_tokens[answered].sum()
    if abs(came - asked) <= LENGTH_SHARE * asked:
        return []
    return [f"answers held {came / asked:.0%} of the tokens asked for; does the server stop early at an EOS?"]


def _lumps(observed: Observed) -> list[str]:
    """Chunks that come together were held back on the way, and their gaps are not the server's."""
    chunk_ns = observed.gaps.chunk_ns
    if chunk_ns is None or len(chunk_ns) < 100:
        return []
    share = float((chunk_ns < LUMP_NS).mean())
    if share <= LUMP_SHARE:
        return []
    what = f"{share:.0%} of the chunks came at once with the one before"
    return [f"{what}: something on the way holds streams back (a proxy that buffers?), so gaps say nothing"]


def _clock(health: ClientHealth) -> list[str]:
    if health.clock_jump_ms is None or abs(health.clock_jump_ms) <= CLOCK_JUMP_MS:
        return []
    jump_s = health.clock_jump_ms / 1000
    return [
        f"the wall clock moved by {jump_s:+.1f} s against the monotonic one: the machine slept or was set"
    ]


def _in_flight(observed: Observed, inside: Bools, measured: Measured) -> list[str]:
    """Little's law across the wire: what is open here is what the engine holds, running and waiting."""
    if measured.window is None or not inside.any():
        return []
    gauges = [engine.gauges for engine in measured.window.engines.values()]
    held = [
        gauge[name].mean
        for gauge in gauges
        for name in ("num_requests_running", "num_requests_waiting")
        if name in gauge
    ]
    start_ns, end_ns = int(observed.due_ns[inside].min()), int(observed.due_ns[inside].max())
    if not held or end_ns <= start_ns:
        return []
    here = mean_open(observed, start_ns, end_ns)
    if here < 4 or here < 1.5 * sum(held) + 2:
        return []
    what = f"{here:.0f} requests were open here on average but the engine held {sum(held):.0f}"
    return [f"{what}: the others waited before it (front end, router or network)"]


def mean_open(observed: Observed, start_ns: int, end_ns: int) -> float:
    """How many requests were open on average in [start_ns, end_ns), from their send to their end."""
    sent = observed.sent_ns != NEVER
    last = np.where(observed.end_ns == NEVER, end_ns, observed.end_ns)
    open_ns = np.minimum(last, end_ns) - np.maximum(observed.sent_ns, start_ns)
    return float(np.maximum(open_ns[sent], 0).sum() / max(1, end_ns - start_ns))


def _foreign(measured: Measured) -> list[str]:
    """More requests counted by the server than were sent from here."""
    window, observed = measured.window, measured.observed
    if window is None:
        return []
    counted = sum(
        value
        for engine in window.engines.values()
        for name, value in engine.counters.items()
        if name.startswith("request_success")
    )
    ended = observed.end_ns[(observed.outcome != CENSORED) & (observed.end_ns != NEVER)]
    slack_ns = NS_PER_S
    ours = int(((ended >= window.start_ns - slack_ns) & (ended <= window.end_ns + slack_ns)).sum())
    if counted <= ours * 1.05 + 5:
        return []
    return [
        f"the server finished {counted:.0f} requests while {ours} of ours ended: there is other traffic on it"
    ]
