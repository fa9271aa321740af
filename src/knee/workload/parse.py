"""Workloads as people write them on a command line."""

from knee.core.errors import UsageError
from knee.core.units import NS_PER_S, parse_duration_ns
from knee.workload.lengths import check_lengths
from knee.workload.shapes import mean_of
from knee.workload.spec import (
    BURST_HELP,
    LENGTHS_HELP,
    STAGES_HELP,
    Arrivals,
    Lengths,
    Prefixes,
    Stage,
    Workload,
)


def parse_lengths(text: str) -> Lengths:
    """Token counts: `1000`, `uniform:100-400`, `lognormal:600:0.8`, `lognormal:600:0.8:4-8000`, `10,20,20`.

    Raises:
        UsageError: the text is none of these.
    """
    kind, _, rest = text.strip().partition(":")
    try:
        if kind == "uniform":
            low, high = _range(rest)
            lengths = Lengths(kind="uniform", low=low, high=high)
        elif kind == "lognormal":
            mean, cv, *cut = rest.split(":")
            low, high = _range(cut[0]) if cut else (1, 1_000_000)
            lengths = Lengths(kind="lognormal", mean=float(mean), cv=float(cv), low=low, high=high)
            if len(cut) > 1:
                raise ValueError  # noqa: TRY301 - one place says what is wrong
        elif "," in text:
            lengths = Lengths(kind="empirical", values=tuple(int(part) for part in text.split(",")))
        else:
            lengths = Lengths(mean=int(text))
    except ValueError:
        raise UsageError(f"not a length in tokens: {text!r}", f"write {LENGTHS_HELP}") from None
    check_lengths(lengths)
    return lengths


def parse_arrivals(
    burstiness: float = 1.0, constant: bool = False, burst: str = "", stages: str = ""
) -> Arrivals:
    """An arrival process from its flags; `burst` is like `50/10s`: 50 at once every 10 s.

    Raises:
        UsageError: burst or stages cannot be read, or constant gaps are to be bursty.
    """
    if constant and burstiness != 1.0:
        raise UsageError("constant gaps have no burstiness", "leave one of the two out")
    size, every_ns = 0, 0
    if burst:
        number, slash, period = burst.partition("/")
        if not slash or not number.strip().isdigit() or int(number) < 1:
            raise UsageError(f"not a burst: {burst!r}", f"write {BURST_HELP}")
        size, every_ns = int(number), parse_duration_ns(period)
    return Arrivals(
        kind="constant" if constant else ("poisson" if burstiness == 1.0 else "gamma"),
        burstiness=burstiness,
        burst_size=size,
        burst_every_s=every_ns / NS_PER_S,
        stages=parse_stages(stages) if stages else (),
    )


def parse_stages(text: str) -> tuple[Stage, ...]:
    """Stages like `30s:0.1-1,60s:1`: 30 s from a tenth of the rate to all of it, then 60 s of all of it.

    Raises:
        UsageError: the text is not stages.
    """
    stages = []
    for part in text.split(","):
        length, colon, shares = part.strip().partition(":")
        start, dash, end = shares.partition("-")
        try:
            first, last = float(start), float(end if dash else start)
        except ValueError:
            raise UsageError(f"not a stage: {part.strip()!r}", f"write {STAGES_HELP}") from None
        if not colon:
            raise UsageError(f"not a stage: {part.strip()!r}", f"write {STAGES_HELP}")
        stages.append(Stage(seconds=parse_duration_ns(length) / NS_PER_S, start=first, end=last))
    return tuple(stages)


def parse_prefixes(text: str, workload: Workload) -> Prefixes:
    """Shared text like `0.5:10`: half of the mean prompt of `workload`, one of ten texts.

    Raises:
        UsageError: the text is not that.
    """
    share, _, groups = text.partition(":")
    try:
        part, number = float(share), int(groups or "1")
    except ValueError:
        part, number = 0.0, 0
    if not 0 < part < 1 or number < 1:
        raise UsageError(f"not a shared prefix: {text!r}", "write SHARE[:GROUPS], as in 0.5:10")
    return Prefixes(tokens=max(1, round(part * mean_of(workload.prompt_tokens))), groups=number)


def _range(text: str) -> tuple[int, int]:
    low, high = text.split("-")
    return int(low), int(high)
