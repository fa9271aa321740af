"""How fast the engine is, against the reference document's program in the same run.

Both are timed in CPU seconds, in turns, and the best of each counts: a busy machine slows both alike. The
engine is timed from its sources, and compiled as `make wheel` builds it; the document's program is Python in
either case.
REQUESTS=10_000_000 makes the long run ten million requests (some minutes); by default it is two.
"""

import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
import numpy as np

from bench._compiled import ROOT, install_compiled
from bench._openloop import DURATION_MS, OUTPUT, PROMPT, Req, simulate
from bench.figure import Figure
from knee.core.clock import RealClock
from knee.core.requests import NEVER, Ints, Requests, column
from knee.core.units import NS_PER_MS, NS_PER_S
from knee.engine.books import Books
from knee.engine.columns import Columns
from knee.engine.config import REFERENCE
from knee.engine.engine import Engine
from knee.engine.plain import Plain
from knee.engine.skip import Skip

A = TypeVar("A")
B = TypeVar("B")
RATES = (10, 15, 18, 19, 20, 21, 24)
ROUNDS = 5
CLIENTS, STRETCH = 200, 1024
FULL = msgspec.structs.replace(REFERENCE, num_gpu_blocks=6_000, enable_prefix_caching=True)
"""The document's costs and caps, with a KV cache of 96,000 tokens: memory binds, and preempts at times."""


def run() -> Iterator[Figure]:
    """All figures."""
    yield from _own_model()
    yield from _everything("from source")
    yield from _compiled()
    yield from _memory()
    yield from _command()


def _own_model() -> Iterator[Figure]:
    theirs_s = ours_s = 0.0
    requests = alike = ended = 0
    for rate in RATES:
        (done, their_s), (books, our_s) = _in_turns(partial(simulate, rate), partial(_plain, _arrivals(rate)))
        theirs_s += their_s
        ours_s += our_s
        requests += books.drive.arrived
        ended += len(done)
        alike += _alike(done, books)
        yield _figure(f"own model at {rate} req/s, times the document's program", their_s / our_s, "x")
    yield _figure("own model, the document's program", requests / theirs_s, "requests/s")
    yield _figure("own model, this engine", requests / ours_s, "requests/s")
    yield _figure("own model, times the document's program", theirs_s / ours_s, "x", bar=20)
    yield _figure("requests with the same first and last instant", alike / ended, "share", bar=1)


def _plain(due: Ints) -> Books:
    ones = np.ones(len(due), dtype=np.int64)
    engine = Engine(REFERENCE)
    schedule = Requests(due_ns=due, prompt_tokens=PROMPT * ones, output_tokens=OUTPUT * ones)
    plain = Plain(engine, Columns(iter([schedule])))
    assert plain.advance(DURATION_MS * NS_PER_MS)
    return Books(plain, engine.metrics)


def _arrivals(rate: float) -> Ints:
    """The document's arrivals, some more than it takes, in ns."""
    rng, due = random.Random(5), [0.0]
    while due[-1] < DURATION_MS + 10_000:
        due.append(due[-1] + rng.expovariate(rate / 1000))
    return column(np.rint(np.asarray(due[1:]) * NS_PER_MS))


def _alike(done: list[tuple[Req, float]], books: Books) -> int:
    """Requests with the same instants, but for the rounding of theirs: floats in ms, ours are whole ns."""
    seen = books.observed()
    ended = seen.end_ns != NEVER
    theirs = sorted((r.arrival, r.first or 0.0, last) for r, last in done)
    ours = zip(seen.first_ns[ended] / NS_PER_MS, seen.last_ns[ended] / NS_PER_MS, strict=True)
    return sum(
        abs(a - first) < 1e-4 and abs(b - last) < 1e-4
        for (a, b), (_, first, last) in zip(ours, theirs, strict=True)
    )


def _lengths(requests: int) -> Iterator[Requests]:
    """Lengths around the document's; one prompt in two opens with one of 20 texts of 256 tokens."""
    rng, texts = np.random.default_rng(7), [((text, 256),) if text < 20 else () for text in range(40)]
    for sent in range(0, requests, STRETCH):
        n = min(STRETCH, requests - sent)
        prompts = np.clip(rng.lognormal(6.7, 0.6, STRETCH), 257, 6000)[:n]
        outputs = np.clip(rng.lognormal(5.1, 0.6, STRETCH), 1, 2000)[:n]
        opens = rng.integers(0, 40, STRETCH)[:n].tolist()
        yield Requests(
            due_ns=np.zeros(n, dtype=np.int64),
            prompt_tokens=prompts.astype(np.int64),
            output_tokens=outputs.astype(np.int64),
            shared=tuple(map(texts.__getitem__, opens)),
        )


def _everything(build: str, bar: float | None = None) -> Iterator[Figure]:
    due = _arrivals(20)
    (engine, full_s), (_, their_s) = _in_turns(partial(_full, 20_000), partial(simulate, 20))
    counted = engine.metrics
    theirs = int((due < DURATION_MS * NS_PER_MS).sum()) / their_s
    yield _figure(f"everything on, {build}: preemptions", counted.preemptions / 20_000, "a request")
    hits = counted.cache_hits / counted.cache_queries
    yield _figure(f"everything on, {build}: prompt tokens found in the prefix cache", hits, "share")
    yield _figure(f"everything on, {build}", 20_000 / full_s, "requests/s")
    yield _figure(f"everything on, {build}, times the document's program", 20_000 / full_s / theirs, "x", bar)
    for rate in RATES:  # the document's arrivals: below its knee, at it, and in overload
        (_, full_s), (_, their_s) = _in_turns(partial(_open, _schedule(rate)), partial(simulate, rate))
        yield _figure(f"everything on, {build}, open loop at {rate} req/s", their_s / full_s, "x")


def _compiled() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        install_compiled(Path(folder))
        told = _in_child("b.tell_compiled()", {"PYTHONPATH": folder})
    for row in told.splitlines():
        yield msgspec.json.decode(row, type=Figure)


def tell_compiled() -> None:
    """Print the figures of the engine that this process has, which is compiled."""
    assert not str(sys.modules[Skip.__module__].__file__).endswith(".py"), "this engine is not compiled"
    for figure in _everything("compiled", bar=5):
        print(msgspec.json.encode(figure).decode())


def _memory() -> Iterator[Figure]:
    most = int(os.environ.get("REQUESTS", "2_000_000"))
    small, large = _peak_mb(200_000), _peak_mb(most)
    yield _figure(f"everything on, {most:,} requests: peak memory", large, "MB")
    yield _figure("peak memory, times that of 200,000 requests", large / small, "x", bar=1.1, better="lower")


def _schedule(rate: float) -> Requests:
    """The document's arrivals with lengths and texts of their own."""
    due = _arrivals(rate)
    drawn = list(_lengths(len(due)))
    columns = {
        name: np.concatenate([getattr(part, name) for part in drawn])
        for name in ("prompt_tokens", "output_tokens")
    }
    return Requests(due_ns=due, shared=tuple(text for part in drawn for text in part.shared or ()), **columns)


def _open(schedule: Requests) -> Engine:
    engine = Engine(FULL)
    skip = Skip(engine, Columns(iter([schedule])))
    skip.advance(DURATION_MS * NS_PER_MS)
    Books(skip, engine.metrics, kept=False).enter()
    return engine


def _full(requests: int) -> Engine:
    """CLIENTS, each of whom sends its next request when its last one has ended; no request is kept."""
    engine = Engine(FULL)
    skip = Skip(engine, Columns(_lengths(requests), CLIENTS))
    books, until_ns = Books(skip, engine.metrics, kept=False), 0
    while engine.metrics.finished["length"] < requests:
        until_ns += 1000 * NS_PER_S
        skip.advance(until_ns)
        books.enter()
    return engine


def _peak_mb(requests: int) -> float:
    """Peak memory in MB of a process that simulates `requests`."""
    return float(json.loads(_in_child(f"b._full({requests}); print(b.peak_mb())", {})))


def _in_child(code: str, env: dict[str, str]) -> str:
    """What `code` prints, in a process in which `b` is this module."""
    done = subprocess.run(
        [sys.executable, "-c", f"import bench.engine as b; {code}"],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=True,
        timeout=1800,
    )
    return done.stdout


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
