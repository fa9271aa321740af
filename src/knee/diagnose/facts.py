"""What is known beside the metrics: flags, the SLO, the client's own view, what a step takes."""

from collections.abc import Mapping

import msgspec

from knee.core.point import Judged, Point
from knee.core.slo import Slo


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All optional; each fact known turns abstentions into answers.

    `flags` are vLLM's (underscores), from a start-up log, a run's plan or the command line, and beside them
    `kv_cache_size_tokens` as the log states it. `point` is what a client measured in the same window,
    `light_itl_s` the gap between tokens of a request that is alone: the part of a step that no batch shares.
    `dead` says that /health answered 503.
    """

    flags: Mapping[str, str] = {}
    slo: Slo | None = None
    point: Point | None = None
    light_itl_s: float | None = None
    dead: bool = False

    def number(self, name: str) -> float | None:
        """The flag `name` as a number; None where it is not known or none."""
        try:
            value = float(self.flags[name])
        except (KeyError, ValueError):
            return None
        return value if value > 0 else None

    def bound_s(self, metric: str) -> float | None:
        """The SLO's tightest bound on a latency, in seconds."""
        bounds = [o.bound / 1000 for o in self.slo.objectives if o.metric == metric] if self.slo else []
        return min(bounds, default=None)

    def breaks(self, *metrics: str) -> bool | None:
        """Whether the point leans to breaking an objective on one of `metrics`; None where there is no point.

        Near the knee the interval of an estimate straddles its bound; what binds shows in the estimate.
        """
        if self.point is None or not self.point.judged:
            return None
        return any(_leans(j) for j in self.point.judged if j.objective.metric in metrics)


def _leans(judged: Judged) -> bool:
    """Whether the estimate is beyond its bound; an estimate of None is unbounded."""
    if judged.holds is not None:
        return not judged.holds
    return judged.n > 0 and (judged.value is None or judged.value > judged.objective.bound)
