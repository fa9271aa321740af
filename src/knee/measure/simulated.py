"""A simulated engine as a target: minutes of traffic in virtual time."""

import msgspec
import numpy as np

from knee.core.point import Point, Summary
from knee.core.requests import NEVER, REJECTED, Observed
from knee.core.slo import Slo
from knee.core.snapshot import EngineSnapshot, Snapshot
from knee.core.units import NS_PER_MS, NS_PER_S
from knee.engine.config import EngineConfig
from knee.engine.engine import Engine
from knee.engine.run import Run, run
from knee.measure.point import make_point
from knee.measure.target import Measured, Offer, Stop, TargetInfo, Watch
from knee.metrics.window import window
from knee.workload.schedule import schedule

TICK_NS = NS_PER_S
DRAIN_TICK_NS = NS_PER_S // 10


class SimulatedTarget:
    """An engine in virtual time that can be offered load; see `measure.target.Target`.

    Time goes on from point to point, and so do its counters and its prefix cache, as on a real server. What a
    point leaves unfinished is aborted when it ends, so that the next one meets an idle engine.
    """

    def __init__(self, config: EngineConfig, *, name: str = "simulated engine", sampled: bool = True) -> None:
        """`sampled`: look at the metrics about once a virtual second, as a scrape of a server does."""
        self.engine = Engine(config)
        self.now_ns = 0
        self._name = name
        self._sampled = sampled

    def describe(self) -> TargetInfo:
        """What is simulated, with the flags in vLLM's spelling."""
        config = self.engine.config
        own = ("step_cost", "front_end", "version")
        flags = {
            field: str(getattr(config, field))
            for field in config.__struct_fields__
            if field not in own and getattr(config, field) is not None
        }
        for part in (config.step_cost, config.front_end):
            flags |= {field: str(getattr(part, field)) for field in part.__struct_fields__}
        return TargetInfo(
            name=self._name, simulated=True, version=config.version, model="simulated", flags=flags
        )

    def measure(self, offer: Offer, watch: Watch | None = None) -> Measured:
        """Offer load in virtual time; see `Target.measure`.

        Raises:
            UsageError: the workload or the rate cannot be.
        """
        closed = offer.max_concurrency is not None
        rate = 1.0 if closed else offer.rate
        end_ns = offer.warmup_ns + offer.window_ns
        running = run(
            self.engine,
            schedule(offer.workload, rate, offer.seed),
            self.now_ns,
            (offer.warmup_ns, end_ns),
            offer.max_concurrency,
        )
        start_ns = self.now_ns
        stopped: Stop = ""
        snapshots: list[Snapshot] = []
        closed_window = False
        while not stopped and not _over(running, offer):
            running.advance(_next_tick(running.now_ns, offer, look=self._sampled or watch is not None))
            self.now_ns = start_ns + running.now_ns
            if self._sampled and offer.warmup_ns <= running.now_ns and not closed_window:
                closed_window = running.now_ns >= end_ns
                full = closed_window or not snapshots
                snapshots.append(
                    self._snapshot(running.snapshot() if full else EngineSnapshot(gauges=running.gauges()))
                )
            if watch is not None:
                stopped = watch(running.observed(), running.now_ns)
        observed = running.observed()
        running.end()
        return Measured(
            observed=observed,
            spent_ns=running.now_ns,
            window=window(snapshots) if len(snapshots) > 1 else None,
            snapshots=tuple(snapshots),
            stopped=stopped,
        )

    def snapshot(self) -> Snapshot:
        """The engine's metrics now."""
        return self._snapshot(self.engine.snapshot(self.now_ns))

    def settle(self, limit_ns: int) -> bool:  # noqa: ARG002 - a real target needs it
        """Whether the engine is idle: a point leaves nothing behind."""
        return not self.engine.requests

    def _snapshot(self, engine: EngineSnapshot) -> Snapshot:
        return Snapshot(
            at_ns=self.now_ns,
            engines={"0": engine},
            source=self._name,
            version=self.engine.config.version,
            model_name="simulated",
        )


def _over(run: Run, offer: Offer) -> bool:
    """Whether all measured requests have ended, or the time to wait for them has."""
    late_ns = run.now_ns - offer.warmup_ns - offer.window_ns
    return late_ns >= 0 and (late_ns >= offer.drain_ns or run.open() == 0)


def _next_tick(now_ns: int, offer: Offer, look: bool) -> int:
    """The next whole second if there is somebody to `look`; where the window begins or ends in any case."""
    end_ns = offer.warmup_ns + offer.window_ns
    if now_ns >= end_ns:
        return min(end_ns + offer.drain_ns, now_ns // DRAIN_TICK_NS * DRAIN_TICK_NS + DRAIN_TICK_NS)
    mark_ns = offer.warmup_ns if now_ns < offer.warmup_ns else end_ns
    return min(mark_ns, now_ns // TICK_NS * TICK_NS + TICK_NS) if look else mark_ns


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """A simulated point, in which a refused request waits for ever, and the waits of those admitted."""

    point: Point
    admitted_ttft_ms: Summary
    admitted_itl_ms: Summary


def simulated_point(
    config: EngineConfig, offer: Offer, extra_ms: float = 0.0, slo: Slo | None = None
) -> Simulated:
    """What a fresh engine of `config` makes of `offer`; clients see every token `extra_ms` later.

    Raises:
        UsageError: the engine, the workload or the rate cannot be.
    """
    measured = SimulatedTarget(config).measure(offer)
    if extra_ms:
        measured = msgspec.structs.replace(measured, observed=_later(measured.observed, extra_ms))
    point = make_point(measured, offer, slo, simulated=True)
    admitted = point
    if point.rejected:
        served = msgspec.structs.replace(measured, observed=_without_refused(measured.observed))
        admitted = make_point(served, offer, simulated=True)
    return Simulated(point=point, admitted_ttft_ms=admitted.ttft_ms, admitted_itl_ms=admitted.itl_ms)


def _later(seen: Observed, extra_ms: float) -> Observed:
    came = {
        name: np.where(instants == NEVER, NEVER, instants + round(extra_ms * NS_PER_MS))
        for name, instants in (("first_ns", seen.first_ns), ("last_ns", seen.last_ns))
    }
    return msgspec.structs.replace(seen, **came)


def _without_refused(seen: Observed) -> Observed:
    taken = seen.outcome != REJECTED
    columns = {
        name: getattr(seen, name)[taken]
        for name in seen.__struct_fields__
        if isinstance(getattr(seen, name), np.ndarray)
    }
    return msgspec.structs.replace(seen, **columns)
