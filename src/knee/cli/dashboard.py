"""`knee dashboard`: a Grafana dashboard for a vLLM version, with thresholds from a measured knee."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from knee.cli.app import JsonOption, log, show
from knee.core.errors import InputError


def dashboard(  # noqa: PLR0917 - the options of a command
    source: Annotated[
        Path | None,
        typer.Option("--from", help="A run directory or knee.lock; thresholds come from its knee."),
    ] = None,
    vllm_version: Annotated[str, typer.Option(help="The version whose metric names are used.")] = "",
    selector: Annotated[
        str, typer.Option(help="Label matchers for every series, e.g. 'namespace=\"prod\"'.")
    ] = "",
    title: Annotated[str, typer.Option(help="The dashboard's title.")] = "vLLM at the knee",
    out: Annotated[Path | None, typer.Option(help="Write here instead of to stdout.")] = None,
    as_json: JsonOption = False,  # noqa: ARG001 - a dashboard is JSON in any case
) -> None:
    """Write a Grafana dashboard (import it, or provision it): JSON, with the knee drawn in."""
    from knee.cli.rules import measured
    from knee.diagnose.dashboard import dashboard as build

    names, limits = measured(source, vllm_version, selector)
    built = build(names, limits, title)
    if out is None:
        show(built, True, lambda: None)
        return
    try:
        out.write_bytes(msgspec.json.format(msgspec.json.encode(built), indent=2) + b"\n")
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror}") from error
    log(f"wrote {out}: {len(built['panels'])} panels")
