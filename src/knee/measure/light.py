"""The points that a calibration takes of a live server: light to medium load, in bounded time."""

import math
from collections.abc import Iterator, Sequence

import msgspec

from knee.core.errors import NoAnswer
from knee.core.point import Point
from knee.core.units import NS_PER_S, s_to_ns
from knee.measure.target import Offer
from knee.workload.spec import Arrivals, Workload

AT_ONCE = (0.5, 1.5, 3.0, 6.0, 12.0)
"""Requests in flight that the open-loop points aim at, by Little's law from how long one took before."""

CROWDED = 2.0
"""A request that takes so many times as long as alone: the load is medium, and there is no need for more."""

RISE = 1.2
"""A rate that is not so much above the last one tells nothing new."""

FEWEST = 20
"""Requests that a point needs to be worth its time."""


CLUMPS = Arrivals(kind="gamma", burstiness=0.15)
"""Some seven requests come together, then none for a while: batches as large as at the knee come up for
moments under a light mean load, and prompts that are read together tell a step's cost from that of tokens."""

CLUMPED_RATES = 3
CLUMPED_SHARE = 0.4
"""Of the time of load, what goes to points with requests in clumps. Not all: as long as requests come one by
one, each is taken in while the engine works, and that costs steps, too."""


def in_clumps(workload: Workload) -> Workload:
    """The workload with requests in clumps."""
    return msgspec.structs.replace(workload, arrivals=CLUMPS)


def clumped_offers(workload: Workload, seed: int, server_s: float, seen: Sequence[Point]) -> list[Offer]:
    """The highest rates seen in open loop, with requests in clumps, in `server_s` seconds of load."""
    rates = [point.rate for point in seen if point.max_concurrency is None][-CLUMPED_RATES:]
    return [
        _offer(in_clumps(workload), seed + number, server_s / len(rates), rate)
        for number, rate in enumerate(rates)
    ]


def light_offers(
    workload: Workload, seed: int, server_s: float, seen: Sequence[Point], most: float = math.inf
) -> Iterator[Offer]:
    """One client alone, then open-loop points of rising rates, in `server_s` seconds of load at most.

    No rate is above `most` requests/s. `seen` must hold, before the next offer is asked for, the points that
    came of all before it.

    Raises:
        NoAnswer: one client alone got no answer in a tenth of the time.
    """
    yield _offer(workload, seed, server_s / 10, clients=1)
    alone_ms = seen[-1].e2e_ms.mean_finite
    if not alone_ms:
        raise NoAnswer(
            f"no answer in {server_s / 10:.0f} s", "give it more --server-time, or shorter outputs"
        )
    last_ms, last_rate = alone_ms, 0.0
    for number, at_once in enumerate(AT_ONCE):
        rate = min(most, float(f"{at_once * 1000 / last_ms:.3g}"))
        left_s = server_s - sum(point.spent_ns for point in seen) / NS_PER_S
        seconds = left_s / (len(AT_ONCE) - number)
        if rate < RISE * last_rate or rate * seconds / 2 < FEWEST:
            continue
        yield _offer(workload, seed + number, seconds, rate)
        point, last_rate = seen[-1], rate
        last_ms = point.e2e_ms.mean_finite or last_ms
        if rate == most or point.ok < point.offered or last_ms > CROWDED * alone_ms:
            return


def _offer(
    workload: Workload, seed: int, seconds: float, rate: float = 0.0, clients: int | None = None
) -> Offer:
    """A point of `seconds`: a tenth to warm up, and a fifth for what is late."""
    return Offer(
        workload=workload,
        rate=rate,
        seed=seed,
        warmup_ns=s_to_ns(seconds / 10),
        window_ns=s_to_ns(seconds * 0.7),
        drain_ns=s_to_ns(seconds / 5),
        max_concurrency=clients,
    )
