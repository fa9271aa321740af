"""Load over real HTTP against a server that does what its script says, and the books that come of it."""

import asyncio
import itertools
import json
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.scripted_server import (
    CLOSE,
    CUT,
    END,
    SSE,
    Call,
    Script,
    Scripted,
    event,
    plain,
    scripted,
    steady,
    text_event,
    tokens,
)

from knee.core.requests import CENSORED, FAILED, NEVER, OK, REJECTED, Observed, RequestRecord
from knee.core.run import read_lines
from knee.core.units import NS_PER_MS, NS_PER_S
from knee.http1.pool import Timeouts
from knee.measure.client.connection import Connection
from knee.measure.client.endpoints import Ask
from knee.measure.client.live import LiveTarget, connect
from knee.measure.target import Measured, Offer
from knee.workload.file import load_workload
from knee.workload.schedule import schedule
from knee.workload.spec import Arrivals, Conversations, Lengths, Prefixes, Workload


def offer(rate: float = 40.0, window_s: float = 1.0, **changes: Any) -> Offer:
    spec = Workload(
        prompt_tokens=Lengths(kind="uniform", low=10, high=60),
        output_tokens=Lengths(mean=5),
        arrivals=changes.pop("arrivals", Arrivals()),
    )
    values: dict[str, Any] = {
        "workload": spec,
        "rate": rate,
        "seed": 3,
        "warmup_ns": NS_PER_S // 4,
        "window_ns": round(window_s * NS_PER_S),
        "drain_ns": 2 * NS_PER_S,
    }
    return Offer(**(values | changes))


def measured(script: Script, asked: Offer, **options: Any) -> tuple[Measured, Scripted]:
    with scripted(script) as server:
        target = connect(Connection(url=server.url, **options))
        return target.measure(asked), server


def inside(observed: Observed, asked: Offer) -> Any:
    return (observed.due_ns >= asked.warmup_ns) & (observed.due_ns < asked.warmup_ns + asked.window_ns)


def counts(observed: Observed, asked: Offer) -> dict[int, int]:
    outcomes = observed.outcome[inside(observed, asked)]
    return {code: int((outcomes == code).sum()) for code in (OK, FAILED, REJECTED, CENSORED)}


def test_everything_due_is_sent_when_due_and_booked() -> None:
    asked = offer(rate=60)
    got, server = measured(steady(0.02, 0.005), asked)
    observed = got.observed
    wanted = next(iter(schedule(asked.workload, 60, 3)))
    n = len(observed)
    assert (observed.due_ns == wanted.due_ns[:n]).all()  # the absolute schedule, request by request
    assert (observed.prompt_tokens == wanted.prompt_tokens[:n]).all()
    assert (observed.output_tokens[observed.outcome == OK] == 5).all()
    assert got.health is not None
    assert got.health.prompt_error_share == 0  # checked against the server's usage
    assert len(server.calls) == n
    ours = inside(observed, asked)
    assert set(observed.outcome[ours].tolist()) == {OK}
    assert int(ours.sum()) == int(((wanted.due_ns >= 250e6) & (wanted.due_ns < 1_250e6)).sum())
    lag = (observed.sent_ns - observed.due_ns) / NS_PER_MS
    assert np.median(lag) < 20
    ttft = (observed.first_ns - observed.due_ns)[ours] / NS_PER_MS
    assert 19 < np.median(ttft) < 100
    assert (
        observed.gaps.count.sum()
        == observed.output_tokens[observed.first_ns != NEVER].sum() - (observed.first_ns != NEVER).sum()
    )


def test_arrivals_go_on_until_the_last_measured_request_has_ended() -> None:
    """The tail of the window meets the same load as its middle."""
    asked = offer(rate=50, window_s=0.5)
    got, _ = measured(steady(0.6, 0.0), asked)
    after = got.observed.due_ns >= asked.warmup_ns + asked.window_ns
    assert 15 < after.sum() < 120  # some 0.6 s of arrivals
    assert counts(got.observed, asked)[OK] == inside(got.observed, asked).sum()
    assert got.observed.end_of_load_ns < asked.warmup_ns + asked.window_ns + 2 * NS_PER_S


def test_a_stall_is_seen_from_the_schedule() -> None:
    """The server writes nothing for 0.8 s: what was due meanwhile waited, however many were in flight."""
    stalled: list[int] = []

    async def script(call: Call) -> AsyncIterator[bytes]:
        start_ns = stalled[0] if stalled else call.at_ns
        stalled[:] = [start_ns]
        since_s = (call.at_ns - start_ns) / 1e9
        if 0.5 <= since_s < 1.3:
            await asyncio.sleep(1.3 - since_s)
        async for piece in tokens(call, 0.01, 0.002):
            yield piece

    asked = offer(rate=50, window_s=1.5, warmup_ns=0, arrivals=Arrivals(kind="constant"))
    got, _ = measured(script, asked)
    ours = inside(got.observed, asked)
    ttft = np.sort((got.observed.first_ns - got.observed.due_ns)[ours] / NS_PER_MS)
    assert len(ttft) == 75
    assert 750 < ttft[-1] < 1_300
    assert 300 < np.percentile(ttft, 75) < 900  # 40 of 75 were due in the stall, 0 to 800 ms before its end
    assert ttft[10] < 200


def mixed(call: Call) -> AsyncIterator[bytes]:
    """Of ten requests: six good, an error event, a cut, an end without [DONE], and a refusal."""

    async def script() -> AsyncIterator[bytes]:
        kind = call.number % 10
        if kind == 9:
            yield plain(503, b'{"error":{"message":"The engine is currently busy"}}', "retry-after: 2")
        elif kind < 6:
            async for piece in tokens(call, 0.005, 0.001):
                yield piece
        else:
            yield SSE
            yield text_event("a", 1, 10)
            await asyncio.sleep(0.01)
            if kind == 6:
                yield event({"error": {"message": "EngineCore died"}}) + END
            elif kind == 7:
                yield CUT
            else:
                yield b"0\r\n\r\n"

    return script()


def test_every_kind_of_failure_has_its_own_name() -> None:
    asked = offer(rate=100, window_s=1.0, warmup_ns=0)
    got, server = measured(mixed, asked)
    observed = got.observed
    n = len(server.calls)
    assert n == len(observed)
    tally = {code: int((observed.outcome == code).sum()) for code in (OK, FAILED, REJECTED, CENSORED)}
    assert sum(tally.values()) == n
    ended = n - tally[CENSORED]
    assert abs(tally[OK] - 0.6 * ended) <= 3
    assert abs(tally[REJECTED] - 0.1 * ended) <= 2
    assert set(observed.causes) - {"cut", "reset"} == {"error_event", "no_done", "http_503"}
    assert abs(observed.causes["error_event"] - 0.1 * ended) <= 2
    assert abs(observed.causes.get("cut", 0) + observed.causes.get("reset", 0) - 0.1 * ended) <= 2
    assert sum(observed.causes.values()) == tally[FAILED] + tally[REJECTED]
    assert got.health is not None
    assert any("Retry-After 2" in note for note in got.health.notes)
    assert any("error_event: EngineCore died" in note for note in got.health.notes)


@pytest.mark.parametrize(
    ("pieces", "cause"),
    [
        ([SSE, b"5\r\nhel"], "cut"),
        ([SSE, END], "empty"),
        ([b"HTTP/1.1 200 OK\r\ncontent-le"], "cut"),
        ([b"not http at all\r\n\r\n"], "not_http"),
        ([plain(500, b'{"error":{"message":"no"}}')], "http_500"),
        ([plain(400, b'{"error":{"message":"no"}}')], "http_400"),
        ([SSE, event(b"{bad json"), END], "bad_event"),
    ],
)
def test_answers_that_are_failures(pieces: list[bytes], cause: str) -> None:
    async def script(call: Call) -> AsyncIterator[bytes]:  # noqa: ARG001
        for piece in pieces:
            yield piece
        yield CLOSE

    asked = offer(rate=40, window_s=0.3, warmup_ns=0)
    got, _ = measured(script, asked)
    assert counts(got.observed, asked)[FAILED] == inside(got.observed, asked).sum() > 0
    assert set(got.observed.causes) == {cause}


@pytest.mark.parametrize(
    ("first_s", "gap_s", "cause"),
    [(9, 0, "timeout_first_byte"), (0, 9, "timeout_stalled"), (0, 0.2, "timeout_total")],
)
def test_nothing_hangs_past_its_timeout(first_s: float, gap_s: float, cause: str) -> None:
    async def script(call: Call) -> AsyncIterator[bytes]:  # noqa: ARG001
        await asyncio.sleep(first_s)
        yield SSE
        yield text_event("a", 1, 10)
        for i in range(100):
            await asyncio.sleep(gap_s)
            yield text_event("a", i + 2, 10)

    asked = offer(rate=20, window_s=0.5, warmup_ns=0)
    begun = time.monotonic()
    got, _ = measured(script, asked, timeouts=Timeouts(first_byte_s=0.3, between_bytes_s=0.4, total_s=1.0))
    assert time.monotonic() - begun < 8
    assert set(got.observed.causes) == {cause}
    assert counts(got.observed, asked)[FAILED] == inside(got.observed, asked).sum() > 0


def test_what_does_not_end_in_time_is_censored() -> None:
    asked = offer(rate=20, window_s=0.4, warmup_ns=0, drain_ns=NS_PER_S // 4)
    got, _ = measured(steady(30, 0), asked)
    assert counts(got.observed, asked)[CENSORED] == inside(got.observed, asked).sum() > 0
    assert got.observed.end_of_load_ns < 5 * NS_PER_S


def test_a_server_that_dies_ends_the_point() -> None:
    """Everything seen is kept; the point says that the target was lost."""
    with scripted(steady(0.01, 0.002)) as server:
        target = connect(Connection(url=server.url))
        results: list[Measured] = []
        asked = offer(rate=40, window_s=20)
        running = threading.Thread(target=lambda: results.append(target.measure(asked)))
        running.start()
        time.sleep(0.8)
    running.join(20)
    assert not running.is_alive()
    got = results[0]
    assert got.stopped == "target lost"
    assert got.observed.causes["refused"] >= 20
    assert (got.observed.outcome == OK).sum() > 10


def interrupt_after(server: Scripted, calls: int) -> None:
    """Ctrl-C, once the server has seen so many requests."""
    until = time.monotonic() + 30
    while len(server.calls) < calls and time.monotonic() < until:
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_keeps_everything(tmp_path: Path) -> None:
    with scripted(steady(0.01, 0.002)) as server:
        target = connect(Connection(url=server.url), run=tmp_path)
        threading.Thread(target=interrupt_after, args=(server, 40)).start()
        got = target.measure(offer(rate=40, window_s=60))
    assert got.stopped == "interrupted"
    records = list(read_lines(tmp_path / "records.jsonl", RequestRecord))
    assert len(records) == len(got.observed) > 30
    assert sorted(record.index for record in records) == list(range(len(records)))


def test_records_say_what_the_books_say(tmp_path: Path) -> None:
    with scripted(mixed) as server:
        target = connect(Connection(url=server.url), run=tmp_path)
        target.measure(offer(rate=80, window_s=0.3))
        got = target.measure(offer(rate=80, window_s=0.3)).observed
    records = [r for r in read_lines(tmp_path / "records.jsonl", RequestRecord) if r.point == 1]
    assert len(records) == len(got)
    for record in records:
        i = record.index
        assert record.due_ns == got.due_ns[i]
        assert record.first_ns == got.first_ns[i]
        assert record.output_tokens == got.output_tokens[i]
        assert (
            sum(record.gap_tokens) + record.first_tokens * (record.first_ns != NEVER) == record.output_tokens
        )
    assert sum(len(record.gap_ns) for record in records) == len(got.gaps.ns)


def test_the_watch_ends_a_point_early() -> None:
    seen: list[int] = []

    def watch(observed: Observed, now_ns: int) -> Any:
        seen.append(len(observed))
        assert now_ns > 0
        return "clearly breaks" if len(observed) > 30 else ""

    with scripted(steady(0.01, 0.002)) as server:
        got = connect(Connection(url=server.url)).measure(offer(rate=40, window_s=20), watch)
    assert got.stopped == "clearly breaks"
    assert seen[-1] > 30
    assert len(got.observed) < 300


def test_a_closed_loop_keeps_its_cap_exactly() -> None:
    open_now, most = 0, 0

    async def script(call: Call) -> AsyncIterator[bytes]:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        async for piece in tokens(call, 0.02, 0.002):
            if piece == END:
                open_now -= 1
            yield piece

    asked = offer(rate=0, max_concurrency=7, window_s=0.6)
    got, _ = measured(script, asked)
    assert most == 7
    assert (np.diff(got.observed.due_ns) >= 0).all()
    starts = got.observed.sent_ns - got.observed.due_ns
    assert np.percentile(starts, 90) < 50 * NS_PER_MS
    assert counts(got.observed, asked)[OK] > 50


def test_a_closed_loop_does_not_hammer_a_server_that_refuses() -> None:
    async def script(call: Call) -> AsyncIterator[bytes]:  # noqa: ARG001
        yield plain(503, b"{}")

    got, server = measured(script, offer(rate=0, max_concurrency=2, window_s=0.6))
    assert len(server.calls) < 2 * 12
    assert (got.observed.outcome == REJECTED).sum() > 5


def test_chat_and_headers_and_further_fields() -> None:
    ask = Ask(model="", endpoint="chat", body={"min_p": 0.1}, n=2)
    got, server = measured(
        steady(0.01, 0.001), offer(rate=40, window_s=0.3), ask=ask, headers={"x-team": "a"}
    )
    call = server.calls[0]
    assert call.path == "/v1/chat/completions"
    assert call.headers["x-team"] == "a"
    assert (call.body["min_p"], call.body["n"], call.body["ignore_eos"]) == (0.1, 2, True)
    assert call.body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert (got.observed.asked_tokens == 10).all()


def test_without_streaming() -> None:
    got, server = measured(steady(0.03, 0.005), offer(rate=40, window_s=0.3), ask=Ask(model="", stream=False))
    answered = got.observed.outcome == OK
    assert answered.sum() > 5
    assert (got.observed.output_tokens[answered] == 5).all()
    assert (got.observed.first_ns[answered] == got.observed.last_ns[answered]).all()
    assert len(got.observed.gaps.ns) == 0
    assert server.calls[0].body["stream"] is False


def test_a_stale_connection_is_not_a_failure() -> None:
    """The server closes every kept connection after its answer, which the client may meet as it sends."""

    async def script(call: Call) -> AsyncIterator[bytes]:
        async for piece in tokens(call, 0.001, 0.0):
            yield piece
        yield CLOSE

    asked = offer(rate=200, window_s=0.5)
    got, _ = measured(script, asked)
    assert counts(got.observed, asked)[OK] == inside(got.observed, asked).sum() > 60


def test_prompts_are_fresh_on_every_run_and_as_long_as_asked() -> None:
    """The same seed sends the same lengths and never the same text: no cache can help a second run."""
    with scripted(steady(0.0, 0.0)) as server:
        one, two = (
            connect(Connection(url=server.url)).measure(offer(rate=100, window_s=0.3)).observed
            for _ in range(2)
        )
        both = [call.prompt for call in server.calls]
    assert len({" ".join(prompt.split()[:10]) for prompt in both}) == len(both) > 40
    n = min(len(one), len(two))
    assert (one.prompt_tokens[:n] == two.prompt_tokens[:n]).all()  # in the order in which they were due


def test_metrics_of_two_replicas_are_read_beside_a_router() -> None:
    page = (Path(__file__).parents[2].parent / "shared" / "captures" / "metrics-after-few.txt").read_text()
    with (
        scripted(steady(0.01, 0.001)) as router,
        scripted(steady(0, 0)) as one,
        scripted(steady(0, 0)) as two,
    ):
        one.metrics = two.metrics = lambda: page
        connection = Connection(url=router.url, metrics_urls=(one.url, f"{two.url}/metrics"))
        target = connect(connection)
        got = target.measure(offer(rate=20, window_s=1.2))
        assert target.settle(NS_PER_S) is True
        snapshot = target.snapshot()
    assert {s.source for s in got.snapshots} == {one.url, two.url}
    assert len(got.snapshots) >= 4
    assert got.window is not None
    assert len(got.window.engines) == 2
    assert snapshot is not None
    assert len(snapshot.engines) == 2
    assert all(-NS_PER_S < s.at_ns < 4 * NS_PER_S for s in got.snapshots)


def test_a_client_without_files_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Running out of descriptors is this machine's fault, not the server's."""
    import resource

    monkeypatch.setattr("knee.measure.client.live.allow_many_files", lambda: None)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with scripted(steady(0.5, 0.1)) as server:
        target = connect(Connection(url=server.url))
        held = [socket.socket() for _ in range(3)]
        used = max(s.fileno() for s in held)
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 25, hard))
        try:
            got = target.measure(offer(rate=80, window_s=0.5))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for s in held:
                s.close()
    assert got.observed.causes.get("client_files", 0) > 0


def test_the_limit_on_open_files_is_raised() -> None:
    import resource

    from knee.http1.files import allow_many_files

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        allow_many_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 512
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_realtime_priority_is_taken_or_its_refusal_noted() -> None:
    before = os.sched_getscheduler(0)
    seen: list[int] = []

    def watch(observed: Observed, now_ns: int) -> Any:  # noqa: ARG001
        seen.append(os.sched_getscheduler(0))
        return ""

    with scripted(steady(0.01, 0.002)) as server:
        target = connect(Connection(url=server.url, realtime=True))
        got = target.measure(offer(rate=40, window_s=1.2), watch)
    assert os.sched_getscheduler(0) == before
    assert got.health is not None
    refused = any("real-time priority was not granted" in note for note in got.health.notes)
    first = os.SCHED_RR | os.SCHED_RESET_ON_FORK
    assert set(seen) == {os.SCHED_OTHER if refused else first}  # it holds the lock that the load waits for
    assert refused == (os.geteuid() != 0) or refused


def target_of(server: Scripted, **options: Any) -> LiveTarget:
    return connect(Connection(url=server.url, **options))


def test_a_longer_request_than_the_context_is_refused_before_any_load() -> None:
    from knee.core.errors import TargetError

    models = {"/v1/models": (200, {"data": [{"id": "tiny", "max_model_len": 50}]})}
    with scripted(steady(0, 0), models) as server, pytest.raises(TargetError, match="max_model_len of 50"):
        target_of(server).measure(offer())


def test_conversations_wait_for_answers_and_pause() -> None:
    """A turn carries what was said before, and is due one pause after the turn before it ended."""
    talk = Conversations(turns=Lengths(mean=3), think_s=0.1)
    asked = offer(rate=60, window_s=1.5)
    asked = msgspec.structs.replace(
        asked, workload=msgspec.structs.replace(asked.workload, conversations=talk)
    )
    got, server = measured(steady(0.02, 0.005), asked)
    turns: dict[str, list[Call]] = {}
    for call in server.calls:
        turns.setdefault(" ".join(call.prompt.split()[:8]), []).append(call)
    assert max(map(len, turns.values())) == 3
    pauses = []
    for calls in turns.values():
        for one, other in itertools.pairwise(calls):
            words = one.prompt.split()
            assert other.prompt.split()[: len(words)] == words
            assert len(other.prompt.split()) > len(words) + 5
            pauses.append((other.at_ns - one.writes_ns[-1]) / 1e9)
    assert len(pauses) > 20
    assert min(pauses) >= 0
    assert 0.05 < float(np.mean(pauses)) < 0.5
    answered = got.observed.outcome == OK
    assert (got.observed.first_ns - got.observed.due_ns)[answered].min() > 15 * NS_PER_MS
    assert (np.diff(got.observed.due_ns) >= 0).all()


def test_a_conversation_ends_with_a_failure() -> None:
    async def script(call: Call) -> AsyncIterator[bytes]:  # noqa: ARG001
        yield plain(500, b"{}")

    talk = Conversations(turns=Lengths(mean=3), think_s=0.0)
    asked = offer(rate=60, window_s=0.5)
    asked = msgspec.structs.replace(
        asked, workload=msgspec.structs.replace(asked.workload, conversations=talk)
    )
    _, server = measured(script, asked)
    assert len(server.calls) < 40  # first turns only: 20 a second


def test_shared_prefixes_reach_the_wire() -> None:
    asked = offer(rate=100, window_s=0.3)
    workload = msgspec.structs.replace(
        asked.workload, prompt_tokens=Lengths(mean=80), prefixes=Prefixes(tokens=40, groups=2)
    )
    _, server = measured(steady(0, 0), msgspec.structs.replace(asked, workload=workload))
    assert len({" ".join(call.prompt.split()[:37]) for call in server.calls}) == 2
    assert len({" ".join(call.prompt.split()[37:53]) for call in server.calls}) == len(server.calls)
    assert {call.prompt_tokens for call in server.calls} == {80}


def test_a_replay_reaches_the_wire_when_it_should(tmp_path: Path) -> None:
    at_s = [0.0, 0.1, 0.1, 0.45, 0.9]
    trace = tmp_path / "trace.jsonl"
    trace.write_text(
        "".join(
            json.dumps({"at_s": t, "prompt_tokens": 30 + i, "output_tokens": 2}) + "\n"
            for i, t in enumerate(at_s)
        )
    )
    workload, found = load_workload(trace, replay=True, arrivals=Arrivals())
    assert found is not None
    assert found.rate is not None
    asked = offer(rate=found.rate * 2, window_s=0.5, warmup_ns=0, workload=workload)
    got, server = measured(steady(0.005, 0.001), asked)
    assert np.allclose(got.observed.due_ns[:5] / 1e9, np.array(at_s) / 2, atol=1e-6)
    assert [call.prompt_tokens for call in server.calls[:5]] == [30, 31, 32, 33, 34]
