"""`knee simulate`: one engine in virtual time, open loop at given rates or closed loop with given clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from knee.cli import engine_options as engine
from knee.cli import load_options as load
from knee.cli.app import JsonOption, show
from knee.core.errors import UsageError
from knee.core.units import parse_duration_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Group
    from rich.table import Table

    from knee.core.point import Summary
    from knee.engine.config import EngineConfig
    from knee.measure.model.calibrate import Calibration
    from knee.measure.model.like import Prediction
    from knee.measure.simulated import Simulated
    from knee.measure.target import Offer
    from knee.workload.spec import Workload

T = TypeVar("T", int, float)

DOCUMENT_RATES = "10,15,18,19,20,21,24"
DOCUMENT_CLIENTS = "32,64,128,256,512"
HEADS = ("served", "TTFT p50", "TTFT p95", "ITL p99", "sent", "refused", "failed", "open", "queue")
LOAD_FLAGS = (
    *("prompt", "output", "seed", "burstiness", "constant", "burst", "stages"),
    *("shared_prefix", "turns", "think", "workload"),
)


def simulate(
    context: typer.Context,
    *,
    like: engine.Like = None,
    slo: Annotated[str, typer.Option(help='With --like: predict the knee, as in "ttft p95 < 1s".')] = "",
    rate: Annotated[str, typer.Option(help="Open loop at these requests/s, like 10,15,18.")] = "",
    clients: Annotated[str, typer.Option(help="Closed loop with these client counts, like 32,128.")] = "",
    prompt: load.PromptOption = "1000",
    output: load.OutputOption = "200",
    duration: Annotated[str, typer.Option(help="Length of each run, warm-up included.")] = "240s",
    warmup: Annotated[str, typer.Option(help="Leave out requests due before this.")] = "30s",
    drain: load.DrainOption = "60s",
    seed: load.SeedOption = 5,
    burstiness: load.BurstinessOption = 1.0,
    constant: load.ConstantOption = False,
    burst: load.BurstOption = "",
    stages: load.StagesOption = "",
    shared_prefix: load.PrefixOption = "",
    turns: load.TurnsOption = "",
    think: load.ThinkOption = "1s",
    workload: load.WorkloadOption = None,
    step_ms: engine.StepMs = 7.0,
    seq_ms: engine.SeqMs = 0.10,
    prefill_token_ms: engine.PrefillTokenMs = 0.018,
    context_token_ms: engine.ContextTokenMs = 0.0,
    prefill_step_ms: engine.PrefillStepMs = 0.0,
    max_num_seqs: engine.MaxNumSeqs = 128,
    max_num_batched_tokens: engine.MaxNumBatchedTokens = 4096,
    max_model_len: engine.MaxModelLen = 8192,
    num_gpu_blocks: engine.NumGpuBlocks = 65_537,
    block_size: engine.BlockSize = 16,
    enable_prefix_caching: engine.PrefixCaching = False,
    long_prefill_token_threshold: engine.LongPrefill = 0,
    watermark: engine.Watermark = 0.0,
    max_num_queued_reqs: engine.MaxQueuedReqs = None,
    max_num_queued_tokens: engine.MaxQueuedTokens = None,
    vllm_version: engine.VllmVersion = "",
    api_server_count: engine.ApiServers = 1,
    front_request_ms: engine.FrontRequestMs = 0.0,
    front_token_ms: engine.FrontTokenMs = 0.0,
    as_json: JsonOption = False,
) -> None:
    """Simulate one engine in virtual time and show what requests see.

    Without --rate and --clients: both tables of the reference model (7 ms a step, 0.10 ms a sequence,
    0.018 ms a prefill token; 1,000 tokens in, 200 out).
    """
    flags = locals()
    if slo and like is None:
        raise UsageError("--slo without --like", "knee sweep finds the knee of a server")
    config, spec, found = _engine_and_load(context, flags)
    loops = _loops(rate, clients, config, spec, calibrated=found is not None)
    if turns and any(sending is not None for _, sending in loops):
        raise UsageError("conversations in a closed loop", "give --rate with --turns")
    shown = _run(config, spec, _offers(flags, spec, loops), found, slo)
    show(shown, as_json, lambda: _tables(shown["results"], shown.get("prediction")))


def _engine_and_load(
    context: typer.Context, flags: dict[str, Any]
) -> tuple[EngineConfig, Workload, Calibration | None]:
    """The engine and its load, as the flags say, or but for those that were typed as the calibration says."""
    from knee.engine.rules import at_version
    from knee.measure.model.like import engine_like, load_calibration

    config = engine.engine_from(flags).checked()
    if flags["vllm_version"]:
        config = at_version(config, flags["vllm_version"])
    spec, _ = load.workload_from(load.LoadFlags(**{name: flags[name] for name in LOAD_FLAGS}))
    if flags["like"] is None:
        return config, spec, None
    found = load_calibration(flags["like"])
    given = {name for name in flags if _given(context, name)}
    return engine_like(found, config, given), spec if given & set(LOAD_FLAGS) else found.workload, found


def _loops(
    rate: str, clients: str, config: EngineConfig, spec: Workload, *, calibrated: bool
) -> list[tuple[float, int | None]]:
    """Rates of open loops, and after them the clients of closed ones, whose rate is 0.

    Where none is given: those of the reference document, or rates up to what a calibrated engine can do.
    """
    from knee.measure.model.like import capacity, rates_below

    both = not rate and not clients and not calibrated
    rates = _numbers(rate or DOCUMENT_RATES * both, float, "--rate")
    if calibrated and not rates and not clients:
        rates = rates_below(capacity(config, spec))
    counts = _numbers(clients or DOCUMENT_CLIENTS * both, int, "--clients")
    return [*((each, None) for each in rates), *((0.0, each) for each in counts)]


def _offers(flags: dict[str, Any], spec: Workload, loops: Sequence[tuple[float, int | None]]) -> list[Offer]:
    from knee.measure.target import Offer

    warmup_ns = parse_duration_ns(flags["warmup"])
    window_ns = parse_duration_ns(flags["duration"]) - warmup_ns
    if window_ns <= 0:
        what = f"a warm-up of {flags['warmup']} leaves nothing of {flags['duration']}"
        raise UsageError(what, "a --duration counts it in")
    return [
        Offer(
            workload=spec,
            rate=rate,
            seed=flags["seed"],
            warmup_ns=warmup_ns,
            window_ns=window_ns,
            drain_ns=parse_duration_ns(flags["drain"]),
            max_concurrency=clients,
        )
        for rate, clients in loops
    ]


def _run(
    config: EngineConfig, spec: Workload, offers: Sequence[Offer], found: Calibration | None, slo: str
) -> dict[str, Any]:
    """What became of the offers, and the knee where one is asked for."""
    from knee.core.slo import parse_slo
    from knee.measure.model.like import predict_knee
    from knee.measure.simulated import simulated_point

    extra_ms = found.extra_ttft_ms if found else 0.0
    results = [simulated_point(config, offer, extra_ms) for offer in offers]
    shown: dict[str, Any] = {"simulated": True, "engine": config, "workload": spec, "results": results}
    if found is not None and slo:
        shown["prediction"] = predict_knee(found, config, spec, parse_slo(slo))
    return shown


def _given(context: typer.Context, name: str) -> bool:
    """Whether the flag was typed, rather than left at its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _numbers(text: str, kind: Callable[[str], T], flag: str) -> list[T]:
    try:
        numbers = [kind(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise UsageError(f"{flag} {text}", "numbers with commas between them, like 10,15,18") from None
    if any(not 0 < number < float("inf") for number in numbers):
        raise UsageError(f"{flag} {text}", "all of them above 0")
    return numbers


def _tables(results: list[Simulated], prediction: Prediction | None) -> Group:
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
    if prediction is not None:
        shown.append(Text(_knee_line(prediction)))
    return Group(*shown)


def _knee_line(found: Prediction) -> str:
    line = f"\nknee for {found.slo}: {found.knee:.4g} req/s, 95 % from {found.low:.4g} to {found.high:.4g}"
    return line + (f"\nextrapolated: {found.extrapolated}" if found.extrapolated else "")


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
