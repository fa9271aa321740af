"""Small random engines under small random loads: everything binds, ties are common."""

import os
from collections import deque

import msgspec
from hypothesis import strategies as st

from knee.engine.config import EngineConfig, StepCost
from knee.engine.request import Request

EXAMPLES = int(os.environ.get("EXAMPLES", "100"))
"""How many worlds a property is tried on; EXAMPLES=20000 for a long run."""


class World(msgspec.Struct, frozen=True):
    """An engine and what comes to it; a request is its gap, prompt, output, shared segments and priority."""

    config: EngineConfig
    requests: tuple[tuple[int, int, int, tuple[tuple[int, int], ...], int], ...]
    cuts: tuple[int, ...]

    def load(self) -> "Recorded":
        now, made = 0, []
        for number, (gap, prompt, output, shared, priority) in enumerate(self.requests):
            now += gap
            made.append(Request(number, prompt, output, arrival_ns=now, shared=shared, priority=priority))
        return Recorded(made)


class Recorded:
    """A load that remembers what became of it."""

    def __init__(self, requests: list[Request]) -> None:
        self.all = requests
        self.upcoming = deque(requests)
        self.refusals: list[tuple[object, str, int]] = []
        self.order: list[object] = []

    def take(self) -> Request:
        return self.upcoming.popleft()

    def refused(self, request: Request, reason: str, now_ns: int) -> None:
        self.refusals.append((request.id, reason, now_ns))

    def ended(self, requests: list[Request]) -> None:
        self.order += [request.id for request in requests]


@st.composite
def configs(draw: st.DrawFn) -> EngineConfig:
    seqs = draw(st.sampled_from((1, 2, 4, 6, 8, 12)))
    size = draw(st.sampled_from((1, 2, 3, 4, 8, 16)))
    return EngineConfig(
        step_cost=StepCost(
            fixed_ns=draw(st.integers(1, 30)),
            per_seq_ns=draw(st.integers(0, 4)),
            per_prefill_token_ns=draw(st.integers(0, 3)),
            per_context_token_ns=draw(st.sampled_from((0, 0, 1, 2))),
            per_prefill_step_ns=draw(st.sampled_from((0, 0, 1, 9))),
        ),
        max_num_seqs=seqs,
        max_num_batched_tokens=seqs + draw(st.sampled_from((0, 1, 3, 7, 30, 100))),
        max_model_len=100,
        block_size=size,
        num_gpu_blocks=draw(st.integers(40, 260)) // size + 2,
        enable_prefix_caching=draw(st.booleans()),
        long_prefill_token_threshold=draw(st.sampled_from((0, 0, 2, 3, 5, 12))),
        watermark=draw(st.sampled_from((0.0, 0.0, 0.1, 0.5))),
        scheduling_policy=draw(st.sampled_from(("fcfs", "fcfs", "priority"))),
        scheduler_reserve_full_isl=draw(st.booleans()),
        async_scheduling=draw(st.booleans()),
        max_num_queued_reqs=draw(st.sampled_from((None, None, None, 5, 12))),
        max_num_queued_tokens=draw(st.sampled_from((None, None, None, 60, 300))),
    )


@st.composite
def requests(draw: st.DrawFn) -> tuple[int, int, int, tuple[tuple[int, int], ...], int]:
    prompt = draw(st.integers(1, 60))
    shared: tuple[tuple[int, int], ...] = ()
    left = prompt
    for _ in range(draw(st.integers(0, 3))):
        segment = (draw(st.integers(0, 1)), draw(st.sampled_from((1, 4, 7, 16))))
        left -= segment[1]
        if left < 0:
            break
        shared += (segment,)
    gap = draw(st.sampled_from((0, 0, 0, 1, 5, 17, 30, 100, 1000)))
    return gap, prompt, draw(st.integers(1, 40)), shared, draw(st.integers(0, 2))


@st.composite
def worlds(draw: st.DrawFn) -> World:
    # Hypothesis prefers short lists; the same few requests again and again make a crowd.
    tail = draw(st.lists(requests(), min_size=1, max_size=4)) * draw(st.sampled_from((0, 2, 6, 10)))
    cuts = draw(st.lists(st.integers(1, 3000), max_size=3))
    return World(
        draw(configs()),
        tuple(draw(st.lists(requests(), min_size=1, max_size=40)) + tail),
        tuple(sorted(cuts)),
    )
