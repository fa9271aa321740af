"""The queue before the engine: its servers do one thing at a time, and its cost shows to the client only."""

import asyncio
import re
import threading
import time
from itertools import pairwise

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.mock.asking import QUICK, ask

from knee.core.clock import ManualClock
from knee.engine.config import FrontEnd
from knee.http1.loop import new_event_loop
from knee.mock.config import MockConfig
from knee.mock.frontend import FrontEndQueue
from knee.mock.running import mock_server


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 3), st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5)), min_size=1, max_size=20))
def test_each_server_does_one_thing_at_a_time_in_order(servers: int, work: list[tuple[int, int]]) -> None:
    async def main() -> None:
        clock = ManualClock(1)
        front = FrontEndQueue(FrontEnd(servers=servers, per_token_ns=10), clock)
        free_at = [0] * servers
        want: list[tuple[int, int, int]] = []
        got: list[tuple[int, int, int]] = []

        def run_until(at_ns: int) -> None:
            while front._due and front._due[0][0] <= at_ns:
                clock.advance_ns(front._due[0][0] - clock.monotonic_ns())
                front._ring()
            clock.advance_ns(at_ns - clock.monotonic_ns())

        for number, (gap_ns, tokens) in enumerate(work):
            run_until(clock.monotonic_ns() + gap_ns)
            server = number % servers
            free_at[server] = max(free_at[server], clock.monotonic_ns()) + 10 * tokens
            want.append((free_at[server], server, number))
            front.emit(server, tokens, lambda s=server, n=number: got.append((clock.monotonic_ns(), s, n)))  # type: ignore[misc]
        run_until(clock.monotonic_ns() + 10_000)
        assert sorted(got) == sorted(want)
        for server in range(servers):
            numbers = [n for _, s, n in got if s == server]
            assert all(a < b for a, b in pairwise(numbers))
        front.close()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())


def mean(page: str, name: str) -> float:
    """The mean of a histogram of the page, in seconds."""
    found = dict(re.findall(rf"^vllm:{name}_(sum|count)\S* (\S+)$", page, re.MULTILINE))
    return float(found["sum"]) / float(found["count"])


def test_its_cost_shows_to_the_client_and_only_in_part_to_the_engine() -> None:
    front = FrontEnd(per_request_ns=50_000_000, per_token_ns=2_000_000)
    engine = msgspec.structs.replace(QUICK, front_end=front)
    took: list[float] = []
    with mock_server(MockConfig(engine=engine)) as server:

        def one() -> None:
            got = ask(server.url, "/v1/completions", {"prompt": "a", "max_tokens": 50, "stream": True})
            took.append(time.monotonic() - began)
            assert sum(len(e["choices"][0]["text"].split()) for e in got.events) == 50

        threads = [threading.Thread(target=one) for _ in range(4)]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        page = ask(server.url, "/metrics").body.decode()
    # four requests and 200 tokens through one server that does one thing at a time
    assert max(took) >= 4 * 0.050 + 200 * 0.002
    assert mean(page, "time_to_first_token_seconds") >= 0.05, "the wait before the engine is in it"
    assert mean(page, "request_queue_time_seconds") < 0.05, "the engine's own queue is short"
    assert mean(page, "inter_token_latency_seconds") < 0.01, "and the way out is not in its gaps"


def test_more_servers_share_the_work() -> None:
    front = FrontEnd(servers=4, per_request_ns=100_000_000)
    engine = msgspec.structs.replace(QUICK, front_end=front)
    body = {"prompt": "a", "max_tokens": 1}
    with mock_server(MockConfig(engine=engine)) as server:
        threads = [threading.Thread(target=ask, args=(server.url, "/v1/completions", body)) for _ in range(4)]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert 0.1 <= time.monotonic() - began < 0.35
