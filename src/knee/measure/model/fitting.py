"""Fit the step cost of a batch engine to what requests saw: for a control variate, and to calibrate."""

from collections.abc import Sequence

import msgspec
import numpy as np

from knee.core.requests import NEVER, OK, Ints, Observed
from knee.core.units import NS_PER_S
from knee.stats.percentile import Floats

_STEPS_PER_BIN = 24
FEWEST_BINS = 8
WORTH = 1.15
_BLOCK_NS = 2 * NS_PER_S
_BLOCK_REQUESTS = 10
"""A block is at least so long, and so many times as long as a request streams: its batch changes often."""
_APART = 1e9
"""More blocks than a point has."""


class StepFit(msgspec.Struct, frozen=True, kw_only=True):
    """Nanoseconds per step, per sequence in it, per prefill token, per token of context that is read.

    `per_prefill_step_ns` is for a step with any prefill in it, and `error` is the relative residual.
    """

    fixed_ns: float
    per_seq_ns: float
    per_prefill_token_ns: float
    per_context_token_ns: float
    error: float
    per_prefill_step_ns: float = 0.0


def fit_steps(seen: Sequence[Observed]) -> StepFit | None:
    """The step cost that explains the gaps between tokens; None where there are too few of them.

    Every running sequence gets one token a step, so a token seen while n requests stream stands for 1/n of a
    step. Over bins of some 24 steps, decoding time = fixed x steps + per sequence x tokens + per prefill
    token x prompts that got their first token there + per context token x tokens held by streaming requests:
    least squares, weighted towards equal relative errors, with costs kept at or above zero. Bins are wider
    than a chunked prefill, so that it does not matter in which of its steps a prompt was read.

    The weights come from the times that are fitted, in a second pass (McCullagh and Nelder 1989, section
    9.3): weights from the times that were seen would favour the bins that chance made short.
    """
    table = bins_of(seen)
    if len(table) < FEWEST_BINS:
        return None
    times, causes = table[:, 0], table[:, 1:5]
    found, error = weighted(times, causes)
    simple, simple_error = weighted(times, causes[:, :3])
    if simple_error < WORTH * error:  # context explains too little to be told from the rest
        found, error = np.append(simple, 0.0), simple_error
    return step_fit(found, error)


def step_fit(found: Floats, error: float) -> StepFit | None:
    """The fit with these costs, in the order of the columns of `bins_of`; None if decoding is free."""
    if found[0] + found[1] <= 0:
        return None
    return StepFit(
        fixed_ns=float(found[0]),
        per_seq_ns=float(found[1]),
        per_prefill_token_ns=float(found[2]),
        per_context_token_ns=float(found[3]),
        per_prefill_step_ns=float(found[4]) if len(found) > 4 else 0.0,
        error=error,
    )


def bins_of(seen: Sequence[Observed]) -> Floats:
    """The bins of all that was seen: decoding time, what may have caused it, block of time (see `_rows`)."""
    rows = [(*row[:-1], n * _APART + row[-1]) for n, one in enumerate(seen) for row in _rows(one)]
    found: Floats = np.array(rows)
    return found


def _rows(observed: Observed) -> list[tuple[float, ...]]:
    """Per bin of steps, the columns of `bins_of`.

    Decoding time in ns, steps, sequence-steps, prefill tokens, context tokens, prefill steps, and the number
    of the block of time that the bin is in.
    """
    gaps = observed.gaps
    began = observed.first_ns != NEVER
    if len(gaps.ns) < _STEPS_PER_BIN or not began.any():
        return []
    order = np.argsort(gaps.at_ns, kind="stable")
    at, ns, count = gaps.at_ns[order], gaps.ns[order], gaps.count[order]
    starts = np.sort(observed.first_ns[began])
    finished = observed.outcome == OK
    ends = np.sort(observed.last_ns[finished])
    # Tokens of one step do not come at one instant on a real wire: who began or ended in the same step has
    # to be told from who did before, or prefill steps, which are long, weigh too little.
    same_step = np.int64(np.quantile(ns, 0.1) / 2)
    streaming = _streaming(starts, ends, at - same_step)
    steps = count / streaming
    bins = np.floor(np.cumsum(steps) / _STEPS_PER_BIN).astype(np.int64)
    edges = at[np.searchsorted(bins, np.arange(bins[-1] + 1), side="left")]
    size = int(bins[-1]) + 1
    order = np.argsort(observed.first_ns[began], kind="stable")
    first = observed.first_ns[began][order]
    # A prompt that was read while nobody streamed lengthened nobody's gap.
    counted = np.searchsorted(starts, first, side="left") > np.searchsorted(ends, first, side="left")
    counted &= first >= at[0]
    where = np.searchsorted(edges, first[counted], side="right") - 1
    prompts = np.bincount(where, observed.prompt_tokens[began][order][counted], size)
    joined = np.bincount(where, minlength=size)
    alone = np.diff(first[counted], prepend=np.iinfo(np.int64).min // 2) > same_step
    prefills = np.bincount(where[alone], minlength=size)
    time = np.bincount(bins, ns * steps, size)
    stepped = np.bincount(bins, steps, size)
    tokens = np.bincount(bins, count, size)
    context = np.bincount(bins, steps * context_at(observed, at), size)
    block = edges // _block_ns((observed.last_ns - observed.first_ns)[began & finished])
    return [
        (time[i], stepped[i], tokens[i] + joined[i], prompts[i], context[i], prefills[i], block[i])
        for i in range(1, size - 1)
        if stepped[i] > _STEPS_PER_BIN / 2 and time[i] > 0 and time[i] < 3600 * NS_PER_S
    ]


def _block_ns(streamed_ns: Ints) -> float:
    """How long a block is, from how long requests streamed."""
    return max(_BLOCK_NS, _BLOCK_REQUESTS * float(np.median(streamed_ns)) if len(streamed_ns) else 0.0)


def streaming_at(observed: Observed, at: Ints) -> Floats:
    """How many requests stream at each instant."""
    starts = np.sort(observed.first_ns[observed.first_ns != NEVER])
    return _streaming(starts, np.sort(observed.last_ns[observed.outcome == OK]), at)


def _streaming(starts: Ints, ends: Ints, at: Ints) -> Floats:
    """How many requests have had their first token before each instant and have tokens left at it."""
    inside = np.searchsorted(starts, at, side="left") - np.searchsorted(ends, at, side="left")
    found: Floats = np.maximum(inside, 1).astype(np.float64)
    return found


def context_at(observed: Observed, at: Ints) -> Floats:
    """Tokens of context held at each instant by the requests that stream then, each growing evenly."""
    began = observed.first_ns != NEVER
    first, last = observed.first_ns[began], np.maximum(observed.last_ns[began], observed.first_ns[began])
    pace = observed.output_tokens[began] / np.maximum(1, last - first)
    base = observed.prompt_tokens[began] - pace * first
    leaves = np.where(observed.outcome[began] == OK, last, np.iinfo(np.int64).max)
    total = np.zeros(len(at))
    for instants, sign in ((first, 1.0), (leaves, -1.0)):
        order = np.argsort(instants)
        until = np.searchsorted(instants[order], at, side="left")
        for terms, factor in ((base, 1.0), (pace, at)):
            total += sign * factor * np.concatenate([[0.0], np.cumsum(terms[order])])[until]
    return np.maximum(total, 0.0)


def weighted(times: Floats, causes: Floats) -> tuple[Floats, float]:
    """Coefficients >= 0 by which `causes` add up to `times`, and the relative residual (root mean square)."""
    found = nonnegative(times / times, causes / times[:, None])
    fitted = np.maximum(causes @ found, 0.1 * times)
    found = nonnegative(times / fitted, causes / fitted[:, None])
    return found, float(np.sqrt((((times - causes @ found) / fitted) ** 2).mean()))


def nonnegative(sums: Floats, causes: Floats) -> Floats:
    """Least squares; while a coefficient is negative, the most negative one is left out."""
    kept = list(range(causes.shape[1]))
    found = np.zeros(causes.shape[1])
    while kept:
        solved = np.linalg.lstsq(causes[:, kept], sums, rcond=None)[0]
        if (solved >= 0).all():
            found[kept] = solved
            break
        kept.pop(int(np.argmin(solved)))
    return found
