import msgspec
import numpy as np
import pytest

from knee.core.requests import CENSORED, FAILED, NEVER, OK, REJECTED, Observed
from knee.core.slo import parse_slo
from knee.core.units import NS_PER_S
from knee.engine.config import REFERENCE, EngineConfig
from knee.measure.point import make_point
from knee.measure.simulated import SimulatedTarget
from knee.measure.target import Measured, Offer, Stop
from knee.workload.spec import Conversations, Lengths, Prefixes, Workload

WORKLOAD = Workload(prompt_tokens=Lengths(mean=1000), output_tokens=Lengths(mean=200))


def _offer(
    rate: float, *, clients: int | None = None, seed: int = 3, window_s: int = 30, drain_s: int = 60
) -> Offer:
    return Offer(
        workload=WORKLOAD,
        rate=rate,
        seed=seed,
        warmup_ns=10 * NS_PER_S,
        window_ns=window_s * NS_PER_S,
        drain_ns=drain_s * NS_PER_S,
        max_concurrency=clients,
    )


def _with(**changes: object) -> EngineConfig:
    return msgspec.structs.replace(REFERENCE, **changes)


def _balanced(seen: Observed) -> bool:
    counts = [int((seen.outcome == code).sum()) for code in (OK, FAILED, REJECTED, CENSORED)]
    return sum(counts) == len(seen)


def test_every_request_is_in_the_books_and_the_measured_ones_ended() -> None:
    measured = SimulatedTarget(REFERENCE).measure(_offer(15))
    seen = measured.observed
    assert _balanced(seen)
    due_in_window = (seen.due_ns >= 10 * NS_PER_S) & (seen.due_ns < 40 * NS_PER_S)
    assert due_in_window.sum() > 300
    assert (seen.outcome[due_in_window] == OK).all()
    ok = seen.outcome == OK
    assert (seen.first_ns[ok] > seen.due_ns[ok]).all()
    assert (seen.last_ns[ok] == seen.end_ns[ok]).all()
    assert (seen.output_tokens[ok] == 200).all()
    assert (np.diff(seen.due_ns) >= 0).all()
    assert seen.due_ns.max() > 40 * NS_PER_S, "arrivals go on while measured requests are unfinished"


def test_gaps_and_tokens_agree() -> None:
    seen = SimulatedTarget(REFERENCE).measure(_offer(18)).observed
    spoken = seen.first_ns != NEVER
    assert int(seen.gaps.count.sum()) == int((seen.output_tokens[spoken] - 1).sum())
    # The gaps of a request leave no hole between its first token and its last.
    waited = int((seen.last_ns[spoken] - seen.first_ns[spoken]).sum())
    assert int((seen.gaps.ns * seen.gaps.count).sum()) == waited


def test_what_overload_leaves_unfinished_is_censored_and_the_next_point_starts_idle() -> None:
    target = SimulatedTarget(REFERENCE)
    measured = target.measure(_offer(40, drain_s=5))
    seen = measured.observed
    assert (seen.outcome == CENSORED).sum() > 100
    assert (seen.end_ns[seen.outcome == CENSORED] == NEVER).all()
    assert target.settle(0)
    idle = target.measure(_offer(1))
    assert idle.observed.first_ns[0] - idle.observed.due_ns[0] < 30_000_000
    fresh = SimulatedTarget(REFERENCE).measure(_offer(1))
    assert idle.observed.first_ns.tolist() == fresh.observed.first_ns.tolist()


def test_a_full_queue_refuses_and_says_why() -> None:
    seen = SimulatedTarget(_with(max_num_queued_reqs=140)).measure(_offer(30)).observed
    refused = seen.outcome == REJECTED
    assert refused.sum() > 50
    assert seen.causes == {"max_num_queued_reqs": int(refused.sum())}
    assert (seen.end_ns[refused] == seen.due_ns[refused]).all()
    tokens = SimulatedTarget(_with(max_num_queued_tokens=20_000)).measure(_offer(30)).observed
    assert set(tokens.causes) == {"max_num_queued_tokens"}


def test_what_can_never_run_fails_and_holds_nobody_up() -> None:
    seen = SimulatedTarget(_with(num_gpu_blocks=60)).measure(_offer(5)).observed
    assert (seen.outcome == FAILED).all()
    assert seen.causes == {"unservable": len(seen)}
    too_long = SimulatedTarget(_with(max_model_len=1100)).measure(_offer(5)).observed
    assert set(too_long.causes) == {"max_model_len"}


def test_closed_loop_keeps_its_clients_busy_and_no_more() -> None:
    seen = SimulatedTarget(REFERENCE).measure(_offer(0, clients=32)).observed
    last = np.where(seen.end_ns == NEVER, np.iinfo(np.int64).max, seen.end_ns)
    for instant in range(NS_PER_S, 39 * NS_PER_S, NS_PER_S):
        assert int(((seen.due_ns <= instant) & (last > instant)).sum()) == 32
    refusing = SimulatedTarget(_with(max_num_queued_reqs=16)).measure(_offer(0, clients=32)).observed
    assert (refusing.outcome == REJECTED).sum() > 100


def test_the_watch_sees_a_second_at_a_time_and_can_end_the_point() -> None:
    instants: list[int] = []

    def watch(seen: Observed, now_ns: int) -> Stop:
        assert _balanced(seen)
        assert seen.first_ns.max(initial=0) <= now_ns
        instants.append(now_ns)
        return "clearly breaks" if now_ns > 15 * NS_PER_S else ""

    measured = SimulatedTarget(REFERENCE).measure(_offer(30), watch)
    assert measured.stopped == "clearly breaks"
    assert 14 <= len(instants) <= 18
    assert measured.observed.end_of_load_ns == instants[-1] < 17 * NS_PER_S


@pytest.mark.parametrize("rate", [5, 24])
def test_the_window_tells_what_the_requests_saw(rate: float) -> None:
    target = SimulatedTarget(REFERENCE)
    target.measure(_offer(7))  # counters are not at zero when the window opens
    measured: Measured = target.measure(_offer(rate))
    assert measured.window is not None
    engine = measured.window.engines["0"]
    assert not engine.reset
    assert measured.window.seconds == pytest.approx(30, abs=0.2)
    seen = measured.observed
    start, end = (measured.window.start_ns, measured.window.end_ns)
    offset = target.now_ns - seen.end_of_load_ns
    ended = (seen.outcome == OK) & (seen.end_ns > start - offset) & (seen.end_ns <= end - offset)
    assert engine.counters["request_success{length}"] == ended.sum()
    started = (seen.first_ns > start - offset) & (seen.first_ns <= end - offset)
    ttft = engine.histograms["time_to_first_token_seconds"]
    assert ttft.count == started.sum()
    assert ttft.sum == pytest.approx(float((seen.first_ns - seen.due_ns)[started].sum()) / NS_PER_S)
    inside = (seen.gaps.at_ns > start - offset) & (seen.gaps.at_ns <= end - offset)
    assert engine.histograms["inter_token_latency_seconds"].count == seen.gaps.count[inside].sum()
    assert engine.gauges["num_requests_running"].samples >= 30
    if rate > 20:
        assert engine.gauges["num_requests_waiting"].last > 50
        assert engine.gauges["num_requests_running"].mean > 120


def test_served_rate_at_overload_is_the_closed_form() -> None:
    offer = _offer(24, window_s=300, drain_s=0)
    point = make_point(
        SimulatedTarget(REFERENCE).measure(offer), offer, parse_slo("ttft p95 < 1s"), simulated=True
    )
    n, out, prompt = 128, 200, 1000
    capacity = n / (out * (0.007 + 0.0001 * n + 0.000018 * n * prompt / out))
    assert capacity == pytest.approx(20.434, abs=1e-3)
    assert point.served_rate == pytest.approx(capacity, rel=0.005)
    assert point.holds is False


def test_turns_of_a_conversation_wait_for_the_one_before_and_find_it_in_the_cache() -> None:
    talk = Conversations(turns=Lengths(mean=4), think_s=2.0)
    offer = msgspec.structs.replace(_offer(8), workload=msgspec.structs.replace(WORKLOAD, conversations=talk))
    target = SimulatedTarget(_with(enable_prefix_caching=True))
    seen = target.measure(offer).observed
    assert (np.diff(seen.due_ns) >= 0).all()
    assert set(seen.prompt_tokens.tolist()) == {1000, 2200, 3400, 4600}
    for longer, shorter in ((2200, 1000), (3400, 2200), (4600, 3400)):
        # Never more n-th turns begun than (n-1)-th ones ended.
        begun = np.sort(seen.due_ns[seen.prompt_tokens == longer])
        ended = np.sort(seen.end_ns[(seen.prompt_tokens == shorter) & (seen.end_ns != NEVER)])
        assert (begun > ended[: len(begun)]).all()
    counters = target.snapshot().engines["0"].counters
    assert counters["prefix_cache_hits"] / counters["prefix_cache_queries"] > 0.3
    later = seen.first_ns[seen.prompt_tokens == 4600] - seen.due_ns[seen.prompt_tokens == 4600]
    assert np.median(later[later > 0]) < 60_000_000, "a turn of 4,600 tokens of which most are there already"


def test_shared_prefixes_are_found_and_a_second_point_finds_them_at_once() -> None:
    shared = msgspec.structs.replace(WORKLOAD, prefixes=Prefixes(tokens=800, groups=5))
    offer = msgspec.structs.replace(_offer(8), workload=shared)
    target = SimulatedTarget(_with(enable_prefix_caching=True))
    first, second = (target.measure(offer).window for _ in range(2))
    for window in (first, second):
        assert window is not None
        counters = window.engines["0"].counters
        assert counters["prefix_cache_hits"] / counters["prefix_cache_queries"] == pytest.approx(
            0.8, abs=0.01
        )
    fresh = SimulatedTarget(_with(enable_prefix_caching=True)).measure(offer).observed
    again = target.measure(offer).observed
    assert again.first_ns[0] - again.due_ns[0] < fresh.first_ns[0] - fresh.due_ns[0]
