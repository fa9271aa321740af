"""What a workload amounts to: mean lengths, and how much chance there is in a stretch of it."""

import msgspec
import numpy as np

from knee.stats.percentile import Floats
from knee.workload.schedule import schedule
from knee.workload.spec import Workload

_SAMPLE = 16_384
_SEED = 0x5EED
_OUTPUT_WEIGHT = 0.7


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Means per request, and the chance in their arrivals and lengths.

    `chance` is N times the squared coefficient of variation of the work that N arrivals bring: a stretch of N
    requests is like one at a rate that is off by sqrt(chance / N), relative. The longest of some 16,000
    requests has `longest_tokens`, prompt and output.
    """

    prompt_tokens: float
    output_tokens: float
    chance: float
    length_cv: float
    longest_tokens: int

    def requests_for(self, relative_error: float) -> float:
        """How many requests bring the error of a rate down to `relative_error` (standard deviation)."""
        return self.chance / relative_error**2


def profile(workload: Workload) -> Profile:
    """The profile of `workload`, from a long draw with a seed of its own.

    The variance of arrivals comes from counts in stretches of 64 requests, that of work from lengths; of a
    request's work 70 % is taken to go with its output, which matters only for how long points are made.
    """
    due, prompts, outputs = draw(workload, 1.0, _SEED, _SAMPLE)
    span = float(due[-1])
    counts = np.histogram(due, bins=_SAMPLE // 64, range=(0, span))[0]
    arrivals = float(counts.var(ddof=1) / counts.mean())
    work = _OUTPUT_WEIGHT * outputs / outputs.mean() + (1 - _OUTPUT_WEIGHT) * prompts / prompts.mean()
    length_cv = float(work.std())
    return Profile(
        prompt_tokens=float(prompts.mean()),
        output_tokens=float(outputs.mean()),
        chance=max(0.1, arrivals + length_cv**2),
        length_cv=length_cv,
        longest_tokens=int((prompts + outputs).max()),
    )


def draw(workload: Workload, rate: float, seed: int, count: int) -> tuple[Floats, Floats, Floats]:
    """The first `count` requests of a schedule: due instants in seconds, prompt and output tokens."""
    due, prompts, outputs = [], [], []
    have = 0
    for chunk in schedule(workload, rate, seed):
        due.append(chunk.due_ns)
        prompts.append(chunk.prompt_tokens)
        outputs.append(chunk.output_tokens)
        have += len(chunk)
        if have >= count:
            break
    return (
        np.concatenate(due)[:count] / 1e9,
        np.concatenate(prompts)[:count].astype(np.float64),
        np.concatenate(outputs)[:count].astype(np.float64),
    )
