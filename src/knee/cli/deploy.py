"""`knee deploy`: manifests from a measured knee, the startup probe from a log, and a lint for manifests."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from knee import __version__
from knee.cli.app import JsonOption, log, show

if TYPE_CHECKING:
    from knee.deploy.render import Rendered

deploy = typer.Typer(
    no_args_is_help=True, help="Kubernetes objects from measured values, and a lint for others."
)


FromOption = Annotated[Path, typer.Option("--from", help="A run directory or a knee.lock.")]
NameOption = Annotated[str, typer.Option(help="Name of the deployment; made from the model's by default.")]
NamespaceOption = Annotated[str, typer.Option(help="Namespace of every object.")]
ImageOption = Annotated[str, typer.Option(help="vLLM's image; by default that of the measured version.")]
GatewayImageOption = Annotated[str, typer.Option(help="Image with `knee` in it.")]
GpusOption = Annotated[
    int | None, typer.Option(help="Accelerators of one replica; from the flags by default.")
]
StartupOption = Annotated[
    Path | None, typer.Option(help="A start-up log of this server, for the startup probe.")
]
LongestOption = Annotated[str, typer.Option(help="Longest response, e.g. 120s; from the knee by default.")]
PeakOption = Annotated[float | None, typer.Option(help="Highest requests/s to expect.")]
MinOption = Annotated[int, typer.Option(help="Fewest replicas.")]
MaxOption = Annotated[int | None, typer.Option(help="Most replicas; from --peak-rate by default.")]
ScalerOption = Annotated[str, typer.Option(help="keda, hpa or none.")]
PrometheusOption = Annotated[str, typer.Option(help="Where KEDA asks.")]
ClaimOption = Annotated[str, typer.Option(help="An existing volume claim for weights and caches.")]
SizeOption = Annotated[str, typer.Option(help="Size of the claim that is made otherwise.")]
PoolOption = Annotated[bool, typer.Option("--inference-pool", help="Hand over to an inference gateway.")]
ParentOption = Annotated[str, typer.Option(help="The Gateway that the route hangs on.")]
PickerOption = Annotated[str, typer.Option(help="Service of the endpoint picker; NAME-epp by default.")]
OutOption = Annotated[Path | None, typer.Option(help="Write here instead of to stdout.")]


@deploy.command("render")
def render(
    *,
    source: FromOption,
    name: NameOption = "",
    namespace: NamespaceOption = "",
    image: ImageOption = "",
    gateway_image: GatewayImageOption = f"knee:{__version__}",
    gpus: GpusOption = None,
    startup_log: StartupOption = None,
    longest_response: LongestOption = "",
    peak_rate: PeakOption = None,
    min_replicas: MinOption = 2,
    max_replicas: MaxOption = None,
    autoscaler: ScalerOption = "keda",
    prometheus: PrometheusOption = "http://prometheus-operated.monitoring.svc:9090",
    cache_claim: ClaimOption = "",
    cache_size: SizeOption = "200Gi",
    inference_pool: PoolOption = False,
    gateway: ParentOption = "inference-gateway",
    endpoint_picker: PickerOption = "",
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the manifests that follow from a measured knee, with a reason beside every number."""
    from knee.core.lock import read_lock
    from knee.deploy.naming import Site, name_of
    from knee.deploy.render import render as render_objects
    from knee.deploy.serving import gpus_of, told_by_log
    from knee.deploy.sizing import Asked
    from knee.deploy.startup import read_startup

    lock = read_lock(source)
    if startup_log is not None:
        lock = told_by_log(lock, read_startup(startup_log))
    named = name_of(lock.model, name)
    site = Site(
        name=named,
        namespace=namespace,
        image=image or f"vllm/vllm-openai:v{lock.vllm_version.lstrip('v') or 'VERSION'}",
        gateway_image=gateway_image,
        gpus=gpus_of(lock) if gpus is None else gpus,
        prometheus=prometheus,
        cache_claim=cache_claim,
        cache_size=cache_size,
        parent_gateway=gateway,
        endpoint_picker=(endpoint_picker or f"{named}-epp") if inference_pool else "",
    )
    asked = Asked(
        startup_source=startup_log.name if startup_log else "",
        longest_response_s=_seconds(longest_response),
        peak_rate=peak_rate,
        min_replicas=min_replicas,
        max_replicas=max_replicas,
    )
    _put(render_objects(lock, site, asked, autoscaler=autoscaler, pool=inference_pool), out, as_json)


def _start_s(path: Path | None) -> float | None:
    from knee.deploy.startup import read_startup

    return read_startup(path).total_s if path else None


def _seconds(text: str) -> float | None:
    from knee.core.units import ns_to_s, parse_duration_ns

    return ns_to_s(parse_duration_ns(text)) if text else None


def _put(rendered: "Rendered", out: Path | None, as_json: bool) -> None:
    from knee.deploy.commented import plain
    from knee.deploy.render import text_of

    for note in rendered.notes:
        log(f"note: {note}")
    text = text_of(rendered)
    if out is not None:
        _write(out, text)
        log(f"{len(rendered.objects)} objects written to {out}")
    elif as_json:
        show([plain(item) for item in rendered.objects], True, lambda: None)
    else:
        typer.echo(text, nl=False)


def _write(path: Path, text: str) -> None:
    from knee.core.errors import InputError

    try:
        path.write_text(text)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error


@deploy.command("startup")
def startup(
    log_file: Annotated[Path, typer.Argument(metavar="LOG", help="A start-up log of vLLM.")],
    as_json: JsonOption = False,
) -> None:
    """Show where a start spent its time, and the startup probe that follows: two to three times the whole."""
    from knee.deploy.startup import read_startup, startup_text

    found = read_startup(log_file)
    for note in found.notes:
        log(f"note: {note}")
    show(found, as_json, lambda: startup_text(found))


@deploy.command("check")
def check(
    source: Annotated[str, typer.Argument(metavar="FILE|DIR|-", help="Manifests, or - for stdin.")],
    ignore: Annotated[list[str] | None, typer.Option(help="A rule to leave out; may be repeated.")] = None,
    startup_log: Annotated[
        Path | None, typer.Option(help="A start-up log, to judge the startup probe by.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Look for mistakes in manifests of vLLM servers.

    Exit code 1: something was found; 3: a file could not be read.
    """
    from knee.core.errors import EXIT_NEGATIVE, EXIT_OK, InputError
    from knee.deploy.check import check as check_objects
    from knee.deploy.report import report_text
    from knee.deploy.sources import load

    report = check_objects(load(source), frozenset(ignore or ()), _start_s(startup_log))
    for file in report.skipped:
        log(f"skipped: {file.why}")
    for file in report.unreadable:
        log(f"unreadable: {file.why}")
    if not report.engines:
        log("note: no container here serves vLLM; only the rules for all objects were applied")
    show(report, as_json, lambda: report_text(report))
    if report.unreadable:
        return InputError.exit_code
    return EXIT_NEGATIVE if report.findings else EXIT_OK


@deploy.command("rules")
def rules(as_json: JsonOption = False) -> None:
    """List the rules of `knee deploy check`."""
    from knee.deploy.check import RULES

    listed = [{"id": rule.id, "sentence": rule.sentence, "fix": rule.fix} for rule in RULES.values()]
    width = max(len(name) for name in RULES)
    show(
        listed,
        as_json,
        lambda: "\n".join(
            f"{r.id:<{width}}  {r.sentence}\n{'':<{width}}  fix: {r.fix}" for r in RULES.values()
        ),
    )
