"""How much cache n running requests of a workload hold, at the tail.

The simple rule takes every request to be as long as the 95th percentile. Requests differ, and n of them
together are longer than n times the mean only rarely: the 99th percentile of the sum says how many fit.
"""

import math
from collections.abc import Callable

import msgspec
import numpy as np
from numpy.random import Generator

from knee.core.errors import UsageError
from knee.core.requests import Ints
from knee.fit.kv import KvPlan, blocks_per_request

Cost = Callable[[Ints], Ints]

QUANTILE = 0.99
DRAWS = 2000
_MOST = 4096
_CELLS = 2_000_000


class Tail(msgspec.Struct, frozen=True, kw_only=True):
    """How many requests of a workload fit, each at `quantile` of the sum of n requests.

    `full_length` counts every request at its final length, the safe number. `in_flight` counts what a request
    holds at a random moment of its life (long outputs are met more often and are half done on average): more
    than that and the scheduler preempts now and then even on average traffic. `capped` says that more than
    `full_length` were not tried.
    """

    requests: int
    mean_tokens: float
    p95_tokens: int
    full_length: int
    in_flight: int
    quantile: float
    capped: bool


def percentile_tokens(prompt: Ints, output: Ints, share: float = 0.95) -> int:
    """The smallest length that at least `share` of the requests do not exceed, prompt plus output."""
    total = np.sort(prompt + output)
    return int(total[max(0, math.ceil(share * len(total)) - 1)])


def tail(
    prompt: Ints,
    output: Ints,
    budget: int,
    generator: Generator,
    *,
    cost: Cost | None = None,
    quantile: float = QUANTILE,
    draws: int = DRAWS,
) -> Tail:
    """Draw n requests `draws` times for every n, and find the largest n whose sum fits at `quantile`.

    `prompt` and `output` are token counts of the same requests, drawn together. `cost` is what a request of
    so many tokens takes of `budget`; without it both are tokens.

    Raises:
        UsageError: there are no requests, or one has no token.
    """
    if len(prompt) == 0 or len(prompt) != len(output):
        raise UsageError("a workload without requests", "give token counts of prompts and outputs")
    if int(prompt.min()) < 0 or int(output.min()) < 0 or int((prompt + output).min()) < 1:
        raise UsageError("a request has at least one token")
    price = cost or _tokens
    total = price(prompt + output)
    most = min(_MOST, max(1, math.ceil(2 * budget / float(total.mean()))))
    rows = max(200, min(draws, _CELLS // most))
    full = _fits(total[generator.integers(0, len(total), (rows, most))], budget, quantile)
    weight = np.cumsum(np.maximum(output, 1).astype(np.float64))  # met in proportion to how long they run
    met = np.searchsorted(weight, generator.random((rows, most)) * weight[-1], side="right")
    progress = generator.random((rows, most))
    held = price(prompt[met] + np.ceil(progress * output[met]).astype(np.int64))
    flying = _fits(held, budget, quantile)
    return Tail(
        requests=len(prompt),
        mean_tokens=float((prompt + output).mean()),
        p95_tokens=percentile_tokens(prompt, output),
        full_length=full,
        in_flight=flying,
        quantile=quantile,
        capped=full >= most,
    )


def _tokens(tokens: Ints) -> Ints:
    return tokens


def whole_blocks(block_size: int) -> Cost:
    """The price of a request in tokens of whole blocks."""

    def price(tokens: Ints) -> Ints:
        rounded: Ints = -(-tokens // block_size) * block_size
        return rounded

    return price


def blocks_of(plan: KvPlan, longest: int) -> Cost:
    """The price of a request in blocks of all groups, for lengths up to `longest`."""
    edges = range(math.ceil(longest / plan.block_size) + 1)
    table = np.asarray([blocks_per_request(plan, max(1, edge * plan.block_size)) for edge in edges])

    def price(tokens: Ints) -> Ints:
        found: Ints = table[-(-tokens // plan.block_size)]
        return found

    return price


def _fits(lengths: Ints, budget: int, quantile: float) -> int:
    """The largest n for which the quantile over rows of the first n columns' sum is within the budget."""
    sums = np.sort(np.cumsum(lengths, axis=1), axis=0)
    at = sums[max(0, math.ceil(quantile * len(sums)) - 1)]
    return int(np.searchsorted(at, budget, side="right"))
