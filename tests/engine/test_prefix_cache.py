"""The prefix cache, which keeps extents, against one that keeps block after block."""

from collections.abc import Hashable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.worlds import EXAMPLES

from knee.engine.config import EngineConfig, StepCost
from knee.engine.kv import KvCache
from knee.engine.request import Request

COST = StepCost(fixed_ns=1, per_seq_ns=0, per_prefill_token_ns=0)


class BlockByBlock:
    """vLLM's block pool: a queue of free blocks, a hash for each full block, a count of its holders.

    But for one thing: from its first second copy on, a request's blocks are known to nobody.
    """

    def __init__(self, blocks: int, size: int) -> None:
        self.size = size
        self.free = list(range(blocks))
        self.key_of: dict[int, Hashable] = {}
        self.block_of: dict[Hashable, int] = {}
        self.holders = dict.fromkeys(range(blocks), 0)
        self.held: dict[object, list[int]] = {}
        self.copying: dict[object, bool] = {}

    def key(self, request: Request, number: int) -> Hashable:
        end, tokens = (number + 1) * self.size, 0
        path: tuple[tuple[int, int], ...] = ()
        for segment in request.shared:
            tokens += segment[1]
            path += (segment,)
            if end <= tokens:
                return (path, number)
        return ("own", request.id, number)

    def hit(self, request: Request) -> list[int]:
        found: list[int] = []
        while len(found) < (request.target - 1) // self.size:
            key = self.key(request, len(found))
            if key not in self.block_of:
                break
            found.append(self.block_of[key])
        return found

    def admit(self, request: Request, budget: int, watermark: int) -> int | None:
        found = self.hit(request)
        idle = sum(self.holders[block] == 0 for block in found)
        whole = -(-request.target // self.size) - len(found)
        if whole + idle + watermark > len(self.free):
            return None
        for block in found:
            if self.holders[block] == 0:
                self.free.remove(block)
            self.holders[block] += 1
        self.held[request.id] = found
        self.copying[request.id] = False
        cached = len(found) * self.size
        self.grow(request, cached, cached + min(budget, request.target - cached))
        return cached

    def grow(self, request: Request, before: int, after: int) -> None:
        held = self.held[request.id]
        while len(held) < -(-after // self.size):
            block = self.free.pop(0)
            key = self.key_of.pop(block, None)
            if key is not None:
                del self.block_of[key]
            self.holders[block] = 1
            held.append(block)
        for number in range(before // self.size, after // self.size):
            key = self.key(request, number)
            if key in self.block_of:
                self.copying[request.id] = True
            if not self.copying[request.id]:
                self.key_of[held[number]] = key
                self.block_of[key] = held[number]

    def release(self, request: Request) -> None:
        for block in reversed(self.held.pop(request.id)):
            self.holders[block] -= 1
            if self.holders[block] == 0:
                self.free.append(block)


SEGMENTS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from((1, 3, 4, 8, 13))), max_size=3).map(tuple)
ANY = st.integers(0, 9)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("new"), st.tuples(SEGMENTS, st.integers(1, 20), st.integers(1, 40))),
        st.tuples(st.just("grow"), st.tuples(ANY, st.integers(1, 12))),
        st.tuples(st.just("again"), st.tuples(ANY, st.integers(1, 40))),
        st.tuples(st.just("end"), st.tuples(ANY, st.booleans())),
    ),
    max_size=60,
)


class Both:
    """The same operations on both."""

    def __init__(self, size: int, blocks: int, kept: int) -> None:
        config = EngineConfig(
            step_cost=COST,
            num_gpu_blocks=blocks + 1,
            block_size=size,
            enable_prefix_caching=True,
            watermark=(kept + 0.5) / (blocks + 1),
        )
        self.kv, self.oracle = KvCache(config), BlockByBlock(blocks, size)
        assert self.kv.watermark == kept
        self.running: list[tuple[Request, int]] = []  # with tokens of KV
        self.waiting: list[Request] = []
        self.sent = 0

    def admit(self, request: Request, budget: int) -> None:
        theirs = self.oracle.admit(request, budget, self.kv.watermark)
        tokens = self.kv.admit(request, budget, alone=False)
        assert bool(tokens) == (theirs is not None)
        if theirs is not None:
            assert request.computed == theirs
            self.running.append((request, theirs + tokens))
        elif request.preemptions:
            self.waiting.append(request)

    def new(self, shared: tuple[tuple[int, int], ...], own: int, budget: int) -> None:
        prompt = sum(tokens for _, tokens in shared) + own - 1 or 1
        self.admit(Request(self.sent, prompt, 100, shared=shared), budget)
        self.sent += 1

    def again(self, which: int, budget: int) -> None:
        if self.waiting:
            self.admit(self.waiting.pop(which % len(self.waiting)), budget)

    def grow(self, which: int, amount: int) -> None:
        if self.running:
            request, tokens = self.running.pop(which % len(self.running))
            if self.kv.grow(request, tokens, tokens + amount):
                self.oracle.grow(request, tokens, tokens + amount)
                tokens += amount
            self.running.append((request, tokens))

    def end(self, which: int, again: bool) -> None:
        if self.running:
            request, tokens = self.running.pop(which % len(self.running))
            self.oracle.release(request)
            self.kv.release(request, tokens, again=again)
            if again:
                request.preemptions += 1
                request.target = max(request.target, tokens + 1)
                self.waiting.append(request)


@settings(max_examples=2 * EXAMPLES, deadline=None)
@given(OPERATIONS, st.sampled_from((1, 3, 4)), st.integers(10, 40), st.sampled_from((0, 2)))
def test_extents_are_blocks(
    operations: list[tuple[str, tuple[Any, ...]]], size: int, blocks: int, kept: int
) -> None:
    both = Both(size, blocks, kept)
    for name, arguments in operations:
        getattr(both, name)(*arguments)
        assert both.kv.free == len(both.oracle.free)
    while both.running:
        both.end(0, again=False)
    assert both.kv.free == len(both.oracle.free) == blocks
    _leaves_nothing_behind(both.kv)


def _leaves_nothing_behind(kv: KvCache) -> None:
    """When all blocks have been taken for something else, no text is known and no node is kept."""
    assert kv.cache is not None
    kv.take(kv.free)
    kv.cache.hit(((99, 1),), None, 0)  # somebody asks
    assert not kv.cache.root.children
    assert not any(high > low for _, (low, high) in kv.cache.queue)


def test_a_second_request_finds_what_the_first_one_computes_in_the_same_step() -> None:
    config = EngineConfig(step_cost=COST, num_gpu_blocks=100, block_size=4, enable_prefix_caching=True)
    kv = KvCache(config)
    first, second = (Request(number, 20, 5, shared=((7, 16),)) for number in range(2))
    assert kv.admit(first, 100, alone=True) == 20
    assert kv.admit(second, 100, alone=False) == 4
    assert second.computed == 16
    assert kv.free == 99 - 5 - 1


def test_one_token_is_always_left_to_compute() -> None:
    config = EngineConfig(step_cost=COST, num_gpu_blocks=100, block_size=4, enable_prefix_caching=True)
    kv = KvCache(config)
    first, second = (Request(number, 16, 5, shared=((7, 16),)) for number in range(2))
    kv.admit(first, 100, alone=True)
    assert kv.admit(second, 100, alone=False) == 4
    assert second.computed == 12
