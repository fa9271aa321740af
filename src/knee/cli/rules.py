"""`knee rules`: Prometheus rules for a vLLM version, with thresholds from a measured knee."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from knee.cli.app import JsonOption, log, show
from knee.core.errors import InputError, UsageError

if TYPE_CHECKING:
    from knee.diagnose.promql import Names, Thresholds


def rules(  # noqa: PLR0917 - the options of a command
    source: Annotated[
        Path | None,
        typer.Option("--from", help="A run directory or knee.lock; thresholds come from its knee."),
    ] = None,
    vllm_version: Annotated[str, typer.Option(help="The version whose metric names are used.")] = "",
    selector: Annotated[str, typer.Option(help="Label matchers for every series, e.g. 'job=\"vllm\"'.")] = "",
    out: Annotated[Path | None, typer.Option(help="Write here instead of to stdout.")] = None,
    tests: Annotated[
        Path | None, typer.Option(help="Also write unit tests for `promtool test rules`.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write recording and alerting rules: queue, KV, knee, front end, stalls, renamed metrics."""
    import yaml

    from knee.diagnose.alert_tests import test_file
    from knee.diagnose.alerts import rule_groups

    names, limits = measured(source, vllm_version, selector)
    groups = rule_groups(names, limits)
    if tests is not None:
        if out is None or selector:
            raise UsageError(
                "--tests needs --out, and no --selector",
                "the tests name the rules file and make their own series",
            )
        _write(
            tests,
            yaml.safe_dump(
                test_file(names, limits, out.name), sort_keys=False, allow_unicode=True, width=120
            ),
        )
    text = f"# For vLLM {names.version}.\n" + yaml.safe_dump(
        groups, sort_keys=False, allow_unicode=True, width=120
    )
    if out is not None:
        _write(out, text)
        log(f"wrote {out}" + (f" and {tests}" if tests else ""))
    else:
        show(groups, as_json, text.rstrip)


def measured(source: Path | None, vllm_version: str, selector: str) -> "tuple[Names, Thresholds]":
    """Metric names of the version asked for (or of the measured server, or the newest), and thresholds."""
    from knee.catalog.load import releases
    from knee.catalog.version import parse_version
    from knee.core.lock import read_lock
    from knee.diagnose.promql import Names, thresholds_of
    from knee.metrics.prometheus import matchers

    lock = read_lock(source) if source else None
    version = vllm_version or (lock.vllm_version if lock else "") or releases().inspected[-1]
    return Names(version=str(parse_version(version)), selector=matchers(selector)), thresholds_of(lock)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
