"""`knee simulate`: one engine in virtual time, open loop at given rates or closed loop with given clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from knee.cli.app import JsonOption, show
from knee.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Group
    from rich.table import Table

    from knee.core.point import Summary
    from knee.measure.simulated import Simulated
    from knee.workload.spec import Arrivals, Lengths

T = TypeVar("T", int, float)

DOCUMENT_RATES = "10,15,18,19,20,21,24"
DOCUMENT_CLIENTS = "32,64,128,256,512"
HEADS = ("served", "TTFT p50", "TTFT p95", "ITL p99", "sent", "refused", "failed", "open", "queue")
LENGTHS = "a number, uniform:LOW-HIGH, or lognormal:MEAN:CV"


def simulate(
    *,
    rate: Annotated[str, typer.Option(help="Open loop at these requests/s, like 10,15,18.")] = "",
    clients: Annotated[str, typer.Option(help="Closed loop with these client counts, like 32,128.")] = "",
    prompt: Annotated[str, typer.Option(help=f"Prompt tokens: {LENGTHS}.")] = "1000",
    output: Annotated[str, typer.Option(help=f"Output tokens: {LENGTHS}.")] = "200",
    duration: Annotated[str, typer.Option(help="Length of each run, warm-up included.")] = "240s",
    warmup: Annotated[str, typer.Option(help="Leave out requests due before this.")] = "30s",
    drain: Annotated[str, typer.Option(help="How long to wait for measured requests after the run.")] = "60s",
    seed: Annotated[int, typer.Option(help="Seed of arrivals and lengths.")] = 5,
    burstiness: Annotated[
        float, typer.Option(help="Shape of the gaps; 1 is Poisson, less is burstier.")
    ] = 1.0,
    burst: Annotated[str, typer.Option(help="Requests at once on top, like 50/10s: 50 every 10 s.")] = "",
    step_ms: Annotated[float, typer.Option(help="Fixed part of a step, ms.")] = 7.0,
    seq_ms: Annotated[float, typer.Option(help="Per sequence in a step, ms.")] = 0.10,
    prefill_token_ms: Annotated[float, typer.Option(help="Per prefill token in a step, ms.")] = 0.018,
    context_token_ms: Annotated[float, typer.Option(help="Per token of context read in a step, ms.")] = 0.0,
    max_num_seqs: Annotated[int, typer.Option(help="Sequences that run at once.")] = 128,
    max_num_batched_tokens: Annotated[int, typer.Option(help="Token budget of a step.")] = 4096,
    max_model_len: Annotated[int, typer.Option(help="Longest prompt and output together.")] = 8192,
    num_gpu_blocks: Annotated[int, typer.Option(help="KV blocks, the null block included.")] = 65_537,
    block_size: Annotated[int, typer.Option(help="Tokens a KV block holds.")] = 16,
    long_prefill_token_threshold: Annotated[
        int, typer.Option(help="Most prefill tokens a request gets a step.")
    ] = 0,
    max_num_queued_reqs: Annotated[
        int | None, typer.Option(help="Refuse requests when this many are unfinished.")
    ] = None,
    max_num_queued_tokens: Annotated[
        int | None, typer.Option(help="Refuse requests when this many prompt tokens wait for prefill.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Simulate one engine in virtual time and show what requests see.

    Without --rate and --clients: both tables of the reference model (7 ms a step, 0.10 ms a sequence,
    0.018 ms a prefill token; 1,000 tokens in, 200 out).
    """
    from knee.core.units import NS_PER_MS, parse_duration_ns
    from knee.engine.config import EngineConfig, StepCost
    from knee.measure.simulated import simulated_point
    from knee.measure.target import Offer
    from knee.workload.spec import Workload

    config = EngineConfig(
        step_cost=StepCost(
            fixed_ns=round(step_ms * NS_PER_MS),
            per_seq_ns=round(seq_ms * NS_PER_MS),
            per_prefill_token_ns=round(prefill_token_ms * NS_PER_MS),
            per_context_token_ns=round(context_token_ms * NS_PER_MS),
        ),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        num_gpu_blocks=num_gpu_blocks,
        block_size=block_size,
        long_prefill_token_threshold=long_prefill_token_threshold,
        max_num_queued_reqs=max_num_queued_reqs,
        max_num_queued_tokens=max_num_queued_tokens,
    )
    workload = Workload(
        prompt_tokens=_lengths(prompt), output_tokens=_lengths(output), arrivals=_arrivals(burstiness, burst)
    )
    warmup_ns = parse_duration_ns(warmup)
    window_ns = parse_duration_ns(duration) - warmup_ns
    if window_ns <= 0:
        raise UsageError(f"a warm-up of {warmup} leaves nothing of {duration}", "a --duration counts it in")
    both = not rate and not clients
    rates = _numbers(rate or DOCUMENT_RATES * both, float, "--rate")
    counts = _numbers(clients or DOCUMENT_CLIENTS * both, int, "--clients")
    offers = [
        Offer(
            workload=workload,
            rate=each,
            seed=seed,
            warmup_ns=warmup_ns,
            window_ns=window_ns,
            drain_ns=parse_duration_ns(drain),
            max_concurrency=sending,
        )
        for each, sending in (*((each, None) for each in rates), *((0.0, each) for each in counts))
    ]
    results = [simulated_point(config, offer) for offer in offers]
    shown = {"simulated": True, "engine": config, "workload": workload, "results": results}
    show(shown, as_json, lambda: _tables(results))


def _numbers(text: str, kind: Callable[[str], T], flag: str) -> list[T]:
    try:
        numbers = [kind(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise UsageError(f"{flag} {text}", "numbers with commas between them, like 10,15,18") from None
    if any(not 0 < number < float("inf") for number in numbers):
        raise UsageError(f"{flag} {text}", "all of them above 0")
    return numbers


def _lengths(text: str) -> Lengths:
    from knee.workload.lengths import check_lengths
    from knee.workload.spec import Lengths

    kind, _, rest = text.partition(":")
    try:
        if kind == "uniform":
            low, high = (int(part) for part in rest.split("-"))
            lengths = Lengths(kind="uniform", low=low, high=high)
        elif kind == "lognormal":
            mean, cv = (float(part) for part in rest.split(":"))
            lengths = Lengths(kind="lognormal", mean=mean, cv=cv)
        else:
            lengths = Lengths(mean=float(text))
    except ValueError:
        raise UsageError(f"not a length in tokens: {text!r}", f"write {LENGTHS}") from None
    check_lengths(lengths)
    return lengths


def _arrivals(burstiness: float, burst: str) -> Arrivals:
    from knee.core.units import NS_PER_S, parse_duration_ns
    from knee.workload.spec import Arrivals

    kind: Literal["poisson", "gamma"] = "poisson" if burstiness == 1 else "gamma"
    if not burst:
        return Arrivals(kind=kind, burstiness=burstiness)
    size, _, period = burst.partition("/")
    if not size.isdecimal() or not period:
        raise UsageError(f"not a burst: {burst!r}", "write it like 50/10s: 50 at once every 10 s")
    every_s = parse_duration_ns(period) / NS_PER_S
    return Arrivals(kind=kind, burstiness=burstiness, burst_size=int(size), burst_every_s=every_s)


def _tables(results: list[Simulated]) -> Group:
    from rich.console import Group
    from rich.text import Text

    shown: list[Table | Text] = []
    for title, head, closed in (
        ("open loop: arrivals do not wait for the server", "req/s", False),
        ("closed loop: each client waits for its reply", "clients", True),
    ):
        chosen = [result for result in results if (result.point.max_concurrency is not None) == closed]
        if chosen:
            shown += [Text(f"\n{title}" if shown else title), _table(head, chosen)]
    if any(result.point.rejected for result in results):
        shown.append(Text("latencies of the requests that were admitted; --json has them for all, too"))
    return Group(*shown)


def _table(head: str, results: list[Simulated]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in (head, *HEADS):
        table.add_column(name, justify="right", no_wrap=True)
    for result in results:
        point = result.point
        queue = point.window.engines["0"].gauges["num_requests_waiting"].last if point.window else 0.0
        table.add_row(
            f"{point.rate:g}" if point.max_concurrency is None else str(point.max_concurrency),
            f"{point.served_rate:.2f}",
            *(_latency(result.admitted_ttft_ms, name) for name in ("p50", "p95")),
            _latency(result.admitted_itl_ms, "p99"),
            *(str(n) for n in (point.offered, point.rejected, point.failed, point.censored)),
            f"{queue:.0f}",
        )
    return table


def _latency(summary: Summary, name: str) -> str:
    from knee.core.units import NS_PER_MS, format_duration

    value: float | None = getattr(summary, name)
    if name in summary.unsupported:
        return "few"
    return "unbounded" if value is None else format_duration(value * NS_PER_MS)
