"""What every command shares: where results, progress and errors go, and how a command ends.

Results go to stdout (`--json`: one JSON document), everything else to stderr.
"""

import sys
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")]

PIPE_WIDTH = 200

err = Console(stderr=True, highlight=False, soft_wrap=True)


def show(value: Any, as_json: bool, render: Callable[[], object]) -> None:
    """Print `value` as JSON, or what `render` makes for a person."""
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")
    else:
        # A file or a pipe has no width; a table must not be cut to that of a terminal.
        out = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else PIPE_WIDTH)
        shown = render()
        if shown is not None:
            out.print(shown, markup=False) if isinstance(shown, str) else out.print(shown)


def log(text: str) -> None:
    """One line of progress on stderr."""
    err.print(text, markup=False)
