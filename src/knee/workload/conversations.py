"""Conversations: requests that wait for an answer and carry what was said before."""

from collections.abc import Iterator

import numpy as np
from numpy.random import Generator

from knee.core.errors import UsageError
from knee.core.requests import NEVER, Ints, Requests, column
from knee.core.units import NS_PER_S
from knee.workload.arrivals import DrawInstants
from knee.workload.lengths import Draw, draw_lengths
from knee.workload.shapes import DrawShapes, Segments, mean_of
from knee.workload.spec import Conversations

MANY = 1_000
"""Segments that a conversation may have: its number times this is the first of their ids."""
STARTS = 64


def converse(
    spec: Conversations, shapes: DrawShapes, begins_s: DrawInstants, generators: list[Generator]
) -> Iterator[Requests]:
    """Conversations one after another, `STARTS` of them in a stretch, their turns side by side.

    `begins_s` draws the instants at which conversations begin. A first turn is due then; a later one follows
    the turn before it, and its `due_ns` is the pause after that turn's end.

    Raises:
        UsageError: the numbers of turns or the pause are not ones.
    """
    if not 0 <= spec.think_s < np.inf:
        raise UsageError(f"a pause of {spec.think_s:g} s between turns", "it is 0 or more")
    if mean_of(spec.turns) > MANY / 4:
        raise UsageError("conversations of more than 250 turns on average", "use fewer turns")
    return _stretches(spec, shapes, begins_s, (draw_lengths(spec.turns, generators[0]), generators[1]))


def _stretches(
    spec: Conversations, shapes: DrawShapes, begins_s: DrawInstants, drawn: tuple[Draw, Generator]
) -> Iterator[Requests]:
    turns, pauses = drawn
    conversation = index = 0
    while True:
        begin_ns = np.rint(begins_s(STARTS) * NS_PER_S).astype(np.int64)
        counts = np.minimum(turns(STARTS), MANY // 2)
        total = int(counts.sum())
        fresh = shapes(total)
        due_ns = np.rint(pauses.exponential(spec.think_s, total) * NS_PER_S).astype(np.int64)
        follows = np.arange(index - 1, index - 1 + total, dtype=np.int64)
        first = np.concatenate([[0], np.cumsum(counts)[:-1]])
        due_ns[first], follows[first] = begin_ns, NEVER
        prompts, shared = _contexts(counts, fresh.prompt_tokens, fresh.output_tokens, conversation)
        yield Requests(
            due_ns=due_ns,
            prompt_tokens=prompts,
            output_tokens=fresh.output_tokens,
            shared=shared,
            follows=follows,
        )
        conversation += STARTS
        index += total


def _contexts(
    counts: Ints, prompts: Ints, outputs: Ints, conversation: int
) -> tuple[Ints, tuple[Segments, ...]]:
    """The length of each turn's whole prompt, and its segments: what was said before, and its own part."""
    lengths: list[int] = []
    shared: list[Segments] = []
    at = 0
    for number, count in enumerate(counts.tolist(), conversation):
        said: list[tuple[int, int]] = []
        tokens = 0
        for turn in range(count):
            said.append((number * MANY + 2 * turn, int(prompts[at])))
            tokens += int(prompts[at])
            lengths.append(tokens)
            shared.append(tuple(said))
            said.append((number * MANY + 2 * turn + 1, int(outputs[at])))
            tokens += int(outputs[at])
            at += 1
    return column(lengths), tuple(shared)
