"""`knee`: the commands, and the one place where an error becomes a line and an exit code."""

import os
import sys
from importlib import import_module
from keyword import iskeyword

import typer

from knee import __version__
from knee.cli.app import log
from knee.core.errors import EXIT_INTERRUPTED, KneeError, UsageError

COMMANDS: tuple[str, ...] = (
    "demo",
    "fit",
    "bench",
    "sweep",
    "compare",
    "diagnose",
    "watch",
    "simulate",
    "calibrate",
    "mock",
    "tune",
    "gateway",
    "deploy",
    "upgrade",
    "workload",
    "catalog",
    "rules",
    "dashboard",
    "import",
)
"""The commands in the order of the story; each is a function, or a group of them, in the module of `knee.cli`
of that name (with an underscore after a word that Python keeps for itself)."""


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"knee {__version__}\n")
        raise typer.Exit


def build() -> typer.Typer:
    """The command line."""
    app = typer.Typer(name="knee", add_completion=False, pretty_exceptions_enable=False)

    @app.callback()
    def root(
        version: bool = typer.Option(
            False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
        ),
    ) -> None:
        """Operate a vLLM server at the knee of its latency curve."""

    for name in COMMANDS:
        spelled = f"{name}_" if iskeyword(name) else name
        command = getattr(import_module(f"knee.cli.{spelled}"), spelled)
        if isinstance(command, typer.Typer):  # a command of several, like `knee deploy render`
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return app


def main() -> None:
    """Run one command and end with its documented exit code.

    Nothing here multiplies matrices large enough for threads, and those that numpy's OpenBLAS keeps spin
    beside a load that is being measured.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """The exit code of `knee ARGUMENTS`; an error is one line on stderr, with a hint below it."""
    try:
        result = build()(args=arguments or ["--help"], prog_name="knee", standalone_mode=False)
    except KneeError as error:
        log(f"knee: {error.what}" + (f"\n  hint: {error.hint}" if error.hint else ""))
        return error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        log("knee: interrupted")
        return EXIT_INTERRUPTED
    except typer.TyperException as error:
        format_message = getattr(error, "format_message", error.__str__)
        log(f"knee: {format_message()}\n  hint: knee --help, knee COMMAND --help")
        return UsageError.exit_code
    except BrokenPipeError:  # `knee … | head`: the reader has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return result if isinstance(result, int) else 0
