"""When requests arrive: instants at a rate of one a second, which every other rate only stretches."""

import math
from collections.abc import Callable

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from knee.core.errors import UsageError
from knee.workload.spec import Arrivals

Instants = NDArray[np.float64]
DrawInstants = Callable[[int], Instants]
"""The next n arrivals at rate 1, in order, without end. Drawing n then m gives the same as drawing n + m."""


def draw_arrivals(arrivals: Arrivals, generator: Generator) -> DrawInstants:
    """Arrivals at a mean rate of 1, bursts not included.

    Gaps are drawn independently and never rescaled to make a count come out: the number of arrivals in a
    window varies as it does for the process named (for Poisson its variance equals its mean).

    Raises:
        UsageError: the process is not one (burstiness not above 0, a burst without a period).
    """
    if not 0 < arrivals.burstiness < math.inf:
        raise UsageError(f"a burstiness of {arrivals.burstiness:g}", "it is above 0; 1 is Poisson")
    if arrivals.burst_size < 0 or (arrivals.burst_size and not 0 < arrivals.burst_every_s < math.inf):
        raise UsageError(
            f"bursts of {arrivals.burst_size} every {arrivals.burst_every_s:g} s", "both are above 0"
        )
    return _KINDS[arrivals.kind](arrivals, generator)


def draw_bursts(arrivals: Arrivals) -> DrawInstants:
    """The bursts on top, in seconds: `burst_size` at once after each `burst_every_s`, whatever the rate."""
    drawn = 0

    def draw(n: int) -> Instants:
        nonlocal drawn
        number = np.arange(drawn, drawn + n, dtype=np.int64) // arrivals.burst_size + 1
        drawn += n
        return (number * arrivals.burst_every_s).astype(np.float64)

    return draw


def _summed(gaps: DrawInstants) -> DrawInstants:
    total = 0.0

    def draw(n: int) -> Instants:
        nonlocal total
        drawn = gaps(n)
        drawn[:1] += total  # summed in order, so that the draws may be cut anywhere
        instants = np.cumsum(drawn)
        total = float(instants[-1]) if n else total
        return instants

    return draw


def _poisson(arrivals: Arrivals, generator: Generator) -> DrawInstants:  # noqa: ARG001 - every kind takes the same
    return _summed(generator.standard_exponential)


def _gamma(arrivals: Arrivals, generator: Generator) -> DrawInstants:
    # vLLM's own benchmark draws gamma(shape=burstiness, scale=1/(rate*burstiness)) gaps
    # (benchmarks/serve.py, get_request, 0.32); this is the same at rate 1, without its rescaling.
    return _summed(lambda n: generator.standard_gamma(arrivals.burstiness, n) / arrivals.burstiness)


def _constant(arrivals: Arrivals, generator: Generator) -> DrawInstants:  # noqa: ARG001 - every kind takes the same
    drawn = 0

    def draw(n: int) -> Instants:
        nonlocal drawn
        drawn += n
        return np.arange(drawn - n, drawn, dtype=np.float64)

    return draw


_KINDS = {"poisson": _poisson, "gamma": _gamma, "constant": _constant}
