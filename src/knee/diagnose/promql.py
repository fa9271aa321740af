"""PromQL over a chosen vLLM version's own metric names."""

import msgspec

from knee.catalog.metrics import exposed_names
from knee.core.lock import Lock

EACH = "job, instance"
"""What a replica is to Prometheus; engines of one replica are added, or the worst stands for them."""


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """How one version shows its series, and which of them are meant (`selector`: label matchers)."""

    version: str
    selector: str = ""

    def has(self, canonical: str) -> bool:
        """Whether this version shows the series."""
        return bool(exposed_names(canonical, self.version))

    def name(self, canonical: str) -> str:
        """The newest name under which this version shows the series.

        Raises:
            KeyError: it does not show it.
        """
        names = exposed_names(canonical, self.version)
        if not names:
            raise KeyError(canonical)
        return names[0]

    def series(self, canonical: str, part: str = "", further: str = "") -> str:
        """The selector of a series, of its `part` (`bucket`, `sum`, `count`) for a histogram."""
        ending = f"_{part}" if part else ""
        inside = ", ".join(text for text in (self.selector, further) if text)
        return f"{self.name(canonical)}{ending}{{{inside}}}" if inside else f"{self.name(canonical)}{ending}"

    def rate(self, canonical: str, over: str = "5m", part: str = "", by: str = EACH) -> str:
        """The rate of a counter, added over engines."""
        return f"sum by ({by}) (rate({self.series(canonical, part)}[{over}]))"

    def mean(self, canonical: str, over: str = "5m") -> str:
        """The mean of a histogram's observations."""
        return f"{self.rate(canonical, over, 'sum')} / {self.rate(canonical, over, 'count')}"

    def quantile(self, q: float, canonical: str, over: str = "5m") -> str:
        """A quantile of a histogram, interpolated inside its bucket as PromQL does."""
        return f"histogram_quantile({q:g}, {self.rate(canonical, over, 'bucket', by=f'le, {EACH}')})"


class Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """Where to warn. `rate` is requests/s of one replica at its knee, None where none was measured."""

    waiting: float = 10.0
    kv: float = 0.9
    rate: float | None = None
    ttft_s: float | None = None
    ttft_q: float = 0.95
    itl_s: float | None = None
    itl_q: float = 0.99


def thresholds_of(lock: Lock | None) -> Thresholds:
    """Thresholds from a measured knee: its rate, its SLO, and the queue that stood at it."""
    if lock is None:
        return Thresholds()
    ttft = next((o for o in lock.slo.objectives if o.metric == "ttft"), None)
    itl = next((o for o in lock.slo.objectives if o.metric in ("itl", "tpot")), None)
    waiting = 10.0
    if lock.at_knee is not None and lock.at_knee.window is not None:
        high = [
            engine.gauges["num_requests_waiting"].high
            for engine in lock.at_knee.window.engines.values()
            if "num_requests_waiting" in engine.gauges
        ]
        waiting = max([waiting, *high])
    return Thresholds(
        waiting=waiting,
        rate=lock.knee.holds,
        ttft_s=ttft.bound / 1000 if ttft else None,
        ttft_q=ttft.quantile or 0.95 if ttft else 0.95,
        itl_s=itl.bound / 1000 if itl else None,
        itl_q=itl.quantile or 0.99 if itl else 0.99,
    )
