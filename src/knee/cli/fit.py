"""`knee fit`: will it fit, from a start-up log, a running server, or a model's config.json."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from knee.cli.app import JsonOption, show
from knee.core.errors import EXIT_NEGATIVE, EXIT_OK, InputError, NoAnswer, UsageError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import BinaryIO

    from knee.fit.startup import StartupReport
    from knee.fit.traffic import Traffic

SourceArgument = Annotated[str, typer.Argument(help="A start-up log, - for stdin, or a server's URL.")]
P95Option = Annotated[float | None, typer.Option(help="p95 of a request's prompt plus output tokens.")]
WorkloadOption = Annotated[
    Path | None, typer.Option(help="A trace in any known format, or a saved workload.")
]
PromptOption = Annotated[str, typer.Option(help="Prompt tokens instead of a trace: lognormal:600:0.8.")]
OutputOption = Annotated[str, typer.Option(help="Output tokens, with --prompt.")]
ModelOption = Annotated[
    Path | None, typer.Option(help="A config.json, or its folder. Nothing is downloaded.")
]
GpuOption = Annotated[str, typer.Option(help="The accelerator, like H100 or A100-40GB.")]
ContextOption = Annotated[int | None, typer.Option(help="max_model_len; the model's own when left out.")]
TpOption = Annotated[
    int, typer.Option("--tensor-parallel-size", "--tp", help="GPUs each layer is split over.")
]
PpOption = Annotated[int, typer.Option("--pipeline-parallel-size", "--pp", help="Stages of layers.")]
DpOption = Annotated[int, typer.Option("--data-parallel-size", "--dp", help="Engines.")]
KvOption = Annotated[str, typer.Option(help="auto, fp8, bfloat16, float16.")]
QuantizationOption = Annotated[
    str, typer.Option(help="Weights: as in the config, or none, fp8, int8, int4, …")
]
UtilizationOption = Annotated[float | None, typer.Option(help="Default of the version when left out.")]
SeqsOption = Annotated[int | None, typer.Option(help="Overrides the log, or the version's default.")]
TokensOption = Annotated[
    int | None, typer.Option(help="Budget of a step; the version's default when left out.")
]
VersionOption = Annotated[str, typer.Option(help="vLLM's version, for its defaults; the newest known.")]
EagerOption = Annotated[bool, typer.Option(help="No CUDA graphs.")]
MarginOption = Annotated[float, typer.Option(help="Share of the KV cache to leave free.")]
KeyOption = Annotated[Path | None, typer.Option(help="File with the server's bearer key. Never shown.")]


def fit(
    source: SourceArgument = "",
    *,
    p95_tokens: P95Option = None,
    workload: WorkloadOption = None,
    prompt: PromptOption = "",
    output: OutputOption = "",
    model: ModelOption = None,
    gpu: GpuOption = "",
    context: ContextOption = None,
    tensor_parallel_size: TpOption = 1,
    pipeline_parallel_size: PpOption = 1,
    data_parallel_size: DpOption = 1,
    kv_cache_dtype: KvOption = "auto",
    quantization: QuantizationOption = "",
    gpu_memory_utilization: UtilizationOption = None,
    max_num_seqs: SeqsOption = None,
    max_num_batched_tokens: TokensOption = None,
    version: VersionOption = "",
    enforce_eager: EagerOption = False,
    margin: MarginOption = 0.1,
    key_file: KeyOption = None,
    as_json: JsonOption = False,
) -> int:
    """Say whether it fits: a log or a server by the capacity rule, a model on a GPU by its arithmetic.

    Exit code 0: it fits. 1: it does not, or the server failed to start. 3: the file is not what it should be.
    5: the evidence does not decide.
    """
    traffic = _traffic(workload, prompt, output)
    judged: dict[str, Any] = {
        "p95_tokens": p95_tokens,
        "traffic": traffic,
        "margin": margin,
        "as_json": as_json,
    }
    if model is None:
        if gpu or context is not None:
            raise UsageError(
                "--gpu and --context judge a model", "give its configuration: --model config.json"
            )
        return _of_server(source, max_num_seqs=max_num_seqs, key_file=key_file, **judged)
    if source or not gpu:
        raise UsageError(
            "a model is judged on a GPU, not with a log", "knee fit --model config.json --gpu H100"
        )
    settings: dict[str, Any] = {
        "context": context or 0,
        "version": version or _newest(),
        "kv_dtype": kv_cache_dtype,
        "utilization": gpu_memory_utilization,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "enforce_eager": enforce_eager,
    }
    parallel = (tensor_parallel_size, pipeline_parallel_size, data_parallel_size)
    return _of_model(model, gpu, settings, parallel, quantization=quantization, **judged)


def _of_model(
    model: Path,
    gpu: str,
    settings: dict[str, Any],
    parallel: tuple[int, int, int],
    *,
    quantization: str,
    p95_tokens: float | None,
    traffic: Traffic | None,
    margin: float,
    as_json: bool,
) -> int:
    from knee.catalog.accelerators import accelerator
    from knee.fit.config import read_model
    from knee.fit.kv import Parallel
    from knee.fit.markdown import plan_lines
    from knee.fit.plan import Options
    from knee.fit.quantized import asked_for
    from knee.fit.question import answer_model

    shape = read_model(model, asked_for(quantization, 2) if quantization else None)
    tp, pp, dp = parallel
    settings["context"] = settings["context"] or shape.max_position
    options = Options(parallel=Parallel(tp=tp, pp=pp, dp=dp), **settings)
    answer = answer_model(shape, accelerator(gpu), options, tokens=p95_tokens, traffic=traffic, margin=margin)
    show(answer, as_json, lambda: "\n".join(plan_lines(answer)))
    return _code(answer.fits)


def _of_server(
    source: str,
    *,
    p95_tokens: float | None,
    traffic: Traffic | None,
    max_num_seqs: int | None,
    margin: float,
    key_file: Path | None,
    as_json: bool,
) -> int:
    from knee.fit.answer import judge
    from knee.fit.log import read_log
    from knee.fit.text import answer_lines

    if not source:
        raise UsageError("nothing to judge", "knee fit SERVER.LOG, - for stdin, a URL, or --model and --gpu")
    if source.startswith(("http://", "https://")):
        report = _ask(source, key_file)
    else:
        with _open(source) as stream:
            report = read_log(stream, source)
    answer = judge(report, p95_tokens, traffic=traffic, max_num_seqs=max_num_seqs, margin=margin)
    show(answer, as_json, lambda: "\n".join(answer_lines(answer)))
    return _code(answer.fits)


def _code(fits: bool | None) -> int:
    if fits is None:
        return NoAnswer.exit_code
    return EXIT_OK if fits else EXIT_NEGATIVE


def _newest() -> str:
    from knee.catalog.load import releases

    return releases().inspected[-1]


def _traffic(workload: Path | None, prompt: str, output: str) -> Traffic | None:
    if workload is not None and (prompt or output):
        raise UsageError("--workload and --prompt both give lengths", "leave one of them out")
    if bool(prompt) != bool(output):
        raise UsageError("--prompt and --output go together", "--prompt lognormal:600:0.8 --output 200")
    if workload is not None:
        from knee.fit.traffic import read_traffic

        return read_traffic(workload, seed=5)
    if not prompt:
        return None
    from knee.fit.traffic import drawn
    from knee.workload.parse import parse_lengths

    return drawn(parse_lengths(prompt), parse_lengths(output), seed=5)


def _ask(url: str, key_file: Path | None) -> StartupReport:
    """What a running server answers; only its metrics are necessary."""
    from knee.core.errors import TargetError
    from knee.fit.server import report_of
    from knee.http1.client import BlockingClient
    from knee.measure.client.secret import read_key

    key = read_key(key_file)
    headers = {"authorization": f"Bearer {key.reveal()}"} if key else {}
    with BlockingClient(url.rstrip("/"), headers=headers) as client:
        page = client.request("/metrics")
        if page.status != 200:
            raise TargetError(
                f"{page.url} answered {page.status}",
                "give the address of vLLM itself, like http://127.0.0.1:8000",
            )

        def optional(path: str) -> dict[str, object]:
            answer = client.request(path)
            try:
                found = answer.json() if answer.status == 200 else {}
            except TargetError:
                return {}
            return found if isinstance(found, dict) else {}

        return report_of(
            page.body.decode("utf-8", "replace"),
            models=optional("/v1/models"),
            version=str(optional("/version").get("version", "")),
            server_info=optional("/server_info?config_format=json"),
            name=url,
        )


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
