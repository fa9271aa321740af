"""The drive against the plain stepping of the same engine, on a clock that only moves when told to."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from knee.core.clock import ManualClock
from knee.core.units import NS_PER_MS
from knee.engine.config import EngineConfig, StepCost
from knee.engine.drive import step_until
from knee.engine.engine import Engine
from knee.engine.request import Request
from knee.http1.loop import new_event_loop
from knee.mock.config import sped_up
from knee.mock.drive import Drive

CONFIG = EngineConfig(
    step_cost=StepCost(fixed_ns=7 * NS_PER_MS, per_seq_ns=100_000, per_prefill_token_ns=18_000),
    max_num_seqs=4,
    max_num_batched_tokens=64,
    max_model_len=512,
    num_gpu_blocks=40,
)


class Heard:
    """A listener that notes when it heard of its tokens."""

    finish_reason = "length"

    def __init__(self, clock: ManualClock) -> None:
        self.made = 0
        self.complete = False
        self.at_ns: list[int] = []
        self._clock = clock

    def flush(self) -> None:
        self.at_ns += [self._clock.monotonic_ns()] * (self.made - len(self.at_ns))


class Listed:
    """A load that is a list."""

    def __init__(self, requests: list[Request]) -> None:
        self.upcoming = deque(requests)

    def take(self) -> Request:
        return self.upcoming.popleft()

    def refused(self, request: Request, reason: str, now_ns: int) -> None:
        raise AssertionError((request, reason, now_ns))

    def ended(self, requests: list[Request]) -> None:
        pass


def in_loop(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())


ARRIVALS = st.lists(
    st.tuples(st.integers(0, 40 * NS_PER_MS), st.integers(1, 200), st.integers(1, 30)),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(ARRIVALS)
def test_tokens_come_when_plain_stepping_says(arrivals: list[tuple[int, int, int]]) -> None:
    instants = []
    now_ns = 1
    for gap_ns, _, _ in arrivals:
        now_ns += gap_ns
        instants.append(now_ns)

    def requests() -> list[Request]:
        pairs = enumerate(zip(instants, arrivals, strict=True))
        return [Request(n, prompt, output, arrival_ns=at) for n, (at, (_, prompt, output)) in pairs]

    plain, truth = Engine(CONFIG), requests()
    step_until(plain, Listed(list(truth)), 0, 10**12)

    async def main() -> None:
        clock = ManualClock(0)
        drive = Drive(Engine(CONFIG), clock)
        ours, heard = requests(), [Heard(clock) for _ in truth]

        async def run_until(at_ns: int) -> None:
            if at_ns > clock.monotonic_ns():
                await asyncio.sleep(0)  # the drive begins when all that came at this instant is in
            while drive._pending is not None and drive._pending.end_ns <= at_ns:
                clock.advance_ns(drive._pending.end_ns - clock.monotonic_ns())
                drive._ring()
            clock.advance_ns(max(0, at_ns - clock.monotonic_ns()))

        for request, listener, at_ns in zip(ours, heard, instants, strict=True):
            await run_until(at_ns)
            assert drive.submit(request, listener) == ""
        await run_until(10**12)
        for request, listener, true in zip(ours, heard, truth, strict=True):
            assert (listener.at_ns[0], listener.at_ns[-1]) == (true.first_ns, true.last_ns)
            assert (request.first_ns, request.last_ns) == (true.first_ns, true.last_ns)
            assert listener.complete
            assert listener.made == request.output_tokens
        assert drive.snapshot().counters == plain.snapshot(10**12).counters
        assert drive.in_flight == 0
        drive.kill()

    in_loop(main)


def test_a_late_loop_delivers_what_is_overdue_at_once_and_does_not_drift() -> None:
    async def main() -> None:
        clock = ManualClock(0)
        drive = Drive(Engine(CONFIG), clock)
        listener = Heard(clock)
        request = Request(0, 10, 10, arrival_ns=0)
        assert drive.submit(request, listener) == ""
        await asyncio.sleep(0)
        clock.advance_ns(45 * NS_PER_MS)  # the loop was stuck
        drive._ring()
        assert listener.made == 6
        assert drive._pending is not None
        assert drive._pending.end_ns == 7_280_000 + 6 * 7_100_000
        drive.kill()

    in_loop(main)


def test_an_abort_leaves_the_others_alone() -> None:
    async def main() -> None:
        clock = ManualClock(0)
        drive = Drive(Engine(CONFIG), clock)
        first, second = Heard(clock), Heard(clock)
        requests = [Request(0, 10, 50, arrival_ns=0), Request(0, 10, 5, arrival_ns=0)]
        for request, listener in zip(requests, (first, second), strict=True):
            drive.submit(request, listener)
        await asyncio.sleep(0)
        clock.advance_ns(20 * NS_PER_MS)
        drive._ring()
        made = first.made
        drive.abort(requests[0])
        clock.advance_ns(200 * NS_PER_MS)
        drive._ring()
        assert (first.made, second.made, second.complete) == (made, 5, True)
        assert drive.in_flight == 0
        snapshot = drive.snapshot()
        assert snapshot.gauges["num_requests_running"] == 0
        assert snapshot.gauges["kv_cache_usage_perc"] == 0
        drive.kill()

    in_loop(main)


def test_speed_divides_every_cost() -> None:
    config = msgspec.structs.replace(
        CONFIG, front_end=msgspec.structs.replace(CONFIG.front_end, per_request_ns=500)
    )
    fast = sped_up(config, 10)
    assert fast.step_cost == StepCost(fixed_ns=700_000, per_seq_ns=10_000, per_prefill_token_ns=1_800)
    assert (fast.front_end.per_request_ns, fast.front_end.servers) == (50, 1)
    assert fast.max_num_seqs == config.max_num_seqs
