"""A workload made concrete: which request is due when, how long it is, and what it shares.

The schedule is drawn once at a rate of one a second from generators of its own (one for arrivals, one for
prompts, one for outputs, …), and a rate only stretches it. So the same seed gives the same requests at every
rate, whoever asks and however many share the work, and two rates differ by nothing but the rate.
"""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.random import SeedSequence, default_rng

from knee.core.errors import UsageError
from knee.core.requests import Requests
from knee.core.units import NS_PER_S
from knee.workload.arrivals import DrawInstants, Instants, draw_arrivals, draw_bursts
from knee.workload.conversations import converse
from knee.workload.shapes import DrawShapes, Segments, draw_shapes, mean_of
from knee.workload.spec import Workload
from knee.workload.stages import Warp, warp
from knee.workload.trace import read_trace, replay

CHUNK = 1_024
LATEST_NS = 1 << 62
"""Arrivals that would be due later (146 years on) are due then: the sum of two such instants still fits."""


def schedule(workload: Workload, rate: float, seed: int) -> Iterator[Requests]:
    """The requests of `workload` at `rate` requests/s without end, in stretches of about `CHUNK`.

    They come in order of `due_ns`, counted from the start of the point; turns of a conversation stand behind
    one another instead. Bursts come on top of the rate. The same arguments give the same requests; at twice
    the rate the same requests (bursts and stages aside) are due in half the time.

    Raises:
        UsageError: the workload or the rate cannot be (raised at once, not while drawing).
        InputError: a trace to be replayed cannot be read.
    """
    if not 0 < rate < math.inf:
        raise UsageError(f"a rate of {rate:g} requests/s", "a rate is above 0 and may be below 1: 0.25")
    if seed < 0:
        raise UsageError(f"a seed of {seed}", "a seed is 0 or a positive whole number")
    if sum(part is not None for part in (workload.prefixes, workload.conversations, workload.replay)) > 1:
        raise UsageError("shared prefixes, conversations and a replay at once", "choose one of them")
    if workload.replay is not None:
        return replay(read_trace(Path(workload.replay.path), workload.replay.sha256), rate, CHUNK)
    # New generators are only ever added at the end: what the others draw for a seed stays as it is.
    generators = [default_rng(child) for child in SeedSequence(seed).spawn(9)]
    arrivals = draw_arrivals(workload.arrivals, generators[0])
    bend = warp(workload.arrivals.stages)
    shapes = draw_shapes(workload, [*generators[1:3], generators[5]])
    bursts = workload.arrivals.burst_size > 0
    if workload.conversations is not None:
        if bursts:
            raise UsageError("bursts of conversations", "choose bursts or conversations")
        every_s = mean_of(workload.conversations.turns) / rate

        def begins_s(n: int) -> Instants:
            return bend(arrivals(n) * every_s)

        return converse(workload.conversations, shapes, begins_s, generators[7:9])
    base = _Stream(arrivals, 1 / rate, bend, shapes)
    if not bursts:
        return _take(base)
    more = draw_shapes(workload, [*generators[3:5], generators[6]])
    return _merge(base, _Stream(draw_bursts(workload.arrivals), 1.0, warp(()), more))


class _Stream:
    """Requests in order: instants from `instants`, each `stretch` seconds, with their own shapes."""

    def __init__(self, instants: DrawInstants, stretch: float, bend: Warp, shapes: DrawShapes) -> None:
        self._instants = instants
        self._stretch = stretch
        self._bend = bend
        self._shapes = shapes

    def next(self, n: int) -> Requests:
        due_s = self._bend(self._instants(n) * self._stretch)
        due = np.rint(np.minimum(due_s * NS_PER_S, LATEST_NS)).astype(np.int64)
        shapes = self._shapes(n)
        return Requests(
            due_ns=due,
            prompt_tokens=shapes.prompt_tokens,
            output_tokens=shapes.output_tokens,
            shared=shapes.shared,
        )


def _take(stream: _Stream) -> Iterator[Requests]:
    while True:
        yield stream.next(CHUNK)


def _merge(one: _Stream, other: _Stream) -> Iterator[Requests]:
    # With CHUNK or more pending of each, the first CHUNK of both together are final.
    pending = [one.next(CHUNK), other.next(CHUNK)]
    while True:
        both = _joined(pending[0], pending[1])
        order = np.argsort(both.due_ns, kind="stable")[:CHUNK]
        yield Requests(
            due_ns=both.due_ns[order],
            prompt_tokens=both.prompt_tokens[order],
            output_tokens=both.output_tokens[order],
            shared=None if both.shared is None else tuple(both.shared[i] for i in order.tolist()),
        )
        from_one = int((order < len(pending[0])).sum())
        pending = [
            _joined(part, stream.next(used), used)
            for part, used, stream in zip(pending, (from_one, CHUNK - from_one), (one, other), strict=True)
        ]


def _joined(first: Requests, second: Requests, skip: int = 0) -> Requests:
    """`first` without its first `skip` requests, then `second`."""
    shared: tuple[Segments, ...] | None = None
    if first.shared is not None and second.shared is not None:
        shared = first.shared[skip:] + second.shared
    return Requests(
        due_ns=np.concatenate([first.due_ns[skip:], second.due_ns]),
        prompt_tokens=np.concatenate([first.prompt_tokens[skip:], second.prompt_tokens]),
        output_tokens=np.concatenate([first.output_tokens[skip:], second.output_tokens]),
        shared=shared,
    )
