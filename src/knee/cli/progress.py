"""One line that says how a live point is doing, where there is a terminal to say it on."""

import contextlib
import sys
from typing import TYPE_CHECKING

from knee.core.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from knee.measure.client.running import Glance, Progress
    from knee.measure.target import Offer

RECENT_NS = 10 * NS_PER_S


@contextlib.contextmanager
def progress_line(offer: "Offer") -> "Iterator[Progress | None]":
    """Something to call about once a second while a point runs; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return

    def show(glance: "Glance") -> None:
        sys.stderr.write(f"\r\x1b[K{progress_text(offer, glance)}")
        sys.stderr.flush()

    try:
        yield show
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def progress_text(offer: "Offer", glance: "Glance") -> str:
    """Rate asked and attained over the last ten seconds, in flight, failures, TTFT p95 of late."""
    import numpy as np

    from knee.core.requests import FAILED, NEVER, REJECTED

    seen = glance.observed
    since_ns = max(0, glance.at_ns - RECENT_NS)
    recent = seen.due_ns >= since_ns
    seconds = max(1, glance.at_ns - since_ns) / NS_PER_S
    sent = int((recent & (seen.sent_ns != NEVER)).sum()) / seconds
    waits = (seen.first_ns - seen.due_ns)[recent & (seen.first_ns != NEVER)] / NS_PER_MS
    wait = f"{np.percentile(waits, 95):.0f} ms" if len(waits) else "-"
    asked = f"{offer.rate:g}/s" if offer.max_concurrency is None else f"{offer.max_concurrency} clients"
    whole_s = (offer.warmup_ns + offer.window_ns) / NS_PER_S
    at_s = glance.at_ns / NS_PER_S
    phase = "warming up" if glance.at_ns < offer.warmup_ns else "measuring" if at_s < whole_s else "draining"
    bad = [
        f"{name} {int((seen.outcome == code).sum())}"
        for name, code in (("failed", FAILED), ("rejected", REJECTED))
    ]
    return (
        f"{at_s:4.0f}/{whole_s:.0f} s {phase}: asked {asked}, sent {sent:.4g}/s,"
        f" {glance.in_flight} in flight, {', '.join(bad)}, TTFT p95 {wait}"
    )
