"""Does tuning end at the best flags? Simulated servers with bad flags, beside grid and random search.

`KNEE_BENCH_SERVERS` sets how many servers are drawn (30). The best flags are those of an exhaustive grid, its
knees are measured without noise: long runs of the true engine with one schedule for all. Grid search and
random search are given the same server time as the session used and those noise-free knees, which favours
them: a sweep of theirs is taken to need as many requests as one of the session's.
"""

import math
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec

from bench._random_servers import capacity, draw
from bench.figure import Figure
from knee.core.clock import ManualClock
from knee.measure.model.fitting import StepFit
from knee.measure.model.longrun import long_run_knee, long_run_shares
from knee.measure.model.replay import Model
from knee.tune.config import Bounds, SimulatedServer, Spend, TuneConfig
from knee.tune.session import new_session, run_session
from knee.tune.simulated import engine_of, engine_with

SEQS = (8, 16, 32, 64, 128, 256, 512)
TOKENS = (256, 512, 1024, 2048, 4096, 8192)
GOOD_ENOUGH = 0.95
REQUESTS = 3000
"""Requests of a true knee, the same for all flags, so that what chance does to them is the same too."""

NO_FIT = StepFit(fixed_ns=1, per_seq_ns=0, per_prefill_token_ns=0, per_context_token_ns=0, error=0)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one server: knees in requests/s, all by the same long runs."""

    seed: int
    first: float
    best: float
    ended: float
    grid: float
    at_random: float
    sweeps: int
    reason: str
    flags: dict[str, str]
    start: dict[str, str]


def drawn(seed: int) -> TuneConfig:
    """A random server and load with flags as likely bad as good; no front end, which these do not move."""
    server = draw(seed)
    rng = random.Random(seed * 7 + 1)
    seqs = rng.choice(SEQS)
    tokens = rng.choice([tokens for tokens in TOKENS if tokens >= seqs])
    config, cost = server.config, server.config.step_cost
    return TuneConfig(
        server=SimulatedServer(
            step_ms=cost.fixed_ns / 1e6,
            seq_ms=cost.per_seq_ns / 1e6,
            prefill_token_ms=cost.per_prefill_token_ns / 1e6,
            num_gpu_blocks=config.num_gpu_blocks,
            max_model_len=config.max_model_len,
        ),
        workload=server.workload,
        slo=server.slo,
        flags={"max_num_seqs": str(seqs), "max_num_batched_tokens": str(tokens)},
        moves={
            "max_num_seqs": Bounds(low=SEQS[0], high=SEQS[-1]),
            "max_num_batched_tokens": Bounds(low=TOKENS[0], high=TOKENS[-1]),
        },
        spend=Spend(precision=0.05, points=8),
        seed=seed,
    )


def true_knee(config: TuneConfig, flags: dict[str, str]) -> float:
    """The long-run knee with these flags, 0 where the SLO holds at no rate."""
    assert isinstance(config.server, SimulatedServer)
    engine = engine_with(engine_of(config.server), flags)
    assert engine is not None
    shares = long_run_shares(Model(config=engine, fit=NO_FIT), config.workload, config.slo, REQUESTS)
    try:
        return long_run_knee(shares, config.slo, 0.8 * capacity(engine, config.workload)).knee
    except ValueError:
        return 0.0


def run_server(seed: int) -> Row | None:
    """Tune one server; None where the SLO holds with no flags of the grid."""
    config = drawn(seed)
    truth = {
        (seqs, tokens): true_knee(config, {"max_num_seqs": str(seqs), "max_num_batched_tokens": str(tokens)})
        for seqs in SEQS
        for tokens in TOKENS
        if tokens >= seqs
    }
    best = max(truth.values())
    if best <= 0:
        return None
    with tempfile.TemporaryDirectory() as folder:
        session = Path(folder) / "session"
        new_session(session, config)
        outcome = run_session(session, config, ManualClock(), lambda _: None)
    ended = true_knee(config, outcome.flags)
    effort = [entry.result.server_s * entry.result.rate for entry in outcome.entries if entry.result.rate > 0]
    each = statistics.median(effort) if effort else math.inf
    order = list(truth)
    grid = _searched(order, truth, each, outcome.server_s)
    random.Random(seed).shuffle(order)
    return Row(
        seed=seed,
        first=true_knee(config, config.flags),
        best=best,
        ended=ended,
        grid=grid,
        at_random=_searched(order, truth, each, outcome.server_s),
        sweeps=len(outcome.entries),
        reason=outcome.stop.reason,
        flags=outcome.flags,
        start=config.flags,
    )


def _searched(
    order: Sequence[tuple[int, int]], truth: dict[tuple[int, int], float], each: float, time_s: float
) -> float:
    """The best knee of those that can be measured in `time_s`; a sweep needs `each` / knee seconds."""
    found = 0.0
    for flags in order:
        knee = truth[flags]
        time_s -= each / knee if knee > 0 else 0.0
        if time_s < 0:
            break
        found = max(found, knee)
    return found


def run() -> Iterator[Figure]:
    servers = int(os.environ.get("KNEE_BENCH_SERVERS", "30"))
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        rows = [row for row in pool.map(run_server, range(servers)) if row is not None]
    for row in rows:
        sys.stderr.write(
            f"server {row.seed}: {row.start} → {row.flags}, {row.sweeps} sweeps, {row.reason}: knee "
            f"{row.first:.3g} → {row.ended:.3g}, {row.ended / row.best:.1%} of the best {row.best:.3g}; "
            f"grid {row.grid / row.best:.1%}, random {row.at_random / row.best:.1%}\n"
        )
    yield from figures(rows, servers)


def figures(rows: Sequence[Row], servers: int) -> Iterator[Figure]:
    """What the rows amount to."""

    def of(figure: str, value: float, unit: str, bar: float | None = None, *, lower: bool = False) -> Figure:
        return Figure(
            bench="tune",
            figure=figure,
            value=round(value, 4),
            unit=unit,
            bar=bar,
            better="lower" if lower else "higher",
        )

    shares = sorted(row.ended / row.best for row in rows)
    yield of(f"servers whose SLO can hold, of {servers}", len(rows), "servers")
    yield of(
        "servers tuned to 95% of the best knee",
        sum(s >= GOOD_ENOUGH for s in shares) / len(rows),
        "share",
        1.0,
    )
    yield of("knee over the best of the grid, median", statistics.median(shares), "ratio", GOOD_ENOUGH)
    yield of("knee over the best of the grid, worst", shares[0], "ratio", GOOD_ENOUGH)
    yield of("knee over the first, worst", min(_gain(row) for row in rows), "ratio", 0.98)
    yield of("knee over the first, median", statistics.median(_gain(row) for row in rows), "ratio")
    yield of("sweeps, median", statistics.median(row.sweeps for row in rows), "sweeps", 6, lower=True)
    yield of("sweeps, most", max(row.sweeps for row in rows), "sweeps")
    for name, values in (
        ("grid search", [row.grid / row.best for row in rows]),
        ("random search", [row.at_random / row.best for row in rows]),
    ):
        yield of(
            f"{name} at equal server time: knee over the best, median", statistics.median(values), "ratio"
        )
        reached = sum(value >= GOOD_ENOUGH for value in values) / len(rows)
        yield of(f"{name} at equal server time: servers at 95% of the best", reached, "share")


def _gain(row: Row) -> float:
    return row.ended / row.first if row.first > 0 else math.inf
