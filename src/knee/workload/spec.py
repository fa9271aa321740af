"""A workload as data: written to a run directory, read back, and the same load again from the same seed."""

from typing import Literal

import msgspec

LENGTHS_HELP = "a number, uniform:LOW-HIGH, lognormal:MEAN:CV[:LOW-HIGH], or a list 100,200,300"
BURST_HELP = "SIZE/PERIOD, as in 50/10s"
"""How `workload.parse` reads what people write."""


class Lengths(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A distribution of token counts.

    `fixed`: always `mean`. `uniform`: whole numbers from `low` to `high`. `lognormal`: mean `mean` and
    coefficient of variation `cv`, cut to [`low`, `high`]. `empirical`: drawn from `values`, with `weights`
    where given.
    """

    kind: Literal["fixed", "uniform", "lognormal", "empirical"] = "fixed"
    mean: float = 0.0
    cv: float = 0.0
    low: int = 1
    high: int = 1_000_000
    values: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()


class Arrivals(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An arrival process, scaled by the rate it is asked for.

    `poisson`, `gamma` (shape `burstiness`, 1 = Poisson, smaller = burstier, as in vLLM's own benchmark) or
    `constant` gaps; on top of it, `burst_size` requests at once every `burst_every_s` seconds.
    """

    kind: Literal["poisson", "gamma", "constant"] = "poisson"
    burstiness: float = 1.0
    burst_size: int = 0
    burst_every_s: float = 0.0


class Workload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Arrivals and lengths of the requests that are offered."""

    prompt_tokens: Lengths
    output_tokens: Lengths
    arrivals: Arrivals = Arrivals()
