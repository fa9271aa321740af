"""What to offer, from the flags of every command that offers load."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from knee.cli.app import log
from knee.core.errors import UsageError
from knee.core.units import parse_duration_ns
from knee.workload.spec import BURST_HELP, LENGTHS_HELP, STAGES_HELP

if TYPE_CHECKING:
    from knee.measure.target import Offer
    from knee.workload.spec import Workload

PromptOption = Annotated[str, typer.Option(help=f"Prompt tokens: {LENGTHS_HELP}.")]
OutputOption = Annotated[str, typer.Option(help=f"Output tokens: {LENGTHS_HELP}.")]
DurationOption = Annotated[str, typer.Option(help="The measured window, after the warm-up.")]
WarmupOption = Annotated[str, typer.Option(help="Requests due before this are sent and not judged.")]
DrainOption = Annotated[str, typer.Option(help="How long measured requests may take after the window.")]
SeedOption = Annotated[int, typer.Option(help="Seed of arrivals and lengths; prompts are always fresh.")]
BurstinessOption = Annotated[float, typer.Option(help="Shape of the gaps; 1 is Poisson, less is burstier.")]
ConstantOption = Annotated[bool, typer.Option("--constant", help="Equal gaps instead of random ones.")]
BurstOption = Annotated[str, typer.Option(help=f"Requests at once on top: {BURST_HELP}.")]
StagesOption = Annotated[str, typer.Option(help=f"Bend the rate over time: {STAGES_HELP}.")]
PrefixOption = Annotated[
    str, typer.Option(help="Share text: SHARE[:GROUPS], as in 0.5:10, of the mean prompt, in so many texts.")
]
TurnsOption = Annotated[
    str, typer.Option(help="Conversations of so many turns each: a length, as for --prompt.")
]
ThinkOption = Annotated[str, typer.Option(help="Mean pause between an answer and the next turn.")]
WorkloadOption = Annotated[
    Path | None, typer.Option(help="A saved workload, or a trace whose lengths are drawn; see knee workload.")
]
ReplayOption = Annotated[bool, typer.Option("--replay", help="Take the trace's own arrival times too.")]
SpeedOption = Annotated[float, typer.Option(help="With --replay and no --rate: times the trace's own rate.")]


class LoadFlags(msgspec.Struct, frozen=True, kw_only=True):
    """The flags that say what to offer, as typed."""

    rate: float | None = None
    max_concurrency: int | None = None
    prompt: str = "1000"
    output: str = "200"
    duration: str = "30s"
    warmup: str = "5s"
    drain: str = "60s"
    seed: int = 1
    burstiness: float = 1.0
    constant: bool = False
    burst: str = ""
    stages: str = ""
    shared_prefix: str = ""
    turns: str = ""
    think: str = "1s"
    workload: Path | None = None
    replay: bool = False
    speed: float = 1.0


def offer_from(flags: LoadFlags) -> "Offer":
    """The offer that the flags describe.

    Raises:
        UsageError: a flag cannot be understood, or not exactly one of rate and client count is given.
        InputError: the workload file cannot be read.
    """
    from knee.measure.target import Offer

    spec, own_rate = workload_from(flags)
    rate = flags.rate
    if flags.replay and rate is None and flags.max_concurrency is None and own_rate is not None:
        rate = own_rate * flags.speed
    elif flags.speed != 1.0:
        raise UsageError("--speed without --replay, or beside --rate", "it multiplies the trace's own rate")
    if (rate is None) == (flags.max_concurrency is None):
        raise UsageError("give either --rate or --max-concurrency", "an open loop takes --rate")
    if rate is not None and not 0 < rate < math.inf:
        raise UsageError(f"a rate of {rate:g} requests/s", "it is above 0 and may be below 1: 0.25")
    if flags.max_concurrency is not None and flags.max_concurrency < 1:
        raise UsageError(f"--max-concurrency {flags.max_concurrency}", "it is 1 or more")
    if flags.max_concurrency is not None and flags.turns:
        raise UsageError("conversations in a closed loop", "give --rate with --turns")
    window_ns = parse_duration_ns(flags.duration)
    if window_ns <= 0:
        raise UsageError(f"--duration {flags.duration}", "it is above 0")
    return Offer(
        workload=spec,
        rate=rate or 0.0,
        seed=flags.seed,
        warmup_ns=parse_duration_ns(flags.warmup),
        window_ns=window_ns,
        drain_ns=parse_duration_ns(flags.drain),
        max_concurrency=flags.max_concurrency,
    )


def workload_from(flags: LoadFlags) -> "tuple[Workload, float | None]":
    """The workload that the flags describe, and the own rate of its trace where there is one.

    Raises:
        UsageError: a flag cannot be understood.
        InputError: the workload file cannot be read.
    """
    from knee.workload.file import load_workload
    from knee.workload.parse import parse_arrivals, parse_lengths, parse_prefixes
    from knee.workload.schedule import schedule
    from knee.workload.spec import Conversations, Workload

    arrivals = parse_arrivals(flags.burstiness, flags.constant, flags.burst, flags.stages)
    own_rate = None
    if flags.workload is not None:
        spec, trace = load_workload(flags.workload, flags.replay, arrivals)
        for note in trace.notes if trace is not None else ():
            log(f"note: {note}")
        own_rate = trace.rate if trace is not None else None
    elif flags.replay:
        raise UsageError("--replay without a trace", "name it with --workload FILE")
    else:
        prompt, output = parse_lengths(flags.prompt), parse_lengths(flags.output)
        spec = Workload(prompt_tokens=prompt, output_tokens=output, arrivals=arrivals)
    if flags.shared_prefix:
        spec = msgspec.structs.replace(spec, prefixes=parse_prefixes(flags.shared_prefix, spec))
    if flags.turns:
        pause_s = parse_duration_ns(flags.think) / 1e9
        talk = Conversations(turns=parse_lengths(flags.turns), think_s=pause_s)
        spec = msgspec.structs.replace(spec, conversations=talk)
    schedule(spec, 1.0, flags.seed)  # raises where it cannot be, before any server is asked
    return spec, own_rate
