"""Lengths of requests, from a trace or from distributions."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from knee.core.errors import InputError, UsageError
from knee.core.requests import Ints, column
from knee.workload.lengths import draw_lengths
from knee.workload.spec import Lengths

_PAIRS = (
    ("prompt_tokens", "output_tokens"),
    ("input_length", "output_length"),
    ("ContextTokens", "GeneratedTokens"),
    ("input_tokens", "output_tokens"),
    ("prompt_len", "output_len"),
)
REFUSED = "{:.1%} of the workload is longer than the context and refused; the rest is counted"
_DRAWS = 10_000
_MOST_REQUESTS = 2_000_000


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """Lengths of requests: prompts and outputs of the same requests. `name` says where they are from."""

    name: str
    prompt: Ints
    output: Ints


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
    kept = Traffic(name=traffic.name, prompt=traffic.prompt[keep], output=traffic.output[keep])
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


def read_trace(path: Path) -> Traffic:
    """Lengths of the requests in a trace: JSON lines, or CSV with a header.

    The two columns are found by name: `prompt_tokens` and `output_tokens` (what knee itself records),
    `input_length` and `output_length` (Mooncake), `ContextTokens` and `GeneratedTokens` (Azure).

    Raises:
        InputError: the file cannot be read, holds no such columns, or a row without whole token counts.
    """
    pairs: list[tuple[int, int]] = []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for number, row in _rows(path, file):
                pairs.append(_lengths(path, number, row))
                if len(pairs) >= _MOST_REQUESTS:
                    break
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", "give a trace of requests") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text", "a trace is JSON lines, or CSV with a header") from error
    if not pairs:
        raise InputError(f"{path} holds no requests", "a trace is JSON lines, or CSV with a header")
    prompt, output = zip(*pairs, strict=True)
    return Traffic(name=path.name, prompt=column(prompt), output=column(output))


def _rows(path: Path, file: Iterator[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    first = next(file, "")
    if not first.lstrip().startswith("{"):
        header = next(csv.reader([first]), [])
        for number, cells in enumerate(csv.reader(file), 2):
            if cells:
                yield number, dict(zip(header, cells, strict=False))
        return
    for number, line in enumerate((first, *file), 1):
        if line.strip():
            try:
                row = msgspec.json.decode(line)
            except msgspec.DecodeError as error:
                raise InputError(f"{path}:{number} is not JSON: {error}") from error
            yield number, row if isinstance(row, dict) else {}


def _lengths(path: Path, number: int, row: dict[str, Any]) -> tuple[int, int]:
    for prompt, output in _PAIRS:
        if prompt in row and output in row:
            try:
                found = int(row[prompt]), int(row[output])
            except (TypeError, ValueError):
                break
            if min(found) < 0 or sum(found) < 1:
                break
            return found
    known = ", ".join(f"{prompt} and {output}" for prompt, output in _PAIRS)
    raise InputError(f"{path}:{number} has no token counts of a request", f"known names: {known}")
