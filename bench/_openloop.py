"""The simulation loop of the reference document's program, as it stands there, but for what it returns.

It is the yardstick of `bench/engine.py`: the document's step costs, admission and arrivals, one open-loop
run. It returns every request that ended, with the instants of its first and last token in ms.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

PROMPT, OUTPUT = 1_000, 200
MAX_SEQS, BUDGET = 128, 4_096
DURATION_MS = 240_000


@dataclass
class Req:
    """One request."""

    arrival: float
    computed: int = 0
    out: int = 0
    first: float | None = None


def step_ms(n_seqs: int, prefill: int) -> float:
    """What a step takes."""
    return 7.0 + 0.10 * n_seqs + 0.018 * prefill


def simulate(rate_per_s: float, seed: int = 5) -> list[tuple[Req, float]]:  # noqa: C901 - as it is
    """Everything that ended within the run."""
    rng = random.Random(seed)
    now = 0.0
    waiting: list[Req] = []
    running: list[Req] = []
    done: list[tuple[Req, float]] = []
    next_arrival = rng.expovariate(rate_per_s / 1000)
    while now < DURATION_MS:
        while next_arrival <= now:
            waiting.append(Req(next_arrival))
            next_arrival += rng.expovariate(rate_per_s / 1000)
        while waiting and len(running) < MAX_SEQS:
            running.append(waiting.pop(0))
        if not running:
            now = next_arrival
            continue
        budget, prefill = BUDGET, 0
        plan: list[tuple[Req, int]] = []
        for r in running:
            need = 1 if r.computed >= PROMPT else min(PROMPT - r.computed, budget)
            if need == 0:
                continue
            plan.append((r, need))
            budget -= need
            if r.computed < PROMPT:
                prefill += need
        now += step_ms(len(plan), prefill)
        for r, n in plan:
            if r.computed < PROMPT:
                r.computed += n
                if r.computed < PROMPT:
                    continue
            r.out += 1
            if r.first is None:
                r.first = now
            if r.out == OUTPUT:
                running.remove(r)
                done.append((r, now))
    return done
