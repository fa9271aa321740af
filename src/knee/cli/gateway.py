"""`knee gateway`: an admission-controlled proxy in front of one or more vLLM servers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from knee.cli import gateway_options as options  # noqa: TC001 - typer reads the annotations
from knee.cli.app import JsonOption, log
from knee.core.errors import EXIT_NEGATIVE, InputError, UsageError
from knee.core.units import ns_to_s, parse_duration_ns

if TYPE_CHECKING:
    from knee.policy.admission import Limits
    from knee.protect.config import GatewayConfig
    from knee.protect.serve import RunningGateway


def gateway(
    *,
    urls: options.Urls = None,
    upstream: options.Upstream = None,
    from_: options.From = None,
    max_in_flight: options.MaxInFlight = None,
    max_queue: options.MaxQueue = None,
    queue_deadline: options.QueueDeadline = None,
    ready_wait: options.ReadyWait = "30s",
    policy: options.Policy = "prefix_affinity",
    host: options.Host = "127.0.0.1",
    port: options.Port = 8080,
    admin_host: options.AdminHost = "127.0.0.1",
    admin_port: options.AdminPort = 8081,
    connect_timeout: options.ConnectTimeout = "2s",
    first_byte_timeout: options.FirstByteTimeout = "600s",
    between_bytes_timeout: options.BetweenBytesTimeout = "120s",
    probe_timeout: options.ProbeTimeout = "5s",
    max_body_mib: options.MaxBodyMib = 32,
    sse_keep_alive: options.SseKeepAlive = "0s",
    unready: options.Unready = "5s",
    grace: options.Grace = "60s",
    access_log: options.AccessLog = "-",
    seed: options.Seed = None,
    as_json: JsonOption = False,
) -> int | None:
    """Protect vLLM servers: bound what is in flight, refuse the rest fast, route by load and prefix.

    A name with several addresses is as many replicas. Runs until SIGTERM; exit code 1 where answers had to be
    cut when the grace was over. Limits come from --from or from --max-in-flight.
    """
    from random import Random

    from knee.core.clock import RealClock
    from knee.protect.serve import Ports, RunningGateway, serve

    config = _config(locals())
    ports = Ports(host=host, port=port, admin_host=admin_host, admin_port=admin_port)
    file = _open_log(access_log)
    made = Random(seed) if seed is not None else Random()
    clock = RealClock()
    finished = serve(
        lambda: RunningGateway(config, ports, clock=clock, rng=made, log=file),
        lambda running: _announce(running, config, as_json),
    )
    return None if finished else EXIT_NEGATIVE


def _config(flags: dict[str, Any]) -> GatewayConfig:
    """What the flags ask for.

    Raises:
        UsageError, InputError: they make no gateway; the line says why.
    """
    from knee.http1.origin import parse_origin
    from knee.policy.routing import POLICIES
    from knee.protect.config import MIB, GatewayConfig

    urls = (*(flags["urls"] or ()), *(flags["upstream"] or ()))
    origins = tuple(dict.fromkeys(parse_origin(url) for url in urls))
    if not origins:
        raise UsageError("no server to protect", "knee gateway http://127.0.0.1:8000 --max-in-flight 64")
    policy = flags["policy"]
    if policy not in POLICIES:
        raise UsageError(f"no policy {policy!r}", f"known: {', '.join(POLICIES)}")
    limits = _limits(flags["from_"], flags["max_in_flight"], flags["max_queue"], flags["queue_deadline"])
    return GatewayConfig(
        upstreams=origins,
        limits=msgspec.structs.replace(limits, ready_wait_ns=parse_duration_ns(flags["ready_wait"])),
        policy=policy,
        connect_s=_seconds(flags["connect_timeout"]),
        first_byte_s=_seconds(flags["first_byte_timeout"]),
        between_bytes_s=_seconds(flags["between_bytes_timeout"]),
        probe_s=_seconds(flags["probe_timeout"]),
        unready_s=_seconds(flags["unready"], zero=True),
        grace_s=_seconds(flags["grace"], zero=True),
        keep_alive_s=_seconds(flags["sse_keep_alive"], zero=True),
        body_bytes=flags["max_body_mib"] * MIB,
    )


def _limits(
    from_: Path | None, max_in_flight: int | None, max_queue: int | None, queue_deadline: str | None
) -> Limits:
    """The limits of one replica: those of the knee, with what the command line says instead.

    Raises:
        UsageError: neither a knee nor a bound was given.
        InputError: the run has no point that limits could be made from.
    """
    from knee.core.lock import read_lock
    from knee.policy.admission import Limits
    from knee.policy.limits import DEFAULT_QUEUE_NS, limits_from_knee

    given: dict[str, Any] = {}
    if max_in_flight is not None:
        given["max_in_flight"] = max_in_flight
    if max_queue is not None:
        given["max_queue"] = max_queue
    if queue_deadline is not None:
        given["queue_deadline_ns"] = parse_duration_ns(queue_deadline)
    if from_ is not None:
        lock = read_lock(from_)
        points = [] if lock.at_knee is None else [lock.at_knee]
        return msgspec.structs.replace(limits_from_knee(lock.knee, points), **given)
    if max_in_flight is None:
        raise UsageError(
            "no limit on requests in flight",
            "--from RUN takes it from a measured knee, --max-in-flight N gives it",
        )
    return Limits(**{"max_queue": 0, "queue_deadline_ns": DEFAULT_QUEUE_NS, **given})


def _seconds(text: str, *, zero: bool = False) -> float:
    seconds = ns_to_s(parse_duration_ns(text))
    if seconds <= 0 and not zero:
        raise UsageError(f"this wait must be longer than zero: {text!r}")
    return seconds


def _open_log(path: str) -> IO[str] | None:
    if path == "none":
        return None
    if path == "-":
        return sys.stderr
    try:
        return Path(path).open("a", encoding="utf-8", buffering=65_536)
    except OSError as error:
        raise InputError(f"cannot write the access log to {path}: {error.strerror}") from error


def _announce(running: RunningGateway, config: GatewayConfig, as_json: bool) -> None:
    """One line for a person, or one JSON line on stdout for a program that waits for the ports."""
    limits = config.limits
    if as_json:
        told = {
            "port": running.server.port,
            "admin_port": running.admin.port,
            "upstreams": [str(origin) for origin in config.upstreams],
            "limits": limits,
            "policy": config.policy,
        }
        sys.stdout.write(msgspec.json.encode(told).decode() + "\n")
        sys.stdout.flush()
    log(
        f"gateway on port {running.server.port}, admin on port {running.admin.port}; per replica "
        f"{limits}; "
        f"behind it {', '.join(str(origin) for origin in config.upstreams)}"
    )
