"""`knee upgrade`: what a new version of vLLM changes, before it is rolled out."""

from pathlib import Path
from typing import Annotated

import typer

from knee.cli.app import JsonOption, log, show
from knee.cli.compare import compare as compare_speed

upgrade = typer.Typer(no_args_is_help=True, help="What a new vLLM changes: flags, metrics, speed, text.")
outputs = typer.Typer(no_args_is_help=True, help="The text of a fixed evaluation set, recorded and compared.")
upgrade.add_typer(outputs, name="outputs")
upgrade.command("compare")(compare_speed)


@upgrade.command("plan")
def plan(
    *,
    before: Annotated[
        str, typer.Option("--from", help="The version in use, e.g. 0.27.0, or a knee.lock or run of it.")
    ],
    after: Annotated[str, typer.Option("--to", help="The version to come.")],
    flags: Annotated[
        str, typer.Option(help='The flags in use, e.g. "--max-num-seqs 64"; else those of the knee.lock.')
    ] = "",
    scan: Annotated[Path | None, typer.Option(help="A folder of dashboards, rules and manifests.")] = None,
    tier: Annotated[
        str, typer.Option(help="Devices: huge, large, a100_80g, small, cpu; any by default.")
    ] = "",
    as_json: JsonOption = False,
) -> int:
    """Say what an upgrade breaks or moves, from the catalog.

    Exit code 1: something in use stops working; 5: the catalog does not cover a version.
    """
    from typing import get_args

    from knee.catalog.flags import Tier
    from knee.core.errors import EXIT_NEGATIVE, EXIT_OK, NoAnswer, UsageError
    from knee.upgrade.inuse import in_use
    from knee.upgrade.plan import make_plan
    from knee.upgrade.scan import scan as scan_files
    from knee.upgrade.text import plan_text

    if tier and tier not in get_args(Tier):
        raise UsageError(f"unknown tier {tier!r}", f"known: {', '.join(get_args(Tier))}")
    version, flags = in_use(before, flags)
    seen = scan_files(scan, after) if scan is not None else None
    hits, files = (seen.hits, seen.files) if seen is not None else ((), 0)
    made = make_plan(version, after, flags, tier=tier, hits=hits, scanned=files)
    for file in seen.skipped if seen is not None else ():
        log(f"skipped: {file} is larger than 4 MiB")
    show(made, as_json, lambda: plan_text(made))
    if made.breaks:
        return EXIT_NEGATIVE
    return NoAnswer.exit_code if made.notes else EXIT_OK


@outputs.command("record")
def record(
    url: Annotated[str, typer.Argument(help="The server: http://127.0.0.1:8000.")],
    *,
    out: Annotated[Path, typer.Option(help="Where the recording goes.")],
    cases: Annotated[
        Path | None, typer.Option("--set", help="A set of your own; the shipped one by default.")
    ] = None,
    model: Annotated[str, typer.Option(help="Model to ask; the first one served when left out.")] = "",
    key_file: Annotated[
        Path | None,
        typer.Option("--api-key-file", help="File with the bearer key; else VLLM_API_KEY is read."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Ask a server the evaluation set twice and keep what it says: before the upgrade, and after it."""
    from knee.http1.client import BlockingClient
    from knee.measure.client.secret import read_key
    from knee.upgrade.evaluation import read_set, shipped_set
    from knee.upgrade.outputs import compare
    from knee.upgrade.record import record as record_answers
    from knee.upgrade.recording import write_recording
    from knee.upgrade.text import recording_text

    asked = read_set(cases) if cases is not None else shipped_set()
    key = read_key(key_file)
    headers = {"authorization": f"Bearer {key.reveal()}"} if key is not None else None
    with BlockingClient(url, headers=headers, timeout_s=120.0) as client:
        recording = record_answers(client, asked, model, log)
    write_recording(out, recording)
    noise = compare(recording, recording)
    show(noise, as_json, lambda: recording_text(noise, str(out)))


@outputs.command("compare")
def compare_outputs(
    before: Annotated[Path, typer.Argument(help="The recording of the version in use.")],
    after: Annotated[Path, typer.Argument(help="The recording of the version to come.")],
    as_json: JsonOption = False,
) -> int:
    """Say which answers changed beyond the noise of each server. Exit code 1: changed; 5: cannot be told."""
    from knee.core.errors import EXIT_NEGATIVE, EXIT_OK, NoAnswer
    from knee.upgrade.outputs import compare
    from knee.upgrade.recording import read_recording
    from knee.upgrade.text import comparison_text

    found = compare(read_recording(before), read_recording(after))
    show(found, as_json, lambda: comparison_text(found))
    return {"unchanged": EXIT_OK, "changed": EXIT_NEGATIVE}.get(found.verdict, NoAnswer.exit_code)
