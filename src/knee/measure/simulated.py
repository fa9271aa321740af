"""A simulated engine as a target: minutes of traffic in virtual time."""

from knee.core.point import Point
from knee.core.requests import Observed
from knee.core.slo import Slo
from knee.core.snapshot import EngineSnapshot, Snapshot
from knee.core.units import NS_PER_S
from knee.engine.config import EngineConfig
from knee.engine.engine import Engine
from knee.engine.load import ClosedLoop, OpenLoop, one_by_one
from knee.engine.seen import Seen
from knee.engine.skip import skip_until
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
        point = _Point(self.engine, offer, self.now_ns)
        stopped: Stop = ""
        snapshots: list[Snapshot] = []
        window_closed = False
        while not stopped and not point.over(self.now_ns):
            self.now_ns = point.advance(self.now_ns)
            since_ns = self.now_ns - point.start_ns
            if self._sampled and offer.warmup_ns <= since_ns and not window_closed:
                window_closed = since_ns >= offer.warmup_ns + offer.window_ns
                snapshots.append(self._look(full=window_closed or not snapshots))
            if watch is not None:
                stopped = watch(point.observed(self.now_ns), since_ns)
        observed = point.observed(self.now_ns)
        for number in list(self.engine.requests):
            self.engine.abort(number, self.now_ns)
        return Measured(
            observed=observed,
            spent_ns=self.now_ns - point.start_ns,
            window=window(snapshots) if len(snapshots) > 1 else None,
            snapshots=tuple(snapshots),
            stopped=stopped,
        )

    def snapshot(self) -> Snapshot:
        """The engine's metrics now."""
        return self._look(full=True)

    def settle(self, limit_ns: int) -> bool:  # noqa: ARG002 - a real target needs it
        """Whether the engine is idle: a point leaves nothing behind."""
        return not self.engine.requests

    def _look(self, full: bool) -> Snapshot:
        engine = self.engine
        return Snapshot(
            at_ns=self.now_ns,
            engines={"0": engine.snapshot(self.now_ns) if full else EngineSnapshot(gauges=engine.gauges())},
            source=self._name,
            version=self.engine.config.version,
            model_name="simulated",
        )


def simulated_point(config: EngineConfig, offer: Offer, slo: Slo | None = None) -> Point:
    """What a fresh engine of `config` makes of `offer`.

    Raises:
        UsageError: the engine, the workload or the rate cannot be.
    """
    return make_point(SimulatedTarget(config).measure(offer), offer, slo, simulated=True)


class _Point:
    """One offer on its way."""

    def __init__(self, engine: Engine, offer: Offer, start_ns: int) -> None:
        self.start_ns = start_ns
        self._engine = engine
        self._end_ns = offer.warmup_ns + offer.window_ns
        self._drain_ns = offer.drain_ns
        self._marks = (offer.warmup_ns, self._end_ns)
        self._seen = Seen(start_ns, (offer.warmup_ns, self._end_ns))
        closed = offer.max_concurrency
        requests = one_by_one(schedule(offer.workload, 1.0 if closed else offer.rate, offer.seed), start_ns)
        self._load = (
            ClosedLoop(requests, self._seen, closed, start_ns) if closed else OpenLoop(requests, self._seen)
        )

    def over(self, now_ns: int) -> bool:
        """Whether all measured requests have ended, or the time to wait for them has."""
        since_ns = now_ns - self.start_ns
        if since_ns < self._end_ns:
            return False
        return self._seen.open == 0 or since_ns >= self._end_ns + self._drain_ns

    def advance(self, now_ns: int) -> int:
        """Go on to the next tick, or to where the measured window begins or ends."""
        since_ns = now_ns - self.start_ns
        tick_ns = TICK_NS if since_ns < self._end_ns else DRAIN_TICK_NS
        until_ns = min([since_ns // tick_ns * tick_ns + tick_ns, *(m for m in self._marks if m > since_ns)])
        now_ns = skip_until(self._engine, self._load, now_ns, self.start_ns + until_ns)
        self._seen.gap(self._engine.take_gaps())
        return now_ns

    def observed(self, now_ns: int) -> Observed:
        """All there is to see now."""
        return self._seen.observed(self._engine.unfinished(), now_ns)
