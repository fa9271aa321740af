"""`knee fit`: will it fit, from a start-up log."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from knee.cli.app import JsonOption, show
from knee.core.errors import EXIT_NEGATIVE, EXIT_OK, InputError, NoAnswer, UsageError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import BinaryIO


def fit(
    source: Annotated[str, typer.Argument(help="The server's log, or - for standard input.")] = "",
    *,
    p95_tokens: Annotated[
        float | None, typer.Option(help="95th percentile of prompt plus output tokens of a request.")
    ] = None,
    max_num_seqs: Annotated[int | None, typer.Option(help="Overrides what the log says.")] = None,
    margin: Annotated[float, typer.Option(help="Share of the KV cache to leave free.")] = 0.1,
    as_json: JsonOption = False,
) -> int:
    """Say whether the KV cache carries the sequences that the scheduler may admit.

    Exit code 0: it fits. 1: it does not, or the server failed to start. 3: not a log of vLLM. 5: the log
    holds no capacity.
    """
    from knee.fit.answer import answer_log
    from knee.fit.text import answer_lines

    if not source:
        raise UsageError("nothing to judge", "knee fit SERVER.LOG, or - for standard input")
    with _open(source) as stream:
        answer = answer_log(stream, p95_tokens, name=source, max_num_seqs=max_num_seqs, margin=margin)
    show(answer, as_json, lambda: "\n".join(answer_lines(answer)))
    if answer.fits is None:
        return NoAnswer.exit_code
    return EXIT_OK if answer.fits else EXIT_NEGATIVE


def _open(source: str) -> AbstractContextManager[BinaryIO]:
    """The log's bytes."""
    if source == "-":
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(source).open("rb")
    except OSError as error:
        raise InputError(
            f"{source} cannot be read: {error.strerror}", "give the server's log, or -"
        ) from error
