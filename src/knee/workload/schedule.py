"""A workload made concrete: which request is due when, and how long it is.

The schedule is drawn once at a rate of one a second from generators of its own (one for arrivals, one for
prompts, one for outputs), and a rate only stretches it. So the same seed gives the same requests at every
rate, whoever asks and however many share the work, and two rates differ by nothing but the rate.
"""

import math
from collections.abc import Iterator

import numpy as np
from numpy.random import Generator, SeedSequence, default_rng

from knee.core.errors import UsageError
from knee.core.requests import Requests
from knee.core.units import NS_PER_S
from knee.workload.arrivals import DrawInstants, draw_arrivals, draw_bursts
from knee.workload.lengths import Draw, draw_lengths
from knee.workload.spec import Workload

CHUNK = 1_024
LATEST_NS = 1 << 62
"""Arrivals that would be due later (146 years on) are due then: the sum of two such instants still fits."""


def schedule(workload: Workload, rate: float, seed: int) -> Iterator[Requests]:
    """The requests of `workload` at `rate` requests/s without end, `CHUNK` at a time, in order of `due_ns`.

    `due_ns` counts from the start of the point. Bursts come on top of the rate. The same arguments give the
    same requests; at twice the rate the same requests (bursts aside) are due in half the time.

    Raises:
        UsageError: the workload or the rate cannot be (raised at once, not while drawing).
    """
    if not 0 < rate < math.inf:
        raise UsageError(f"a rate of {rate:g} requests/s", "a rate is above 0 and may be below 1: 0.25")
    if seed < 0:
        raise UsageError(f"a seed of {seed}", "a seed is 0 or a positive whole number")
    generators = [default_rng(child) for child in SeedSequence(seed).spawn(5)]
    base = _Stream(workload, draw_arrivals(workload.arrivals, generators[0]), 1 / rate, generators[1:3])
    if not workload.arrivals.burst_size:
        return _take(base)
    return _merge(base, _Stream(workload, draw_bursts(workload.arrivals), 1.0, generators[3:5]))


class _Stream:
    """Requests in order: instants from `instants`, each `stretch` seconds, with their own lengths."""

    def __init__(
        self, workload: Workload, instants: DrawInstants, stretch: float, generators: list[Generator]
    ) -> None:
        self._instants = instants
        self._stretch_ns = stretch * NS_PER_S
        self._prompts: Draw = draw_lengths(workload.prompt_tokens, generators[0])
        self._outputs: Draw = draw_lengths(workload.output_tokens, generators[1])

    def next(self, n: int) -> Requests:
        due = np.rint(np.minimum(self._instants(n) * self._stretch_ns, LATEST_NS)).astype(np.int64)
        return Requests(due_ns=due, prompt_tokens=self._prompts(n), output_tokens=self._outputs(n))


def _take(stream: _Stream) -> Iterator[Requests]:
    while True:
        yield stream.next(CHUNK)


def _merge(one: _Stream, other: _Stream) -> Iterator[Requests]:
    # With CHUNK or more pending of each, the first CHUNK of both together are final.
    pending = [one.next(CHUNK), other.next(CHUNK)]
    while True:
        order = np.argsort(np.concatenate([part.due_ns for part in pending]), kind="stable")[:CHUNK]
        yield Requests(
            due_ns=np.concatenate([part.due_ns for part in pending])[order],
            prompt_tokens=np.concatenate([part.prompt_tokens for part in pending])[order],
            output_tokens=np.concatenate([part.output_tokens for part in pending])[order],
        )
        from_one = int((order < len(pending[0])).sum())
        used = (from_one, CHUNK - from_one)
        pending = [
            _joined(part, n, stream.next(n))
            for part, n, stream in zip(pending, used, (one, other), strict=True)
        ]


def _joined(rest: Requests, used: int, fresh: Requests) -> Requests:
    return Requests(
        due_ns=np.concatenate([rest.due_ns[used:], fresh.due_ns]),
        prompt_tokens=np.concatenate([rest.prompt_tokens[used:], fresh.prompt_tokens]),
        output_tokens=np.concatenate([rest.output_tokens[used:], fresh.output_tokens]),
    )
