"""The options of `knee gateway`: its replicas, limits, ports and bounds on time."""

from pathlib import Path
from typing import Annotated

import typer

Urls = Annotated[list[str] | None, typer.Argument(metavar="URL", help="The vLLM servers.")]
Upstream = Annotated[list[str] | None, typer.Option(help="A further server; may be repeated.")]
From = Annotated[
    Path | None, typer.Option("--from", help="Take the limits from this run directory or knee.lock.")
]
MaxInFlight = Annotated[int | None, typer.Option(min=1, help="Requests in flight per replica.")]
MaxQueue = Annotated[
    int | None, typer.Option(min=0, help="Requests that may wait, per replica; none unless told.")
]
QueueDeadline = Annotated[
    str | None, typer.Option(help="How long a request may wait for a place; 500ms unless told.")
]
ReadyWait = Annotated[str, typer.Option(help="How long a request may wait while no replica is ready.")]
Policy = Annotated[str, typer.Option(help="prefix_affinity, least_load or round_robin.")]
Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")]
AdminHost = Annotated[str, typer.Option(help="Address of the admin port.")]
AdminPort = Annotated[
    int, typer.Option(help="Port of /healthz, /readyz, /metrics, /replicas; 0 takes a free one.")
]
ConnectTimeout = Annotated[str, typer.Option(help="Bound on connecting to a replica.")]
FirstByteTimeout = Annotated[
    str, typer.Option(help="Bound from the sent request to the answer's first byte.")
]
BetweenBytesTimeout = Annotated[str, typer.Option(help="Bound on every later silence.")]
ProbeTimeout = Annotated[str, typer.Option(help="How long a replica may take to answer a probe.")]
MaxBodyMib = Annotated[int, typer.Option(min=1, help="Largest request body, MiB.")]
SseKeepAlive = Annotated[
    str, typer.Option(help="Send a comment into event streams silent for so long; 0s never does.")
]
Unready = Annotated[str, typer.Option(help="After SIGTERM, still take requests for so long, as not ready.")]
Grace = Annotated[str, typer.Option(help="After SIGTERM, let answers finish for so long.")]
AccessLog = Annotated[str, typer.Option(help="A file, - for stderr, or none.")]
Seed = Annotated[int | None, typer.Option(help="Seed of request ids and random ties.")]
