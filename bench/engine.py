"""How fast the engine is, against the reference document's program in the same run.

Both are timed in CPU seconds, in turns, and the best of each counts: a busy machine slows both alike.
"""

import json
import random
import resource
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal, TypeVar

import msgspec
import numpy as np

from bench._openloop import DURATION_MS, OUTPUT, PROMPT, Req, simulate
from bench.figure import Figure
from knee.core.clock import RealClock
from knee.core.requests import NEVER, Ints, Requests, column
from knee.core.units import NS_PER_MS, NS_PER_S
from knee.engine.config import REFERENCE
from knee.engine.engine import Engine
from knee.engine.plain import Plain
from knee.engine.plain_books import observed
from knee.engine.request import Request
from knee.engine.skip import skip_until

A = TypeVar("A")
B = TypeVar("B")
RATES = (10, 15, 18, 19, 20, 21, 24)
ROUNDS = 5
CLIENTS = 200
FULL = msgspec.structs.replace(REFERENCE, num_gpu_blocks=6_000, enable_prefix_caching=True)
"""The document's costs and caps, with a KV cache of 96,000 tokens: memory binds, and preempts at times."""


def run() -> Iterator[Figure]:
    """All figures."""
    yield from _own_model()
    yield from _everything()
    yield from _command()


def _own_model() -> Iterator[Figure]:
    theirs_s = ours_s = 0.0
    requests = alike = ended = 0
    for rate in RATES:
        (done, their_s), (plain, our_s) = _in_turns(partial(simulate, rate), partial(_plain, _arrivals(rate)))
        theirs_s += their_s
        ours_s += our_s
        requests += plain.offered
        ended += len(done)
        alike += _alike(done, plain)
        yield _figure(f"own model at {rate} req/s, times the document's program", their_s / our_s, "x")
    yield _figure("own model, the document's program", requests / theirs_s, "requests/s")
    yield _figure("own model, this engine", requests / ours_s, "requests/s")
    yield _figure("own model, times the document's program", theirs_s / ours_s, "x", bar=20)
    yield _figure("requests with the same first and last instant", alike / ended, "share", bar=1)


def _plain(due: Ints) -> Plain:
    ones = np.ones(len(due), dtype=np.int64)
    schedule = Requests(due_ns=due, prompt_tokens=PROMPT * ones, output_tokens=OUTPUT * ones)
    plain = Plain(REFERENCE, iter([schedule]))
    plain.advance(DURATION_MS * NS_PER_MS)
    return plain


def _arrivals(rate: float) -> Ints:
    """The document's arrivals, some more than it takes, in ns."""
    rng, due = random.Random(5), [0.0]
    while due[-1] < DURATION_MS + 10_000:
        due.append(due[-1] + rng.expovariate(rate / 1000))
    return column(np.rint(np.asarray(due[1:]) * NS_PER_MS))


def _alike(done: list[tuple[Req, float]], plain: Plain) -> int:
    """Requests with the same instants, but for the rounding of theirs: floats in ms, ours are whole ns."""
    seen = observed(plain)
    ended = seen.end_ns != NEVER
    theirs = sorted((r.arrival, r.first or 0.0, last) for r, last in done)
    ours = zip(seen.first_ns[ended] / NS_PER_MS, seen.last_ns[ended] / NS_PER_MS, strict=True)
    return sum(
        abs(a - first) < 1e-4 and abs(b - last) < 1e-4
        for (a, b), (_, first, last) in zip(ours, theirs, strict=True)
    )


class _Stream:
    """Requests that are not kept: lengths around the document's, one in two opens with one of 20 texts.

    Each of CLIENTS sends its next one when its last one has ended, so that what waits stays bounded.
    """

    def __init__(self, requests: int) -> None:
        self.left = requests
        self.done = 0
        self.upcoming: deque[Request] = deque()
        self._rng = np.random.default_rng(7)
        self._drawn = iter(list[tuple[int, int, int]]())
        for _ in range(CLIENTS):
            self._send(0)

    def take(self) -> Request:
        return self.upcoming.popleft()

    def refused(self, request: Request, reason: str, now_ns: int) -> None:
        raise AssertionError(f"{request} at {now_ns}: {reason}")

    def ended(self, requests: list[Request]) -> None:
        self.done += len(requests)
        for request in requests:
            self._send(request.finished_ns)

    def _send(self, now_ns: int) -> None:
        if not self.left:
            return
        self.left -= 1
        row = next(self._drawn, None)
        if row is None:
            rng, n = self._rng, 1024
            columns = (
                np.clip(rng.lognormal(6.7, 0.6, n), 257, 6000),
                np.clip(rng.lognormal(5.1, 0.6, n), 1, 2000),
                rng.integers(0, 40, n),
            )
            self._drawn = iter(np.stack(columns).astype(np.int64).T.tolist())
            row = next(self._drawn)
        prompt, output, text = row
        shared = ((text, 256),) if text < 20 else ()
        self.upcoming.append(Request(self.left, prompt, output, arrival_ns=now_ns, shared=shared))


def _everything() -> Iterator[Figure]:
    due = _arrivals(20)
    (engine, full_s), (_, their_s) = _in_turns(partial(_full, 20_000), partial(simulate, 20), rounds=3)
    preempted, hits = (
        engine.metrics.preemptions / 20_000,
        engine.metrics.cache_hits / engine.metrics.cache_queries,
    )
    theirs = int((due < DURATION_MS * NS_PER_MS).sum()) / their_s
    yield _figure("everything on: preemptions", preempted, "a request")
    yield _figure("everything on: prompt tokens found in the prefix cache", hits, "share")
    yield _figure("everything on, this engine", 20_000 / full_s, "requests/s")
    yield _figure("everything on, times the document's program", 20_000 / full_s / theirs, "x", bar=5)
    small, large = _child(100_000), _child(1_000_000)
    yield _figure("everything on, 1,000,000 requests: peak memory", large, "MB")
    yield _figure("peak memory that 900,000 requests more take", large - small, "MB", bar=5, better="lower")


def _full(requests: int) -> Engine:
    engine, stream = Engine(FULL), _Stream(requests)
    now_ns = 0
    while stream.done < requests:
        now_ns = skip_until(engine, stream, now_ns, now_ns + 10 * NS_PER_S)
    return engine


def _child(requests: int) -> float:
    """Peak memory in MB of a process that simulates `requests`."""
    code = f"import bench.engine as b; b._full({requests}); print(b.peak_mb())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    )
    return float(json.loads(done.stdout))


def peak_mb() -> float:
    """Peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _command() -> Iterator[Figure]:
    rates = "2,4,6,8,10,12,14,16,18,20"
    code = f"from knee.cli.main import run; run(['simulate', '--rate', '{rates}'])"
    spent = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    yield _figure("knee simulate, 10 rates of 4 minutes, CPU", min(spent), "s", bar=1, better="lower")


def _in_turns(
    one: Callable[[], A], other: Callable[[], B], rounds: int = ROUNDS
) -> tuple[tuple[A, float], tuple[B, float]]:
    """What both return, and the least CPU seconds each took, taken in turns."""
    clock = RealClock()
    best = [float("inf"), float("inf")]
    for _ in range(rounds):
        start = clock.cpu_ns()
        first = one()
        middle = clock.cpu_ns()
        second = other()
        end = clock.cpu_ns()
        best = [min(best[0], middle - start), min(best[1], end - middle)]
    return (first, best[0] / NS_PER_S), (second, best[1] / NS_PER_S)


def _figure(
    figure: str,
    value: float,
    unit: str,
    bar: float | None = None,
    better: Literal["higher", "lower"] = "higher",
) -> Figure:
    shown = round(value) if value > 1000 else float(f"{value:.4g}")
    return Figure(bench="engine", figure=figure, value=shown, unit=unit, bar=bar, better=better)
