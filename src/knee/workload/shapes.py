"""What requests are like: how long, and which text they share. When they come is another matter."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from knee.core.errors import UsageError
from knee.core.requests import Ints
from knee.workload.lengths import check_lengths, check_weighted, draw_lengths, draw_weighted
from knee.workload.spec import Lengths, Workload

Segments = tuple[tuple[int, int], ...]


class Shapes(NamedTuple):
    """Prompt and output tokens of some requests, and the segments that open their prompts."""

    prompt_tokens: Ints
    output_tokens: Ints
    shared: tuple[Segments, ...] | None = None


DrawShapes = Callable[[int], Shapes]
"""The next n requests, without end; drawing n then m gives the same as drawing n + m."""


def draw_shapes(workload: Workload, generators: list[Generator]) -> DrawShapes:
    """Requests of `workload` from three generators: for prompts, for outputs, for who shares what.

    Raises:
        UsageError: the lengths, pairs or prefixes are not ones.
    """
    lengths = _pairs(workload, generators[0]) if workload.pairs else _lengths(workload, generators)
    prefixes = workload.prefixes
    if prefixes is None:
        return lengths
    if prefixes.tokens < 1 or prefixes.groups < 1:
        raise UsageError(
            f"{prefixes.groups} shared prefixes of {prefixes.tokens} tokens", "both are 1 or more"
        )
    pick = draw_weighted((), prefixes.groups, generators[2])

    def draw(n: int) -> Shapes:
        plain = lengths(n)
        shared = tuple(((group, prefixes.tokens),) for group in pick(n).tolist())
        return Shapes(np.maximum(plain.prompt_tokens, prefixes.tokens + 1), plain.output_tokens, shared)

    return draw


def mean_of(lengths: Lengths) -> float:
    """The mean of a distribution of lengths; of a lognormal one, before its tails are cut."""
    check_lengths(lengths)
    match lengths.kind:
        case "uniform":
            return (lengths.low + lengths.high) / 2
        case "empirical":
            weights = lengths.weights or (1.0,) * len(lengths.values)
            return float(np.average(lengths.values, weights=weights))
        case _:
            return lengths.mean


def _lengths(workload: Workload, generators: list[Generator]) -> DrawShapes:
    prompts = draw_lengths(workload.prompt_tokens, generators[0])
    outputs = draw_lengths(workload.output_tokens, generators[1])
    return lambda n: Shapes(prompts(n), outputs(n))


def _pairs(workload: Workload, generator: Generator) -> DrawShapes:
    check_weighted(tuple(min(pair) for pair in workload.pairs), workload.pair_weights)
    table = np.array(workload.pairs, dtype=np.int64)
    pick = draw_weighted(workload.pair_weights, len(table), generator)

    def draw(n: int) -> Shapes:
        chosen = table[pick(n)]
        return Shapes(chosen[:, 0].copy(), chosen[:, 1].copy())

    return draw
