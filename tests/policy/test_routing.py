"""Load is compared honestly, and affinity never beats a much shorter line."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knee.policy.prefix import BLOCK_BYTES, MOST_BLOCKS, PrefixIndex, prefix_keys
from knee.policy.routing import POLICIES, STALE_NS, Load, Reservation, Router, score

NAMES = ("a", "b", "c")


def router(policy: str = "prefix_affinity", seed: int = 1, names: tuple[str, ...] = NAMES) -> Router:
    made = Router(POLICIES[policy], Random(seed))
    for name in names:
        made.add(name)
    return made


def take(made: Router, count: int, keys: tuple[int, ...] = (), now_ns: int = 0) -> list[Reservation]:
    held = []
    for _ in range(count):
        reservation = made.reserve(tuple(made.replicas), keys, now_ns)
        assert reservation is not None
        held.append(reservation)
    return held


def scrape(
    made: Router,
    name: str,
    waiting: float | None,
    running: float | None,
    *,
    kv: float | None = 0.0,
    at: int = 0,
) -> None:
    made.observe(name, Load(at_ns=at, waiting=waiting, running=running, kv_usage=kv))


@pytest.mark.parametrize("policy", ["least_load", "prefix_affinity"])
def test_a_burst_between_two_scrapes_spreads(policy: str) -> None:
    made = router(policy)
    for name in NAMES:
        scrape(made, name, 0, 0)
    take(made, 30)
    assert [made.replicas[name].in_flight for name in NAMES] == [10, 10, 10]


def test_ties_fall_at_random_and_the_same_from_the_same_seed() -> None:
    def first(seed: int) -> str:
        return take(router("least_load", seed), 1)[0].replica.name

    firsts = Counter(first(seed) for seed in range(300))
    assert set(firsts) == set(NAMES)
    assert min(firsts.values()) > 60
    assert [first(seed) for seed in range(20)] == [first(seed) for seed in range(20)]


def test_round_robin_takes_turns() -> None:
    assert [held.replica.name for held in take(router("round_robin"), 6)] == ["a", "b", "c", "a", "b", "c"]


def test_what_other_routers_send_counts() -> None:
    made = router("least_load")
    scrape(made, "a", 0, 8)
    scrape(made, "b", 0, 8)
    scrape(made, "c", 0, 2)
    assert Counter(held.replica.name for held in take(made, 6)) == {"c": 6}


def test_our_own_requests_are_not_counted_twice() -> None:
    made = router("least_load", names=("a", "b"))
    held = take(made, 10)
    for name in ("a", "b"):
        scrape(made, name, 0, 5)
    assert score(list(made.replicas.values()), 0) == [5, 5]
    for reservation in held:
        reservation.release()
    assert score(list(made.replicas.values()), 0) == [0, 0]


def test_waiting_weighs_more_than_running_and_a_full_cache_more_than_an_empty_one() -> None:
    made = router(names=("a", "b"))
    scrape(made, "a", 4, 4)
    scrape(made, "b", 0, 8)
    waiting, running = score(list(made.replicas.values()), 0)
    assert waiting > running
    scrape(made, "a", 0, 8, kv=0.95)
    scrape(made, "b", 0, 8, kv=0.30)
    full, empty = score(list(made.replicas.values()), 0)
    assert full > empty


@pytest.mark.parametrize("gone", ["never scraped", "stale", "names missing", "half missing"])
def test_a_missing_metric_is_not_zero(gone: str) -> None:
    made = router("least_load")
    now = 10 * STALE_NS
    for name in ("a", "b"):
        scrape(made, name, 3, 20, kv=0.5, at=now)
    if gone == "stale":
        scrape(made, "c", 0, 0, at=now - STALE_NS - 1)
    elif gone == "names missing":
        scrape(made, "c", None, None, kv=None, at=now)
    elif gone == "half missing":
        scrape(made, "c", None, 0, kv=None, at=now)
    load = dict(zip(NAMES, score(list(made.replicas.values()), now), strict=True))
    assert load["c"] == pytest.approx(load["a"])
    shares = Counter(held.replica.name for held in take(made, 300, now_ns=now))
    assert 80 <= shares["c"] <= 120


def test_a_scrape_outage_of_the_whole_fleet_leaves_our_own_counts() -> None:
    made = router("least_load")
    held = take(made, 9)
    for reservation in held:
        if reservation.replica.name == "b":
            reservation.release()
    assert Counter(r.replica.name for r in take(made, 3, now_ns=100 * STALE_NS)) == {"b": 3}


def test_a_seen_prefix_goes_back_where_it_was() -> None:
    made = router()
    keys = (1, 2, 3)
    (first,) = take(made, 1, keys)
    first.release()
    for _ in range(20):
        (again,) = take(made, 1, keys)
        assert again.replica is first.replica
        again.release()


def test_a_hot_prefix_spreads_before_one_replica_drowns() -> None:
    made = router()
    take(made, 60, (1, 2, 3))
    in_flight = sorted(made.replicas[name].in_flight for name in NAMES)
    assert in_flight[0] >= 12
    assert in_flight[-1] <= in_flight[0] * 1.25 + 3


def test_a_miss_goes_to_the_least_loaded() -> None:
    made = router()
    scrape(made, "a", 0, 1)
    scrape(made, "b", 0, 0)
    scrape(made, "c", 0, 1)
    assert take(made, 1, (9, 8, 7))[0].replica.name == "b"


def test_an_imbalance_limits_affinity_without_dropping_it() -> None:
    made = router()
    made.prefixes.record((1, 2), "a")
    made.prefixes.record((1,), "b")
    scrape(made, "a", 20, 40)
    scrape(made, "b", 0, 1)
    scrape(made, "c", 0, 0)
    # `a` holds the longest prefix behind a long line; `b`, within the window, holds the next best.
    assert take(made, 1, (1, 2))[0].replica.name == "b"


def test_a_replica_that_comes_back_under_its_name_starts_at_zero() -> None:
    made = router()
    old = take(made, 6)
    made.add("a")
    for reservation in old:
        reservation.release()
        reservation.release()
    assert [made.replicas[name].in_flight for name in NAMES] == [0, 0, 0]
    assert Counter(r.replica.name for r in take(made, 3)) == {"a": 1, "b": 1, "c": 1}


def test_a_blip_does_not_forget_prefixes() -> None:
    made = router()
    (held,) = take(made, 1, (5, 6))
    name = held.replica.name
    made.add(name)
    assert take(made, 1, (5, 6))[0].replica.name == name


@given(
    st.sampled_from(sorted(POLICIES)),
    st.integers(0, 2**32),
    st.lists(
        st.tuples(st.sampled_from("rdso"), st.integers(0, 20), st.floats(0, 50), st.floats(0, 1)), max_size=80
    ),
)
def test_counters_never_go_below_zero_and_reservations_are_conserved(
    policy: str, seed: int, steps: list[tuple[str, int, float, float]]
) -> None:
    made = router(policy, seed)
    held: list[Reservation] = []
    for now, (what, pick, amount, share) in enumerate(steps):
        if what == "r":
            held += take(made, 1, (pick % 3,), now * STALE_NS // 4)
        elif what == "d" and held:
            held[pick % len(held)].release()
        elif what == "s":
            missing = None if pick % 5 == 0 else amount
            scrape(made, NAMES[pick % 3], missing, amount, kv=share, at=now * STALE_NS // 4)
        elif what == "o":
            made.add(NAMES[pick % 3])
        for name, replica in made.replicas.items():
            assert replica.in_flight == sum(r.held for r in held if r.replica is replica) >= 0, name
            assert replica.foreign >= 0
    assert made.reserve((), (), 0) is None
    assert made.reserve(("gone",), (), 0) is None


def test_keys_start_at_the_prompt_and_follow_its_beginning() -> None:
    shared = b"You are helpful. " * 200
    one = b'{"model":"m","temperature":0.1,"messages":[{"content":"' + shared + b'first"}]}'
    two = b'{"temperature":0.7,"model":"m2","messages":[{"content":"' + shared + b'second"}]}'
    assert len(prefix_keys(one)) == (len(one) - one.index(b":[{")) // BLOCK_BYTES
    same = sum(a == b for a, b in zip(prefix_keys(one), prefix_keys(two), strict=False))
    assert same >= len(shared) // BLOCK_BYTES - 1
    assert prefix_keys(b'{"prompt":"short"}') == ()
    assert prefix_keys(b"not json at all") == ()
    assert len(prefix_keys(b'{"prompt":"' + b"x" * 10**6)) == MOST_BLOCKS


@given(st.binary(max_size=4000), st.binary(max_size=4000), st.binary(max_size=2000))
def test_equal_keys_mean_equal_beginnings(head: bytes, one: bytes, two: bytes) -> None:
    a, b = b'{"prompt": ' + head + one, b'{"prompt": ' + head + two
    for index, (left, right) in enumerate(zip(prefix_keys(a), prefix_keys(b), strict=False)):
        end = len(b'{"prompt":') + (index + 1) * BLOCK_BYTES
        if a[:end] == b[:end]:
            assert left == right


def test_the_index_is_bounded_and_forgets_the_oldest() -> None:
    index = PrefixIndex(most_keys=10)
    for key in range(25):
        index.record((key,), "a")
    assert len(index) == 10
    assert index.matched((0,)) == {}
    assert index.matched((24,)) == {"a": 1}
    assert index.matched((24, 23, 1)) == {"a": 2}
