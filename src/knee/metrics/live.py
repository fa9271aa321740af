"""A running server as a source: its `/metrics` page, every half second for a while."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import msgspec

from knee.core.clock import Clock
from knee.core.errors import InputError, KneeError, TargetError
from knee.core.snapshot import Snapshot
from knee.core.units import s_to_ns
from knee.http1.client import Answer, Client
from knee.http1.loop import new_event_loop
from knee.http1.origin import parse_origin
from knee.metrics.asking import About, ask, remark_on
from knee.metrics.normalise import parse_page

TIMEOUT_S = 10.0
MAX_SNAPSHOTS = 200_000

Seen = Callable[[Sequence[Snapshot]], bool]
"""Gets the snapshots of one instant, one a server that answered; False ends the sampling."""


class Sampled(msgspec.Struct, frozen=True, kw_only=True):
    """What servers showed. `about` is what each tells of itself, `missed` counts failed scrapes."""

    snapshots: tuple[Snapshot, ...]
    about: dict[str, About] = {}
    missed: int = 0


def base_url(url: str) -> str:
    """The server's address: a URL that people copied may end in /metrics, /v1 or a slash.

    Raises:
        UsageError: it is no URL.
    """
    parse_origin(url)
    plain = url.rstrip("/")
    for ending in ("/metrics", "/v1", "/health"):
        plain = plain.removesuffix(ending)
    return plain.rstrip("/")


def sample(
    urls: Sequence[str],
    for_s: float,
    every_s: float,
    clock: Clock,
    *,
    headers: Mapping[str, str] | None = None,
    seen: Seen | None = None,
) -> Sampled:
    """Scrape every server at the same instants, `every_s` apart, for `for_s` (at least twice).

    A scrape that fails on the way is missed, not an error; a server that is not there at the start is one.

    Raises:
        TargetError: a server cannot be reached, wants credentials, or is not vLLM.
    """
    # A Runner cancels the work on Ctrl-C. A KeyboardInterrupt out of nowhere is lost where it comes in the
    # callback of a weak reference, such as the one that runs when a task is dropped.
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_sample([base_url(u) for u in urls], for_s, every_s, clock, headers, seen))


async def _sample(  # noqa: PLR0917 - called once, from above
    urls: Sequence[str],
    for_s: float,
    every_s: float,
    clock: Clock,
    headers: Mapping[str, str] | None,
    seen: Seen | None,
) -> Sampled:
    clients = [Client(url, headers=headers, timeout_s=TIMEOUT_S) for url in dict.fromkeys(urls)]
    snapshots: list[Snapshot] = []
    missed = 0
    try:
        start_ns = clock.monotonic_ns()
        about = await asyncio.gather(*(ask(client) for client in clients))
        for tick in range(MAX_SNAPSHOTS // max(1, len(clients))):
            due_ns = start_ns + s_to_ns(tick * every_s)
            await asyncio.sleep(max(0.0, (due_ns - clock.monotonic_ns()) / 1e9))
            pages = await asyncio.gather(
                *(_page(c, a.version, clock) for c, a in zip(clients, about, strict=True)),
                return_exceptions=tick > 0,
            )
            got = [page for page in pages if isinstance(page, Snapshot)]
            for page in pages:
                if isinstance(page, BaseException) and not isinstance(page, KneeError):
                    raise page
            missed += len(pages) - len(got)
            snapshots += got
            if (seen is not None and not seen(got)) or (
                tick and clock.monotonic_ns() - start_ns >= s_to_ns(for_s)
            ):
                break
        return Sampled(
            snapshots=tuple(snapshots),
            about={str(client.origin): one for client, one in zip(clients, about, strict=True)},
            missed=missed,
        )
    finally:
        for client in clients:
            client.close()


async def _page(client: Client, version: str, clock: Clock) -> Snapshot:
    answer = await client.request("/metrics")
    _check(answer)
    try:
        text = answer.body.decode("utf-8", "replace")
        snapshot = parse_page(text, (answer.started_ns + answer.head_ns) // 2, str(client.origin))
    except InputError as error:
        raise TargetError(error.what, error.hint) from error
    remark = remark_on(version)
    return msgspec.structs.replace(
        snapshot,
        version=version,
        took_ns=clock.monotonic_ns() - answer.started_ns,
        warnings=(*snapshot.warnings, *([remark] if remark else [])),
    )


def _check(answer: Answer) -> None:
    if answer.status in (401, 403):
        raise TargetError(
            f"{answer.url} answers {answer.status}: it wants a key",
            "give it with --api-key-file, or in VLLM_API_KEY",
        )
    if answer.status == 404:
        raise TargetError(
            f"{answer.url} answers 404", "this is no vLLM server, or its /metrics has another path"
        )
    if answer.status == 503:
        raise TargetError(
            f"{answer.url} answers 503: it is not ready", "it is loading, draining or full; look at its log"
        )
    if answer.status != 200:
        raise TargetError(f"{answer.url} answers {answer.status}", "look at the server's log")
