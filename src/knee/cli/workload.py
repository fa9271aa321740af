"""`knee workload`: what a trace is like, and a workload learned from a server or a trace."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from knee.cli.app import JsonOption, log, show
from knee.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from knee.workload.describe import Description, Spread
    from knee.workload.spec import Workload

BARS = " ▁▂▃▄▅▆▇█"

workload = typer.Typer(name="workload", help="What traffic is like: describe a trace, learn a workload.")


@workload.command("describe")
def describe_trace(
    file: Annotated[Path, typer.Argument(help="A trace or data set, in any known format.")],
    *,
    as_json: JsonOption = False,
) -> None:
    """Rates, burstiness, lengths and shared text of a trace.

    Reads Mooncake JSON lines, Azure and BurstGPT CSV, ShareGPT JSON, the prompt files of vllm, GuideLLM and
    AIPerf, run records, the gateway's access log, and lines of at_s, prompt_tokens, output_tokens.
    """
    from knee.workload.describe import describe
    from knee.workload.trace import read_trace

    found = describe(read_trace(file))
    show(found, as_json, lambda: "\n".join(_lines(found)))


@workload.command("learn")
def learn(
    source: Annotated[str, typer.Argument(help="A server's URL, a saved metrics page, or a trace.")],
    *,
    out: Annotated[Path | None, typer.Option(help="Write the workload here, for --workload.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a workload from the lengths that a server has counted, or from a trace."""
    from knee.core.run import write_atomically

    found = _learned(source)
    if out is not None:
        try:
            write_atomically(out, found)
        except OSError as error:
            raise InputError(f"cannot write {out}: {error.strerror}") from error
        log(f"wrote {out}")
    show(found, as_json, lambda: _summary(found))


def _learned(source: str) -> "Workload":
    from knee.metrics.fleet import add
    from knee.metrics.normalise import parse_page
    from knee.workload.file import load_workload
    from knee.workload.learn import learn_workload
    from knee.workload.spec import Arrivals

    path = Path(source)
    if path.exists():
        try:
            text = path.read_text(errors="replace")
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}") from error
        if "# TYPE vllm:" not in text and "\nvllm:" not in text:
            found, _ = load_workload(path, replay=False, arrivals=Arrivals())
            return found
    else:
        text = _page(source)
    engines = list(parse_page(text, 0, source).engines.values())
    names = ("request_prompt_tokens", "request_generation_tokens")
    counted = [[e.histograms[name] for e in engines if name in e.histograms] for name in names]
    if not all(counted):
        raise InputError(
            f"{source} counts no request lengths", "request_prompt_tokens is not among its metrics"
        )
    return learn_workload(*(add(each) for each in counted))


def _page(url: str) -> str:
    from knee.http1.client import fetch
    from knee.metrics.live import base_url

    answer = fetch(f"{base_url(url)}/metrics")
    if answer.status != 200:
        raise InputError(f"{answer.url} answers {answer.status}", "neither a file nor a server with metrics")
    return answer.body.decode("utf-8", "replace")


def _lines(found: "Description") -> list[str]:
    lines = [f"{found.name}: {found.requests:,} requests ({found.format})"]
    if found.rate is not None and found.span_s is not None:
        peaks = ", ".join(f"{rate:.3g} over {window}" for window, rate in found.peak_rates.items())
        lines.append(f"rate        {found.rate:.3g}/s on average for {found.span_s:,.0f} s; peaks {peaks}")
        lines.append(f"            {bars(found.rate_over_time)}")
        burstiness = "?" if found.burstiness is None else f"{found.burstiness:.3g}"
        spreads = ", ".join(f"{d:.3g} over {window}" for window, d in found.dispersion.items())
        lines.append(f"burstiness  {burstiness} (1 is Poisson); variance/mean of arrivals {spreads or '?'}")
    else:
        lines.append("rate        no arrival times")
    lines.append("tokens         mean    cv     low    p50    p90    p95    p99   high")
    lines += [_row("prompt", found.prompt_tokens), _row("output", found.output_tokens)]
    if found.length_correlation is not None:
        lines.append(f"correlation of prompt and output {found.length_correlation:+.2f}")
    if found.repeated_share is not None:
        lines.append(f"shared text {found.repeated_share:.0%} of prompt tokens repeat an earlier opening")
    return lines + [f"note: {note}" for note in found.notes]


def _row(name: str, s: "Spread") -> str:
    cells = "".join(f"{value:>7}" for value in (s.p50, s.p90, s.p95, s.p99, s.high))
    return f"  {name:<9}{s.mean:>8.0f}{s.cv:>6.2f}{s.low:>8}{cells}"


def bars(values: "Sequence[float]") -> str:
    """A line of bars, the tallest for the highest value."""
    top = max(values, default=0.0) or 1.0
    return "".join(BARS[max(int(value > 0), round(value / top * 8))] for value in values)


def _summary(found: "Workload") -> str:
    from knee.workload.shapes import mean_of

    pairs = f"; {len(found.pairs)} (prompt, output) pairs, drawn together" if found.pairs else ""
    means = [mean_of(lengths) for lengths in (found.prompt_tokens, found.output_tokens)]
    return f"{means[0]:.0f} tokens in, {means[1]:.0f} out on average{pairs}"
