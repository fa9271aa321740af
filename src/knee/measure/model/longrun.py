"""The long-run knee of a model: the answer that short windows of the server are corrected towards."""

import math
from collections.abc import Callable, Sequence

import msgspec

from knee.core.slo import Slo
from knee.core.units import s_to_ns
from knee.measure.model.profile import draw
from knee.measure.model.replay import Model, replay
from knee.measure.samples import Stretch, allowed_share, violations
from knee.measure.target import Offer
from knee.stats.batches import Share, batch_share
from knee.workload.spec import Workload

_SEED = 0x10_06
_WARMUP = 0.06
_MEAN_OVER = 1 << 20
_EVALUATIONS = 14
_TYPICAL_SLOPE = 40.0
_STEEPEST = 400.0
_STRIDE = 0.12
_NEAR_ENOUGH = 0.35
_FLATTEST = 0.3

_HIGHEST, _LOWEST = math.log(8), -math.log(256)
"""Around the guess. Beyond that the model has nothing to do with the server, and a replay at an absurdly high
rate would not end. A guess is of the capacity, and single gaps can break far below it.
"""

_TOLD = 13.0
"""Log odds that a share of one in half a million has: beyond it nothing was seen, and there is no slope."""

_LONGER = 4
_TOO_SHORT = 0.02
"""What a first run may be off by, relatively: it begins idle, and few crowds make its p99. (Server 52 of
`bench/_drawn.py`, p99 TTFT < 223 ms near its capacity: 12,000 requests put its knee 2.1 % too high, 48,000
1.1 %, 192,000 0.1 % too low; each run by itself claims 0.2 %.)
"""

Shares = Callable[[float], tuple[Share, ...]]
"""The long-run share of violations of every objective at a rate."""


class LongRun(msgspec.Struct, frozen=True, kw_only=True):
    """Where each objective alone would break, in requests/s, with relative errors: the knee is the lowest.

    A slope is the rise of the log odds of a violation per unit of log rate.
    """

    crossings: tuple[float, ...]
    errors: tuple[float, ...]
    slopes: tuple[float, ...]

    @property
    def binding(self) -> int:
        """The number of the objective that breaks first."""
        return self.crossings.index(self.knee)

    @property
    def knee(self) -> float:
        """In requests/s."""
        return min(self.crossings)

    @property
    def error(self) -> float:
        """Relative error of the knee."""
        return self.errors[self.binding]


def long_run_shares(model: Model, workload: Workload, slo: Slo, requests: int, seed: int = _SEED) -> Shares:
    """Shares of violations on the model over `requests` requests, always the same ones.

    The rate is that of the work which this schedule really brings: its arrivals and lengths, which differ by
    chance from what the workload says, are known, so the rate is corrected for them (a control variate).
    """
    excess = _excess_work(model, workload, requests, seed)

    def shares(rate: float) -> tuple[Share, ...]:
        nominal = rate / excess
        offer = Offer(
            workload=workload,
            rate=nominal,
            seed=seed,
            warmup_ns=s_to_ns(requests * _WARMUP / nominal),
            window_ns=s_to_ns(requests * (1 - _WARMUP) / nominal),
            drain_ns=s_to_ns(max((o.bound for o in slo.objectives if o.quantile), default=0) / 1000 + 1),
        )
        observed = replay(model, offer, 1.0)
        stretch = Stretch(
            start_ns=offer.warmup_ns,
            end_ns=offer.warmup_ns + offer.window_ns,
            running_at_ns=observed.end_of_load_ns,
        )
        return tuple(
            batch_share(violations(observed, objective, slo, stretch), stretch.seconds)
            for objective in slo.objectives
        )

    return shares


def _excess_work(model: Model, workload: Workload, requests: int, seed: int) -> float:
    """Work that the schedule's first `requests` requests bring a second at rate 1, over what is expected."""
    if workload.arrivals.burst_size:
        return 1.0  # bursts come on top of the rate, and nothing is left to chance in them
    due, prompts, outputs = draw(workload, 1.0, seed, requests)
    _, all_prompts, all_outputs = draw(workload, 1.0, seed + 1, _MEAN_OVER)
    cost = model.config.step_cost
    token = cost.per_seq_ns + cost.fixed_ns / model.config.max_num_seqs
    brought = cost.per_prefill_token_ns * prompts.mean() + token * outputs.mean()
    expected = cost.per_prefill_token_ns * all_prompts.mean() + token * all_outputs.mean()
    return float(requests / due[-1] * brought / expected)


def long_run_knee(shares: Shares, slo: Slo, guess: float, slopes: Sequence[float] = ()) -> LongRun:
    """The rate at which the first objective reaches its allowed share in the long run.

    A safeguarded secant on the log odds over the log of the rate, beginning at `guess` with `slopes`
    where they are known; each evaluation is a whole long run, so it stops as soon as the last one is so close
    that the slope tells the rest. A slope that nobody has seen tells nothing, neither of the knee nor of its
    error: without `slopes` there are two runs at least, however close the first one came.

    Raises:
        ValueError: no such rate was found near `guess`.
    """
    allowed = [logit(allowed_share(objective)) for objective in slo.objectives]
    at, found = math.log(guess), shares(guess)
    seen = _odds(found)
    low, high, stride = -math.inf, math.inf, _STRIDE
    measured = set(range(len(slopes)))
    slopes = list(slopes) or [_TYPICAL_SLOPE] * len(allowed)
    for _ in range(_EVALUATIONS):
        number = max(range(len(allowed)), key=lambda i: seen[i] - allowed[i])
        missing = allowed[number] - seen[number]
        step = missing / slopes[number]
        close = {i for i, slope in enumerate(slopes) if abs(allowed[i] - seen[i]) < _STRIDE * slope}
        if close | {number} <= measured:
            if abs(missing) < _NEAR_ENOUGH and abs(step) < _STRIDE / 3:
                return _long_run(at, found, slopes, allowed)
        else:
            step = math.copysign(max(abs(step), _STRIDE / 4), step)
        low, high = (at, high) if missing > 0 else (low, at)
        if low == -math.inf or high == math.inf:  # not between two yet: go, and ever faster
            step = math.copysign(min(max(abs(step), stride / 4), stride), step)
            stride *= 1.7
        if not low < at + step < high:
            step = (low + high) / 2 - at
        before, was = seen, at
        at += step
        if not _LOWEST < at - math.log(guess) < _HIGHEST:
            break
        found = shares(math.exp(at))
        seen = _odds(found)
        for i in range(len(allowed)):
            if abs(seen[i]) < _TOLD and abs(before[i]) < _TOLD:
                slopes[i] = min(_STEEPEST, max(_FLATTEST, (seen[i] - before[i]) / (at - was)))
                measured.add(i)
    raise ValueError(f"no knee near {guess:g}")


def sharpen(
    known: LongRun, shares_of: Callable[[int], Shares], slo: Slo, *, first: int, most: int, error: float
) -> LongRun:
    """The same knee from ever longer runs, of up to `most` requests, each begun where the last one ended.

    A run's own error tells nothing of what the run is too short for. So they go on until one moves the knee
    by no more than a relative `error`; what the last one moved is part of the errors.
    """
    found, moved, requests = known, _TOO_SHORT, first
    while max(found.error, moved) > error and requests < most:
        requests = min(most, _LONGER * requests)
        try:
            longer = long_run_knee(shares_of(requests), slo, found.knee, found.slopes)
        except ValueError:  # a longer run of a queue that hardly forgets may lie too far from the shorter one
            break
        moved = abs(math.log(longer.knee / found.knee))
        found = longer
    return msgspec.structs.replace(found, errors=tuple(math.hypot(one, moved / 2) for one in found.errors))


def _long_run(
    at: float, found: Sequence[Share], slopes: Sequence[float], allowed: Sequence[float]
) -> LongRun:
    """What shares seen close to the knee say of where each objective breaks."""
    odds = _odds(found)
    steps = [(a - o) / slope for a, o, slope in zip(allowed, odds, slopes, strict=True)]
    told = [max(1.0, one.trials) * expit(o) * (1 - expit(o)) for one, o in zip(found, odds, strict=True)]
    return LongRun(
        crossings=tuple(math.exp(at + step) for step in steps),
        errors=tuple(1 / math.sqrt(most) / slope for most, slope in zip(told, slopes, strict=True)),
        slopes=tuple(slopes),
    )


def _odds(shares: Sequence[Share]) -> list[float]:
    return [logit(share.value if share.samples else 0.0) for share in shares]


def expit(odds: float) -> float:
    """The share of log odds."""
    return 1 / (1 + math.exp(-odds))


def logit(share: float) -> float:
    """Log odds of a share, kept finite."""
    share = min(1 - 1e-6, max(1e-6, share))
    return math.log(share / (1 - share))
