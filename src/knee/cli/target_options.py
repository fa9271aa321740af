"""The flags of every command that offers load to a live server, and what they amount to."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from knee.core.errors import UsageError
from knee.core.units import NS_PER_S, parse_duration_ns
from knee.workload.spec import BURST_HELP, LENGTHS_HELP

if TYPE_CHECKING:
    from knee.measure.live import Connection
    from knee.measure.target import Offer

UrlArgument = Annotated[str, typer.Argument(help="The server, or its router: http://127.0.0.1:8000.")]
PromptOption = Annotated[str, typer.Option(help=f"Prompt tokens: {LENGTHS_HELP}.")]
OutputOption = Annotated[str, typer.Option(help=f"Output tokens: {LENGTHS_HELP}.")]
DurationOption = Annotated[str, typer.Option(help="The measured window, after the warm-up.")]
WarmupOption = Annotated[str, typer.Option(help="Requests due before this are sent and not judged.")]
DrainOption = Annotated[str, typer.Option(help="How long measured requests may take after the window.")]
SeedOption = Annotated[int, typer.Option(help="Seed of arrivals and lengths; prompts are always fresh.")]
BurstinessOption = Annotated[float, typer.Option(help="Shape of the gaps; 1 is Poisson, less is burstier.")]
ConstantOption = Annotated[bool, typer.Option("--constant", help="Equal gaps instead of random ones.")]
BurstOption = Annotated[str, typer.Option(help=f"Requests at once on top: {BURST_HELP}.")]
ModelOption = Annotated[str, typer.Option(help="Model to ask; the first one served when left out.")]
EndpointOption = Annotated[Literal["completions", "chat"], typer.Option(help="What to call.")]
StreamOption = Annotated[bool, typer.Option(help="Stream, or wait for whole answers.")]
AnswersOption = Annotated[int, typer.Option("--n", help="Answers asked for per prompt.")]
BodyOption = Annotated[list[str] | None, typer.Option(help="A further field of the request: NAME=JSON.")]
HeaderOption = Annotated[list[str] | None, typer.Option(help="A further header: 'NAME: VALUE'.")]
KeyOption = Annotated[
    Path | None, typer.Option(help="File with the bearer key; else VLLM_API_KEY is read. Never shown.")
]
MetricsOption = Annotated[
    list[str] | None, typer.Option(help="Where metrics are, once per replica; else the URL itself.")
]
TimeoutOption = Annotated[str, typer.Option(help="How long one request may take in all.")]


def offer_from(
    *,
    rate: float | None,
    max_concurrency: int | None,
    prompt: str,
    output: str,
    duration: str,
    warmup: str,
    drain: str,
    seed: int,
    burstiness: float = 1.0,
    constant: bool = False,
    burst: str = "",
) -> "Offer":
    """The offer that the flags describe.

    Raises:
        UsageError: a flag cannot be understood, or neither or both of rate and client count are given.
    """
    from knee.measure.target import Offer
    from knee.workload.parse import parse_arrivals, parse_lengths
    from knee.workload.spec import Workload

    if (rate is None) == (max_concurrency is None):
        raise UsageError("give either --rate or --max-concurrency", "an open loop takes --rate")
    if rate is not None and not 0 < rate < math.inf:
        raise UsageError(f"--rate {rate:g}", "it is above 0 and may be below 1: 0.25")
    if max_concurrency is not None and max_concurrency < 1:
        raise UsageError(f"--max-concurrency {max_concurrency}", "it is 1 or more")
    window_ns = parse_duration_ns(duration)
    if window_ns <= 0:
        raise UsageError(f"--duration {duration}", "it is above 0")
    return Offer(
        workload=Workload(
            prompt_tokens=parse_lengths(prompt),
            output_tokens=parse_lengths(output),
            arrivals=parse_arrivals(burstiness, constant, burst),
        ),
        rate=rate or 0.0,
        seed=seed,
        warmup_ns=parse_duration_ns(warmup),
        window_ns=window_ns,
        drain_ns=parse_duration_ns(drain),
        max_concurrency=max_concurrency,
    )


def connection_from(
    url: str,
    *,
    model: str = "",
    endpoint: Literal["completions", "chat"] = "completions",
    stream: bool = True,
    n: int = 1,
    body: list[str] | None = None,
    headers: list[str] | None = None,
    key_file: Path | None = None,
    metrics: list[str] | None = None,
    timeout: str = "10m",
) -> "Connection":
    """The connection that the flags describe.

    Raises:
        UsageError: a flag cannot be understood.
        InputError: the key file cannot be read.
    """
    from knee.http1.pool import Timeouts
    from knee.measure.endpoints import Ask
    from knee.measure.live import Connection
    from knee.measure.secret import read_key

    if n < 1:
        raise UsageError(f"--n {n}", "a prompt has at least one answer")
    total_s = parse_duration_ns(timeout) / NS_PER_S
    if total_s <= 0:
        raise UsageError(f"--timeout {timeout}", "it is above 0")
    return Connection(
        url=url,
        ask=Ask(model=model, endpoint=endpoint, stream=stream, n=n, body=_fields(body or [])),
        headers=_headers(headers or []),
        key=read_key(key_file),
        metrics_urls=tuple(metrics or ()),
        timeouts=Timeouts(
            connect_s=min(10.0, total_s),
            first_byte_s=total_s,
            between_bytes_s=min(120.0, total_s),
            total_s=total_s,
        ),
    )


def _fields(texts: list[str]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(
                f"not a body field: {text!r}", "write NAME=JSON, as in 'min_p=0.1' or 'user=\"a\"'"
            )
        try:
            fields[name.strip()] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            raise UsageError(
                f"not JSON in the body field {name!r}: {value!r}", 'text needs quotes: "a"'
            ) from None
    return fields


def _headers(texts: list[str]) -> dict[str, str]:
    headers = {}
    for text in texts:
        name, colon, value = text.partition(":")
        token = name.strip()
        if not colon or not token or not all(c.isalnum() or c in "-_.!#$%&'*+^`|~" for c in token):
            raise UsageError("a header that cannot be one", "write 'NAME: VALUE'")  # its value may be secret
        headers[token.lower()] = value.strip()
    return headers
