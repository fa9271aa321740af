"""Whether the sampling defaults moved, also where a seed does not draw the same tokens in both versions.

Where it does, equal answers settle it. Where it does not, two things are left: default sampling may equal
plain sampling at temperature 1 within each server, token by token; and how likely the sampled tokens are, on
average, moves with temperature and with every cut of the distribution.
"""

import math
from statistics import fmean, stdev

import msgspec

from knee.stats.distributions import student_quantile
from knee.upgrade.recording import Probe, Recording

CONFIDENCE = 0.95
SAME_NATS = 0.1
"""A shift whose whole interval is smaller is none. Measured on a tiny Llama: 0.02 from vLLM 0.27 to 0.32
at one temperature, 0.21 from temperature 0.3 to 0.6."""

_FEWEST = 4


class Likelihood(msgspec.Struct, frozen=True, kw_only=True):
    """How much likelier the sampled tokens became, in nats a token: mean over answers, and its interval."""

    shift: float
    low: float
    high: float
    answers: int


def is_plain(recording: Recording) -> bool | None:
    """Whether default sampling says the same as temperature 1 with the same seed, in every case.

    None where that is neither so in all cases nor in fewer than half of them, or was not asked.
    """
    plain = {probe.case: probe.runs[0] for probe in recording.probes if probe.mode == "seeded"}
    pairs = [
        (probe.runs[0], plain[probe.case])
        for probe in recording.probes
        if probe.mode == "default" and probe.case in plain
    ]
    told = [(one, other) for one, other in pairs if not (one.error or other.error)]
    equal = sum(one.text == other.text for one, other in told)
    if not told or len(told) / 2 <= equal < len(told):
        return None
    return equal == len(told)


def likelihood_shift(pairs: list[tuple[Probe, Probe]]) -> Likelihood | None:
    """The shift from the first recording to the second, by a paired t interval; None with too few answers."""
    shifts = [
        fmean(after.runs[0].logprobs) - fmean(before.runs[0].logprobs)
        for before, after in pairs
        if before.runs[0].logprobs and after.runs[0].logprobs
    ]
    if len(shifts) < _FEWEST:
        return None
    centre = fmean(shifts)
    quantile = student_quantile((1 + CONFIDENCE) / 2, len(shifts) - 1)
    half = quantile * stdev(shifts) / math.sqrt(len(shifts))
    return Likelihood(shift=centre, low=centre - half, high=centre + half, answers=len(shifts))
