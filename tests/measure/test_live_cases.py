"""Wrong values that other tools have given in public, on the load generator's side, and the right ones here.

Each test names the report. What concerns searching, statistics and diagnosis stands with those.
"""

import asyncio
import errno
import gc
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
from tests.measure.test_live_load import inside, measured, offer
from tests.measure.test_live_validity import observed, verdict
from tests.scripted_server import SSE, Call, scripted, steady, text_event, tokens

from knee.core.requests import FAILED, OK, Gaps, column
from knee.core.slo import Slo
from knee.core.units import NS_PER_MS, NS_PER_S
from knee.http1.failure import name_failure
from knee.measure.client.connection import Connection
from knee.measure.client.live import connect
from knee.measure.client.memory import quiet_memory
from knee.measure.client.ready import Due, make_ready
from knee.measure.single import live_point
from knee.workload.spec import Arrivals


def test_200_requests_a_second_are_200() -> None:
    """vllm#21104: 183.52 req/s for 200 asked, by sleeping from one send to the next."""
    asked = offer(rate=200, window_s=1.5, arrivals=Arrivals(kind="constant"))
    got, _ = measured(steady(0.01, 0.001), asked)
    point = live_point(got, asked, Slo(()))
    assert point.offered == 300
    assert point.attained_rate == pytest.approx(200, rel=0.02) or point.invalid


def test_a_client_that_cannot_keep_up_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """vllm-bench's overhead page: TTFT 344 ms for 50 at 1,000 streams, silently. Here it is made slow."""
    plain = make_ready

    def slow(*arguments: Any) -> Iterator[Due]:
        for due in plain(*arguments):
            time.sleep(0.03)
            yield due

    monkeypatch.setattr("knee.measure.client.live.make_ready", slow)
    asked = offer(rate=60, window_s=0.8)
    got, _ = measured(steady(0.01, 0.001), asked)
    point = live_point(got, asked, Slo(()))
    assert any(reason.startswith("client-bound") and "--workers" in reason for reason in point.invalid)
    assert (
        point.offered == int(inside(got.observed, asked).sum()) > 25
    )  # what it could not send is booked too


def test_a_window_without_a_request_is_no_crash() -> None:
    """guidellm#93: a crash, or a wrong rate, when few or no requests end in a phase."""
    asked = offer(rate=0.2, window_s=0.3)
    got, _ = measured(steady(0.01, 0.001), asked)
    point = live_point(got, asked, Slo(()))
    assert point.offered in (0, 1)
    assert point.ttft_ms.p50 is None or point.offered == 1


def test_the_window_goes_by_the_schedule() -> None:
    """guidellm#1078: slow starts of the warm-up leaked into the measured phase, TTFT 14 s for 1.2."""

    async def script(call: Call) -> AsyncIterator[bytes]:
        slow = call.number < 20  # all of them due in the warm-up, many still under way after it
        async for piece in tokens(call, 0.5 if slow else 0.01, 0.001):
            yield piece

    asked = offer(rate=100, window_s=0.8, warmup_ns=NS_PER_S // 2)
    got, _ = measured(script, asked)
    point = live_point(got, asked, Slo(()))
    assert point.ttft_ms.p95 is None or point.ttft_ms.p95 < 200 or point.invalid
    assert (got.observed.first_ns - got.observed.due_ns).max() > 450 * NS_PER_MS


def test_the_first_burst_of_a_closed_loop_is_warm_up() -> None:
    """evalscope#1627: the burst of all clients at the start set the p99; load goes on without a drain."""
    open_now, lows = 0, []

    async def script(call: Call) -> AsyncIterator[bytes]:
        nonlocal open_now
        open_now += 1
        async for piece in tokens(call, 0.3 if call.number < 8 else 0.01, 0.001):
            yield piece
        open_now -= 1
        if call.number > 16:
            lows.append(open_now)

    asked = offer(rate=0, max_concurrency=8, window_s=0.6, warmup_ns=NS_PER_S // 2)
    got, _ = measured(script, asked)
    point = live_point(got, asked, Slo(()))
    assert point.ttft_ms.p50 is not None
    assert point.ttft_ms.p90 is None or point.ttft_ms.p90 < 200 or point.invalid
    assert np.median(lows) >= 4  # never drained between warm-up and window


@pytest.mark.parametrize(
    ("number", "cause"), [(errno.EADDRNOTAVAIL, "client_ports"), (errno.EMFILE, "client_files")]
)
def test_running_out_of_ports_is_the_clients_doing(number: int, cause: str) -> None:
    """inference-perf#50: some 28,000 ports were used up, and the server was blamed."""
    assert name_failure(OSError(number, "x"))[0] == cause
    assert verdict(observed(causes={cause: 1})).invalid


def test_a_request_of_many_minutes_is_a_named_timeout() -> None:
    """tpu-inference#3296: over 5 minutes, and an empty error text."""
    from knee.http1.pool import Timeouts

    async def script(call: Call) -> AsyncIterator[bytes]:  # noqa: ARG001
        yield SSE
        yield text_event("a", 1, 10)
        await asyncio.sleep(30)

    asked = offer(rate=20, window_s=0.3, warmup_ns=0)
    got, _ = measured(script, asked, timeouts=Timeouts(total_s=0.5))
    assert set(got.observed.causes) == {"timeout_total"}
    point = live_point(got, asked, Slo(()))
    assert point.causes["timeout_total"] == point.failed or point.failed < point.causes["timeout_total"]


def test_streams_that_come_in_lumps_are_not_believed() -> None:
    """genai-bench#100: 4,008,080 tokens/s, from chunks that were all read at one instant."""
    chunk_ns = np.array([0, 0, 0, 100 * NS_PER_MS] * 100)
    gaps = Gaps(
        ns=column(chunk_ns), count=column([1] * 400), at_ns=column(range(400)), chunk_ns=column(chunk_ns)
    )
    assert "75% of the chunks came at once" in verdict(observed(gaps=gaps)).invalid[0]
    steady_ns = column([10 * NS_PER_MS] * 400)
    fine = Gaps(ns=steady_ns, count=column([1] * 400), at_ns=column(range(400)), chunk_ns=steady_ns)
    assert verdict(observed(gaps=fine)).invalid == ()


def test_no_long_collection_while_time_counts() -> None:
    """dynamo#13054: pauses of up to 658 ms by a full collection of a large heap."""
    before, held = gc.get_threshold(), [[i] for i in range(200_000)]
    with quiet_memory():
        assert gc.get_freeze_count() > len(held)
        assert gc.get_threshold()[2] > before[2]
        begun = time.perf_counter()
        gc.collect()
        assert time.perf_counter() - begun < 0.05
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
    assert sys.getswitchinterval() == pytest.approx(0.005)


def test_reasons_are_counted_by_occurrence_and_shown() -> None:
    """vllm#24005, dynamo#3674: 500 sent, one success, no reason; error types counted, not errors."""

    async def script(call: Call) -> AsyncIterator[bytes]:
        from tests.scripted_server import plain

        if call.number == 0:
            async for piece in tokens(call, 0.001, 0.001):
                yield piece
        else:
            yield plain(400, b'{"error":{"message":"max_tokens is too large"}}')

    asked = offer(rate=100, window_s=0.5, warmup_ns=0)
    got, _ = measured(script, asked)
    outcome = got.observed.outcome
    assert got.observed.causes == {"http_400": int((outcome == FAILED).sum())}
    assert (outcome == FAILED).sum() > 20
    assert (outcome == OK).sum() == 1
    assert got.health is not None
    assert "http_400: max_tokens is too large" in got.health.notes


def test_a_rerun_with_the_same_seed_meets_no_cache() -> None:
    """vllm#52884: the second run of a seed was 86% faster, by the prefix cache of the first."""
    with scripted(steady(0.0, 0.0)) as server:
        for _ in range(2):
            connect(Connection(url=server.url)).measure(offer(rate=100, window_s=0.2))
    blocks = [" ".join(call.prompt.split()[:16]) for call in server.calls if call.prompt_tokens >= 20]
    assert len(set(blocks)) == len(blocks) > 20
