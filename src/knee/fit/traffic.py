"""Lengths of requests, from a trace, a saved workload or distributions."""

from itertools import islice
from pathlib import Path

import msgspec
import numpy as np

from knee.core.errors import UsageError
from knee.core.requests import Ints
from knee.workload.file import load_workload
from knee.workload.lengths import draw_lengths
from knee.workload.schedule import CHUNK, schedule
from knee.workload.spec import Arrivals, Lengths

REFUSED = "{:.1%} of the workload is longer than the context and refused; the rest is counted"
_DRAWS = 10_000


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """Lengths of requests: prompts and outputs of the same requests.

    `name` says where they are from, `notes` what was left out or had to be guessed there.
    """

    name: str
    prompt: Ints
    output: Ints
    notes: tuple[str, ...] = ()


def servable(traffic: Traffic, context: int) -> tuple[Traffic, float]:
    """The requests that fit in `context` tokens, and the share that does not.

    Raises:
        UsageError: none does.
    """
    keep = traffic.prompt + traffic.output <= context
    if not keep.any():
        raise UsageError(
            f"every request of {traffic.name} is longer than the context of {context:,} tokens",
            "raise --context",
        )
    kept = msgspec.structs.replace(traffic, prompt=traffic.prompt[keep], output=traffic.output[keep])
    return kept, 1 - float(keep.mean())


def drawn(prompt: Lengths, output: Lengths, seed: int) -> Traffic:
    """Requests whose prompts and outputs are drawn independently.

    Raises:
        UsageError: a distribution is not one.
    """
    generator = np.random.default_rng(seed)
    return Traffic(
        name="the lengths given",
        prompt=draw_lengths(prompt, generator)(_DRAWS),
        output=draw_lengths(output, generator)(_DRAWS),
    )


def read_traffic(path: Path, seed: int) -> Traffic:
    """The requests of a trace in any known format, or as many drawn from a saved workload.

    Raises:
        InputError: the file cannot be read or is neither.
        UsageError: it holds a workload that cannot be.
    """
    workload, trace = load_workload(path, replay=False, arrivals=Arrivals())
    if trace is not None:
        return Traffic(
            name=path.name, prompt=trace.prompt_tokens, output=trace.output_tokens, notes=trace.notes
        )
    parts = list(islice(schedule(workload, 1.0, seed), -(-_DRAWS // CHUNK)))
    return Traffic(
        name=path.name,
        prompt=np.concatenate([part.prompt_tokens for part in parts]),
        output=np.concatenate([part.output_tokens for part in parts]),
    )
