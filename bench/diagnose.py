"""Is the first verdict right, and does its move help? Simulated servers whose true limit is known.

The confusion table goes to stderr. `KNEE_BENCH_SERVERS` sets how many servers are drawn (300).
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from bench._counterfactual import Case, run_case
from bench.figure import Figure
from knee.metrics import exposition
from knee.metrics.exposition import parse_exposition

PAGE = Path(__file__).parents[1] / "tests" / "data" / "metrics" / "vllm-0.32.0.prom"


FIRST_SEED = 10_000
"""Thresholds were set on servers with smaller seeds; these were not looked at."""


def run() -> Iterator[Figure]:
    yield from _parser()
    yield from _verdicts(int(os.environ.get("KNEE_BENCH_SERVERS", "300")))


def _parser() -> Iterator[Figure]:
    """The parser on a recorded page, with its memory of line heads empty and warm."""
    if not PAGE.is_file():
        return
    text = PAGE.read_text()
    samples = len(parse_exposition(text).samples)
    for name, forget in (("cold", True), ("warm", False)):
        best = min(_once(text, forget) for _ in range(50))
        yield Figure(
            bench="diagnose",
            figure=f"parse a page of {samples} samples, {name}",
            value=round(best * 1000, 3),
            unit="ms",
            bar=1.2,
            better="lower",
        )


def _once(text: str, forget: bool) -> float:
    if forget:
        exposition._head.cache_clear()  # noqa: SLF001 - what a first scrape costs
    start = time.perf_counter()
    parse_exposition(text)
    return time.perf_counter() - start


def _verdicts(servers: int) -> Iterator[Figure]:
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        cases = [
            case for case in pool.map(run_case, range(FIRST_SEED, FIRST_SEED + servers)) if case is not None
        ]
    decisive = [case for case in cases if case.truth is not None]
    sys.stderr.write(confusion(decisive))
    right = sum(case.verdict.limit == case.truth for case in decisive)
    wrong = sum(
        case.verdict.limit not in (case.truth, None) and case.verdict.confidence == "high"
        for case in decisive
    )
    moved = [case for case in cases if case.moved is not None]
    better = sum(case.moved is not None and case.moved > 1 for case in moved)

    def share(figure: str, part: int, whole: int, bar: float | None, better: str = "higher") -> Figure:
        value = round(part / max(1, whole), 4)
        return Figure(
            bench="diagnose",
            figure=f"{figure} ({part} of {whole})",
            value=value,
            unit="share",
            bar=bar,
            better="higher" if better == "higher" else "lower",
        )

    yield share("servers drawn whose SLO can hold", len(cases), servers, None)
    yield share("decisive cases", len(decisive), len(cases), None)
    yield share("first verdict right where the truth is decisive", right, len(decisive), 0.95)
    yield share("sure and wrong where the truth is decisive", wrong, len(decisive), None, "lower")
    yield share("the move raises the knee where one was named", better, len(moved), 0.95)


def confusion(cases: Sequence[Case]) -> str:
    """Truth by verdict."""
    table = Counter((case.truth or "", case.verdict.limit or "cannot tell") for case in cases)
    columns = sorted({verdict for _, verdict in table})
    width = max([len(name) for pair in table for name in pair] + [5])
    lines = ["truth".ljust(width) + " | " + " ".join(name.rjust(width) for name in columns)]
    for truth in sorted({truth for truth, _ in table}):
        row = " ".join(str(table[truth, verdict] or "").rjust(width) for verdict in columns)
        lines.append(f"{truth.ljust(width)} | {row}")
    return "\n".join(lines) + "\n"
