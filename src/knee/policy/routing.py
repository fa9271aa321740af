"""Which replica gets the next request.

A place is reserved before anything is sent, so that requests arriving between two scrapes do not all see the
same emptiest replica. A replica's load is what this router has in flight there, plus what others have
(running and waiting at the last scrape, beyond our own at that instant), with waiting counted once more and
KV usage on top. What was not scraped, or too long ago, is taken as the mean of the others: missing is never
zero.
"""

from collections.abc import Callable, Sequence
from random import Random

import msgspec

from knee.core.units import NS_PER_S
from knee.policy.prefix import PrefixIndex

STALE_NS = 2 * NS_PER_S
"""A scrape older than this says nothing (llm-d's default staleness threshold)."""

WINDOW_REQUESTS = 2.0
WINDOW_SHARE = 0.25
"""Affinity chooses among replicas at most 2 requests plus a quarter above the least loaded: a shared prefix
saves a part of one prefill, which is not worth standing behind a much longer line."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """One scrape: requests waiting and running (summed over engines), KV usage 0 to 1 (their mean)."""

    at_ns: int
    waiting: float | None = None
    running: float | None = None
    kv_usage: float | None = None


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A replica that may be chosen: its score (lower is emptier) and the leading blocks it has seen."""

    name: str
    score: float
    matched: int = 0


def least_load(candidates: Sequence[Candidate], rng: Random, turn: int) -> Candidate:
    """The emptiest; ties at random, so that several routers do not fall into step."""
    del turn
    least = min(candidate.score for candidate in candidates)
    return rng.choice([candidate for candidate in candidates if candidate.score == least])


def prefix_affinity(candidates: Sequence[Candidate], rng: Random, turn: int) -> Candidate:
    """The longest seen prefix among those nearly as empty as the emptiest; the emptiest on a miss."""
    edge = min(candidate.score for candidate in candidates) * (1 + WINDOW_SHARE) + WINDOW_REQUESTS
    near = [candidate for candidate in candidates if candidate.score <= edge]
    longest = max(candidate.matched for candidate in near)
    return least_load([candidate for candidate in near if candidate.matched == longest], rng, turn)


def round_robin(candidates: Sequence[Candidate], rng: Random, turn: int) -> Candidate:
    """Each in turn, whatever its load."""
    del rng
    return sorted(candidates, key=lambda candidate: candidate.name)[turn % len(candidates)]


Policy = Callable[[Sequence[Candidate], Random, int], Candidate]

POLICIES: dict[str, Policy] = {
    "prefix_affinity": prefix_affinity,
    "least_load": least_load,
    "round_robin": round_robin,
}


class Replica:
    """What the router knows of one engine process. A process that comes back under its name is a new one."""

    __slots__ = ("foreign", "in_flight", "load", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.in_flight = 0
        self.load: Load | None = None
        self.foreign = 0.0


class Reservation:
    """One request's place at one replica; giving it back twice changes nothing."""

    __slots__ = ("held", "replica")

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.held = True
        replica.in_flight += 1

    def release(self) -> None:
        """Give the place back."""
        if self.held:
            self.held = False
            self.replica.in_flight = max(0, self.replica.in_flight - 1)


class Router:
    """The replicas, their reservations, and the prefixes they have seen."""

    def __init__(self, policy: Policy, rng: Random) -> None:
        self._policy = policy
        self._rng = rng
        self._turn = 0
        self.replicas: dict[str, Replica] = {}
        self.prefixes = PrefixIndex()

    def add(self, name: str) -> Replica:
        """A new replica called `name`, with nothing in flight; it replaces one of that name.

        Prefixes seen under the name are kept: a replica that was only out of sight for a moment still has
        them, and one that lost its cache costs no more than any other.
        """
        self.replicas[name] = Replica(name)
        return self.replicas[name]

    def remove(self, name: str) -> None:
        """Forget a replica; reservations that are still held there are given back to nobody."""
        self.replicas.pop(name, None)

    def observe(self, name: str, load: Load) -> None:
        """A scrape of `name` came in."""
        replica = self.replicas.get(name)
        if replica is None:
            return
        replica.load = load
        if load.waiting is not None and load.running is not None:
            replica.foreign = max(0.0, load.waiting + load.running - replica.in_flight)

    def reserve(self, eligible: Sequence[str], keys: tuple[int, ...], now_ns: int) -> Reservation | None:
        """A place at one of the `eligible` replicas for a prompt with `keys`; None where there are none."""
        replicas = [self.replicas[name] for name in eligible if name in self.replicas]
        if not replicas:
            return None
        if len(self.replicas) == 1:  # no choice, now or later
            return Reservation(replicas[0])
        matched = self.prefixes.matched(keys)
        scores = score(replicas, now_ns)
        candidates = [
            Candidate(name=replica.name, score=value, matched=matched.get(replica.name, 0))
            for replica, value in zip(replicas, scores, strict=True)
        ]
        chosen = self._policy(candidates, self._rng, self._turn)
        self._turn += 1
        self.prefixes.record(keys, chosen.name)
        return Reservation(self.replicas[chosen.name])


def score(replicas: Sequence[Replica], now_ns: int) -> list[float]:
    """Each replica's load in requests; comparable within one call only."""
    fresh = [
        replica.load if replica.load is not None and now_ns - replica.load.at_ns <= STALE_NS else None
        for replica in replicas
    ]
    foreign = _known(
        [
            None if load is None or load.waiting is None or load.running is None else replica.foreign
            for replica, load in zip(replicas, fresh, strict=True)
        ]
    )
    waiting = _known([load.waiting if load else None for load in fresh])
    kv_usage = _known([load.kv_usage if load else None for load in fresh])
    held = [replica.in_flight + other for replica, other in zip(replicas, foreign, strict=True)]
    typical = sum(held) / len(held)
    # A cache that is nearly full preempts: squared, so that half full hardly matters and full counts as much
    # as all that a typical replica holds.
    return [
        here + wait + typical * usage**2 for here, wait, usage in zip(held, waiting, kv_usage, strict=True)
    ]


def _known(values: list[float | None]) -> list[float]:
    """Each value, the mean of the others where one is missing, 0 where all are."""
    present = [value for value in values if value is not None]
    mean = sum(present) / len(present) if present else 0.0
    return [mean if value is None else value for value in values]
