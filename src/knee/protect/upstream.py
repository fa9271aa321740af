"""One replica as the gateway sees it: its connections, its health, its last answers."""

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

from knee.core.clock import Clock
from knee.core.errors import KneeError
from knee.core.snapshot import Snapshot
from knee.http1.client import Client
from knee.http1.failure import Cause
from knee.http1.origin import Origin
from knee.http1.pool import Timeouts
from knee.http1.upstream import UpstreamPool
from knee.metrics.normalise import parse_page
from knee.policy.health import Failure, Health
from knee.policy.routing import Load
from knee.protect.config import GatewayConfig

WHOLE_ANSWER_S = 24 * 3600.0
"""An answer that keeps coming is never cut off by us within a day."""
MOST_OPEN = 16_384
SCRAPE_S = 1.0
ANSWER_BYTES = 1 << 50

_FAILURES: dict[Cause, Failure] = {
    "refused": "connect",
    "unknown_host": "connect",
    "unreachable": "connect",
    "tls": "connect",
    "timeout_connect": "connect",
    "timeout_first_byte": "first_byte",
    "timeout_stalled": "first_byte",
    "cut": "cut",
    "reset": "cut",
    "not_http": "cut",
    "too_large": "cut",
}
"""What counts against a replica, and as what; causes of our own machine do not."""

_WANTED = re.compile(r"num_requests_running|num_requests_waiting\b|cache_usage_perc")


class Upstream:
    """One replica. `changed` is called whenever what it may be given may have changed.

    `draining`: an operator is emptying it; `gone`: its address is no longer behind its name.
    """

    def __init__(
        self, origin: Origin, config: GatewayConfig, clock: Clock, changed: Callable[[], None]
    ) -> None:
        self.name = str(origin)
        self.origin = origin
        self.draining = self.gone = False
        self.last_byte_ns = 0
        self.scraped_ns: int | None = None
        self.failures: dict[str, int] = {}
        self._clock = clock
        self._changed = changed
        self.health = Health(config.health, clock.monotonic_ns())
        timeouts = Timeouts(
            connect_s=config.connect_s,
            first_byte_s=config.first_byte_s,
            between_bytes_s=config.between_bytes_s,
            total_s=WHOLE_ANSWER_S,
        )
        self.pool = UpstreamPool(origin, clock, timeouts, limit=MOST_OPEN, body_limit=ANSWER_BYTES)
        self.probes = Client(self.name, timeout_s=config.probe_s)
        self.scrapes = Client(self.name, timeout_s=SCRAPE_S)

    @property
    def state(self) -> Literal["loading", "ready", "ejected", "half_open", "draining"]:
        """Its health, or that it gets nothing more and may finish what it has."""
        return "draining" if self.leaving else self.health.state

    @property
    def leaving(self) -> bool:
        """Whether it gets nothing more, whatever its health."""
        return self.draining or self.gone

    @property
    def scrape_age_ns(self) -> int | None:
        """How old its last metrics are; None where there were none."""
        return None if self.scraped_ns is None else self._clock.monotonic_ns() - self.scraped_ns

    def answered(self, status: int, now_ns: int) -> None:
        """A response head with `status` came for a real request."""
        self.last_byte_ns = now_ns
        before = self.health.state
        self.health.on_answer(status, now_ns)
        if self.health.state != before:
            self._changed()

    def failed(self, cause: Cause, now_ns: int) -> None:
        """A real request got no whole answer because of `cause`."""
        self.failures[cause] = self.failures.get(cause, 0) + 1
        if cause in _FAILURES:
            self.health.on_failure(_FAILURES[cause], now_ns)
            self._changed()

    async def probe(self) -> None:
        """Ask whether it is alive, and before the first request also whether it has a model to serve."""
        asked_ns = self._clock.monotonic_ns()
        answered = False
        with suppress(KneeError):
            health = await self.probes.request("/health")
            answered = health.status == 200
            # A server without that path tells by its models that it is alive.
            if health.status == 404 or (answered and self.health.state == "loading"):
                models = await self.probes.request("/v1/models")
                # A server that asks for a key we were not given does answer.
                answered = models.status in (401, 403) or (models.status == 200 and bool(models.json()))
        now_ns = self._clock.monotonic_ns()
        self.health.on_probe(answered, now_ns, progress=self.last_byte_ns > asked_ns)
        self._changed()

    async def scrape(self) -> Load:
        """Its load now.

        Raises:
            KneeError: no page, or not vLLM's.
        """
        asked_ns = self._clock.monotonic_ns()
        answer = await self.scrapes.request("/metrics")
        lines = answer.body.decode("utf-8", "replace").splitlines()
        # Histograms are most of a page; three gauges are all that routing needs.
        page = "\n".join(line for line in lines if _WANTED.search(line)) + "\n"
        load = load_of(parse_page(page, asked_ns), asked_ns)
        self.scraped_ns = asked_ns
        return load

    def close(self) -> None:
        """Drop all connections."""
        self.pool.close()
        self.probes.close()
        self.scrapes.close()


def load_of(snapshot: Snapshot, at_ns: int) -> Load:
    """One replica's load over all its engines: counts added, KV usage averaged, missing where any is."""
    engines = snapshot.engines.values()
    waiting = [engine.gauges.get("num_requests_waiting") for engine in engines]
    running = [engine.gauges.get("num_requests_running") for engine in engines]
    usage = [engine.gauges.get("kv_cache_usage_perc") for engine in engines]
    total = _sum(usage)
    return Load(
        at_ns=at_ns,
        waiting=_sum(waiting),
        running=_sum(running),
        kv_usage=None if total is None else total / len(usage),
    )


def _sum(values: list[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return sum(present) if present and len(present) == len(values) else None
