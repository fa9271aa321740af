"""A client of the truth server in a process of its own: `python -m bench._load_client KIND JSON CORE`."""

import asyncio
import json
import os
import resource
import sys
import time
from typing import Any

import numpy as np

from bench._load_peers import PEERS


def knee_client(asked: dict[str, Any]) -> dict[str, Any]:
    """One point by our own load generator; with `stamps`, every chunk's arrival against its write."""
    from knee.core.slo import Slo
    from knee.core.units import NS_PER_MS, NS_PER_S
    from knee.measure.client.connection import Connection
    from knee.measure.client.exchange import StreamExchange
    from knee.measure.client.live import connect
    from knee.measure.single import live_point
    from knee.measure.target import Offer
    from knee.workload.spec import Lengths, Workload

    written: dict[int, list[int]] = {}
    lags_ns: list[int] = []
    if asked["stamps"]:
        plain = StreamExchange.body

        def body(self: StreamExchange, now_ns: int, data: bytes) -> None:
            at = data.find(b'"text":"') + 8
            if at > 8:
                wrote_ns = int(data[at : data.find(b'"', at)])
                lags_ns.append(now_ns - wrote_ns)
                written.setdefault(self.index, []).append(wrote_ns - self._origin_ns)
            plain(self, now_ns, data)

        StreamExchange.body = body  # type: ignore[method-assign]
    target = connect(Connection(url=asked["url"]))
    offer = Offer(
        workload=Workload(prompt_tokens=Lengths(mean=32), output_tokens=Lengths(mean=asked["chunks"])),
        rate=asked["rate"],
        seed=1,
        warmup_ns=int(asked["warmup"] * NS_PER_S),
        window_ns=int(asked["seconds"] * NS_PER_S),
        drain_ns=20 * NS_PER_S,
    )
    cpu_s, begun_s = time.process_time(), time.monotonic()
    measured = target.measure(offer)
    cpu_s, wall_s = time.process_time() - cpu_s, time.monotonic() - begun_s
    point = live_point(measured, offer, Slo(()))
    seen = measured.observed
    due = (seen.due_ns >= offer.warmup_ns) & (seen.due_ns < offer.warmup_ns + offer.window_ns)
    sent, ended = seen.sent_ns[seen.sent_ns >= 0], seen.end_ns[seen.end_ns >= 0]
    order = np.argsort(np.concatenate([sent, ended]), kind="stable")
    open_now = np.cumsum(np.concatenate([np.ones(len(sent)), -np.ones(len(ended))])[order])
    return {
        "cpu_ms": cpu_s / len(seen) * 1e3,
        "core": cpu_s / wall_s,
        "attained_share": point.attained_rate * asked["seconds"] / max(1, int(due.sum())),
        "send_p99_ms": point.send_lag_ms.p99,
        "ttft_p50_ms": point.ttft_ms.p50,
        "ttft_p99_ms": point.ttft_ms.p99,
        "itl_p50_ms": point.itl_ms.p50,
        "itl_p99_ms": point.itl_ms.p99,
        "stamp_p99_ms": float(np.percentile(lags_ns, 99)) / NS_PER_MS if lags_ns else None,
        "invalid": list(point.invalid),
        "most_open": int(open_now.max()),
        "ok": point.ok,
        **written_ms(written, seen.sent_ns, due, (offer.warmup_ns, offer.warmup_ns + offer.window_ns)),
    }


def written_ms(
    written: dict[int, list[int]], sent_ns: Any, due: Any, window_ns: tuple[int, int]
) -> dict[str, float]:
    """What the server did to the same requests, by the instants it wrote into its chunks.

    TTFT counts from the send, so that the client's own lag is not taken for the server's; a server that was
    late to read a request, or to write, was late.
    """
    firsts = [at[0] - int(sent_ns[index]) for index, at in written.items() if due[index]]
    gaps = np.concatenate([np.empty(0), *(np.diff(at) for at in written.values())])
    ends = np.concatenate([np.empty(0), *(np.asarray(at[1:]) for at in written.values())])
    gaps = gaps[(ends >= window_ns[0]) & (ends < window_ns[1])]
    return {
        f"wrote_{name}_p{share}_ms": float(np.percentile(values, share)) / 1e6
        for name, values in (("ttft", firsts), ("itl", gaps))
        for share in (50, 99)
        if len(values)
    }


def aiohttp_client(asked: dict[str, Any]) -> dict[str, Any]:
    """The same arrivals through aiohttp, as common tools use it: every event parsed, every instant kept."""
    import aiohttp
    import uvloop

    gaps = np.random.default_rng(1).exponential(1 / asked["rate"], int(asked["rate"] * asked["seconds"]))
    due_s = np.cumsum(gaps)
    body = {"model": "truth", "prompt": "a " * 31 + "a", "max_tokens": asked["chunks"], "stream": True}
    stamps: list[list[float]] = []

    async def one(session: aiohttp.ClientSession) -> None:
        seen: list[float] = []
        held = b""
        async with session.post(f"{asked['url']}/v1/completions", json=body) as response:
            async for piece in response.content.iter_any():
                now_s = time.monotonic()
                held += piece
                while b"\n\n" in held:
                    event, _, held = held.partition(b"\n\n")
                    data = event.removeprefix(b"data: ")
                    if data != b"[DONE]" and json.loads(data)["choices"][0]["text"]:
                        seen.append(now_s)
        stamps.append(seen)

    async def all_of_them() -> tuple[float, float]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            cpu_s, begun_s = time.process_time(), time.monotonic()
            tasks = []
            for at_s in due_s.tolist():
                await asyncio.sleep(max(0.0, begun_s + at_s - time.monotonic()))
                tasks.append(asyncio.ensure_future(one(session)))
            await asyncio.gather(*tasks)
            return time.process_time() - cpu_s, time.monotonic() - begun_s

    cpu_s, wall_s = (uvloop.run if asked["uvloop"] else asyncio.run)(all_of_them())
    return {"cpu_ms": cpu_s / len(due_s) * 1e3, "core": cpu_s / wall_s, "ok": len(stamps)}


def memory_client(asked: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001 - every client takes the same
    """A million streams of 20 chunks entered in the books, without a network."""
    from bench._truth_server import PREFIX, SUFFIX
    from knee.measure.client.books import Books
    from knee.measure.client.exchange import StreamExchange

    chunks = [PREFIX + b"12345678901234567" + SUFFIX % (32, i + 1) for i in range(20)]
    headers = [(b"content-type", b"text/event-stream")]
    generator = np.random.default_rng(1)
    books = Books()
    cpu_s, n = time.process_time(), 1_000_000
    for number in range(n):
        if number % 1_000 == 0:
            times_ns = generator.exponential(1e7, (1_000, 20)).astype(np.int64).cumsum(axis=1).tolist()
        due_ns = number * 300_000
        exchange = StreamExchange(books, books.offer(due_ns, 32, 20), 0, True, lambda _: None)
        exchange.sent(due_ns)
        exchange.head(due_ns, 200, headers)
        for at_ns, data in zip(times_ns[number % 1_000], chunks, strict=True):
            exchange.body(due_ns + at_ns, data)
        exchange.body(due_ns + at_ns, b"data: [DONE]\n\n")
        exchange.end(due_ns + at_ns)
    cpu_s = time.process_time() - cpu_s
    observed = books.observed(n * 300_000)
    assert int(observed.gaps.count.sum()) == 19 * n
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"rss_mb": peak_kb / 1024, "us_per_chunk": cpu_s / n / 20 * 1e6}


CLIENTS = {"knee": knee_client, "aiohttp": aiohttp_client, "memory": memory_client, **PEERS}


def main() -> None:
    kind, asked, core = sys.argv[1:]
    if int(core) >= 0:
        os.sched_setaffinity(0, {int(core)})
    print(json.dumps(CLIENTS[kind](json.loads(asked))))


if __name__ == "__main__":
    main()
