"""The reference document's program around our engine: its arrivals, and its definition of its columns.

The document draws gaps in milliseconds from `random.Random(seed).expovariate`, one ahead of the arrival that
it takes, and stops at the end of the first step past 240 s. It counts as served what arrived after 30 s and
ended, over the 210 s that remain, and takes the percentiles of those requests alone.
"""

import random

from knee.engine.config import REFERENCE, EngineConfig
from knee.engine.engine import Engine
from knee.engine.request import Request

PROMPT, OUTPUT = 1_000, 200
DURATION_NS, WARM_NS = 240_000_000_000, 30_000_000_000
NS_PER_MS = 1_000_000

Row = tuple[float, float, float, int]


def simulate(
    rate: float | None = None, clients: int = 0, seed: int = 5, config: EngineConfig = REFERENCE
) -> tuple[list[Request], int]:
    """The requests that ended, in order, and how many waited at the end by the document's admission rule."""
    engine = Engine(config)
    rng = random.Random(seed)

    def draw() -> float:
        return rng.expovariate(rate / 1000) if rate else float("inf")

    now, next_ms, sent = 0, draw(), 0
    done: list[Request] = []

    def send(arrival_ns: int) -> None:
        nonlocal sent
        assert not engine.add(Request(sent, PROMPT, OUTPUT, arrival_ns=arrival_ns), now)
        sent += 1

    for _ in range(clients):
        send(0)
    queued = 0
    while now < DURATION_NS:
        while next_ms * NS_PER_MS <= now:
            send(round(next_ms * NS_PER_MS))
            next_ms += draw()
        step = engine.next_step(now)
        if step is None:
            now = max(now + 1, round(next_ms * NS_PER_MS + 0.5))
            continue
        # The document seats a request before it looks at the token budget: who has no seat is its queue.
        queued = max(0, len(engine.requests) - config.max_num_seqs)
        now = step.end_ns
        engine.settle(now)
        done += step.finished
        for _ in step.finished * bool(clients):
            send(now)
            queued += 1
    return done, queued


def columns(done: list[Request], queued: int) -> Row:
    """Served, TTFT p50 and p95 in seconds, and the queue, as the document defines them."""
    warm = [request for request in done if request.arrival_ns > WARM_NS]
    ttft = sorted((request.first_ns - request.arrival_ns) / NS_PER_MS for request in warm)

    def p(share: float) -> float:
        return ttft[min(len(ttft) - 1, int(share * len(ttft)))] / 1000

    return len(warm) / ((DURATION_NS - WARM_NS) / 1e9), p(0.5), p(0.95), queued


def line(load: int, row: Row) -> str:
    """A line of the document's tables."""
    served, p50, p95, queued = row
    return f"{load:>14} {served:>13.2f} {p50:>8.2f}s {p95:>8.2f}s {queued:>13}"
