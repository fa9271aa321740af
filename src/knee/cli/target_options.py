"""How to reach a live server, from the flags of every command that offers load to one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from knee.core.errors import InputError, UsageError
from knee.core.units import NS_PER_S, parse_duration_ns

if TYPE_CHECKING:
    from knee.measure.client.connection import Connection
    from knee.measure.client.line import Hire

UrlArgument = Annotated[str, typer.Argument(help="The server, or its router: http://127.0.0.1:8000.")]
ModelOption = Annotated[str, typer.Option(help="Model to ask; the first one served when left out.")]
EndpointOption = Annotated[Literal["completions", "chat", "responses"], typer.Option(help="What to call.")]
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
RealtimeOption = Annotated[
    bool, typer.Option("--realtime", help="Real-time priority for the load, where cores are shared (root).")
]
WorkersOption = Annotated[
    int | None, typer.Option(help="Processes that share the load: 1, or with --ray one a node, if left out.")
]
RayOption = Annotated[
    str,
    typer.Option("--ray", help="Run them on this Ray cluster: HOST:6379, or auto on one of its nodes."),
]
ServerLogOption = Annotated[Path | None, typer.Option(help="The server's start-up log: it tells its limits.")]
TimeoutOption = Annotated[str, typer.Option(help="How long one request may take in all.")]


def connection_from(
    url: str,
    *,
    model: str = "",
    endpoint: Literal["completions", "chat", "responses"] = "completions",
    stream: bool = True,
    n: int = 1,
    body: list[str] | None = None,
    headers: list[str] | None = None,
    key_file: Path | None = None,
    metrics: list[str] | None = None,
    timeout: str = "10m",
    realtime: bool = False,
) -> "Connection":
    """The connection that the flags describe.

    Raises:
        UsageError: a flag cannot be understood.
        InputError: the key file cannot be read.
    """
    from knee.http1.pool import Timeouts
    from knee.measure.client.connection import Connection
    from knee.measure.client.endpoints import Ask
    from knee.measure.client.secret import read_key

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
        realtime=realtime,
        timeouts=Timeouts(
            connect_s=min(10.0, total_s),
            first_byte_s=total_s,
            between_bytes_s=min(120.0, total_s),
            total_s=total_s,
        ),
    )


@contextmanager
def workers_from(workers: int | None, ray: str) -> Iterator[tuple[int, "Hire | None"]]:
    """How many workers share the load, and what starts them where that is not this machine.

    Raises:
        UsageError: there is no such Ray cluster, or no place on it for so many.
    """
    if not ray:
        yield 1 if workers is None else workers, None
        return
    from knee.measure.client.actors import on_ray

    with on_ray(ray, workers) as hands:
        yield hands


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


def flags_in(server_log: Path | None) -> dict[str, str]:
    """The flags that a start-up log shows, and the KV cache it found.

    Raises:
        InputError: there is no such log, or it is none of vLLM.
    """
    from knee.fit.log import read_log
    from knee.fit.server_flags import known_flags

    if server_log is None:
        return {}
    try:
        with server_log.open("rb") as stream:
            return known_flags(read_log(stream, str(server_log)))
    except OSError as error:
        raise InputError(f"{server_log} cannot be read: {error.strerror}") from error
