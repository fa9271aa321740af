"""The points that a calibration takes of a live server: light to medium load, in bounded time."""

import math
from collections.abc import Iterator, Sequence

import msgspec

from knee.core.errors import NoAnswer
from knee.core.point import Point
from knee.core.units import NS_PER_S, s_to_ns
from knee.measure.target import Offer
from knee.workload.spec import Arrivals, Workload

SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)
"""Of the highest rate that the caller calls light, what the open-loop points offer."""

BELIEVED = 6.0
"""A rate called light is not, if it is so many times what the points before it make of one that is."""

AT_ONCE = (0.5, 1.5, 3.0, 6.0, 12.0)
"""Requests in flight to aim at where no such rate is known, by Little's law from how long one took before."""

CROWDED = 2.0
"""A request that takes so many times as long as alone: the load is medium, and there is no need for more.
Seen once it may be the machine's slow moment, so the rate is offered again."""

LOST = 0.1
"""A share of requests without a first token that is no light load."""

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
    rates = sorted({point.rate for point in seen if point.max_concurrency is None})[-CLUMPED_RATES:]
    return [
        _offer(in_clumps(workload), seed + number, server_s / len(rates), rate)
        for number, rate in enumerate(rates)
    ]


def light_offers(
    workload: Workload, seed: int, server_s: float, seen: Sequence[Point], most: float = math.inf
) -> Iterator[Offer]:
    """One client alone, then open-loop points of rising rates, in `server_s` seconds of load at most.

    With `most`, the highest rate in requests/s that is light, the rates are shares of it; without, or where
    it is not to be believed, they rise until a request takes twice as long as alone. Either way they end
    where requests go unanswered. `seen` must hold, before the next offer is asked for, the points that came
    of all before it.

    Raises:
        NoAnswer: one client alone got no answer in a tenth of the time.
    """
    yield _offer(workload, seed, server_s / 10, clients=1)
    alone_ms = seen[-1].e2e_ms.mean_finite
    if not alone_ms:
        raise NoAnswer(
            f"no answer in {server_s / 10:.0f} s", "give it more --server-time, or shorter outputs"
        )
    last_ms, rate, told, crowded = alone_ms, 0.0, True, False
    for number, (share, at_once) in enumerate(zip(SHARES, AT_ONCE, strict=True)):
        aimed = at_once * 1000 / last_ms
        told = told and share * most <= BELIEVED * aimed
        wanted = share * most if told else rate if crowded else aimed
        wanted = min(most, float(f"{wanted:.3g}"))
        left_s = server_s - sum(point.spent_ns for point in seen) / NS_PER_S
        seconds = left_s / (len(SHARES) - number)
        if (wanted < RISE * rate and not crowded) or wanted * seconds / 2 < FEWEST:
            continue
        rate = wanted
        yield _offer(workload, seed + number, seconds, rate)
        point, again = seen[-1], crowded
        last_ms = point.e2e_ms.mean_finite or last_ms
        crowded = not told and last_ms > CROWDED * alone_ms
        if (crowded and again) or point.ttft_ms.n_infinite > LOST * point.ttft_ms.n:
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
