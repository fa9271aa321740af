"""What is known beside the metrics: flags, the SLO, the client's own view, what a step takes."""

import math
from collections.abc import Mapping

import msgspec

from knee.core.point import Judged, Point
from knee.core.slo import Slo

NEAR = 0.9
"""An estimate at this share of its bound is about to break it."""


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
        """Whether the point breaks an objective on one of `metrics`, by its estimate; None without a point.

        Near the knee an interval straddles its bound, and a repeated point may just hold: where no estimate
        is beyond its bound, the one that is nearest to it (within a tenth) is what breaks next.
        """
        if self.point is None or not self.point.judged:
            return None
        near = [(_nearness(judged), judged.objective.metric) for judged in self.point.judged]
        broken = [metric for nearness, metric in near if nearness >= 1]
        if not broken:
            broken = [metric for nearness, metric in near if nearness >= max(NEAR, *(n for n, _ in near))]
        return any(metric in metrics for metric in broken)


def _nearness(judged: Judged) -> float:
    """The estimate over its bound; infinite where it is unbounded, 0 where nothing was seen."""
    if judged.n == 0 or judged.objective.metric == "goodput":
        return 0.0
    if judged.value is None:
        return math.inf
    return judged.value / judged.objective.bound if judged.objective.bound else math.inf
