"""`knee diagnose`: which limit binds, on what evidence, and the one flag to move."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from knee.cli.app import JsonOption, log, show
from knee.cli.target_options import KeyOption
from knee.core.errors import EXIT_NEGATIVE, EXIT_OK, NoAnswer, UsageError

if TYPE_CHECKING:
    from knee.core.snapshot import Window
    from knee.diagnose.facts import Facts


def diagnose(  # noqa: PLR0917 - the options of a command
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            help="URLs of servers, /metrics pages, directories of pages, a server's log, or a run."
        ),
    ] = None,
    for_: Annotated[str, typer.Option("--for", help="How long to sample URLs.")] = "30s",
    every: Annotated[str, typer.Option(help="How often to sample URLs.")] = "500ms",
    flag: Annotated[
        list[str] | None, typer.Option(help="A flag of the server as NAME=VALUE, e.g. max_num_seqs=256.")
    ] = None,
    slo: Annotated[str, typer.Option(help='The SLO that matters, e.g. "ttft p95 < 1s".')] = "",
    prometheus: Annotated[
        str, typer.Option(help="Read from this Prometheus server instead of SOURCES.")
    ] = "",
    selector: Annotated[str, typer.Option(help="Which series there, e.g. 'job=\"vllm\"'.")] = "",
    since: Annotated[str, typer.Option(help="How far back to read there.")] = "1h",
    api_key_file: KeyOption = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show all evidence, moves and findings.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Say which limit binds, with evidence, and the one flag that moves it.

    Exit code 1: a limit binds; 0: nothing on the server does; 5: the values do not decide.
    """
    from msgspec.structs import replace

    from knee.core.slo import parse_slo
    from knee.diagnose.diagnose import diagnose as run
    from knee.diagnose.text import explain_lines, verdict_lines

    if bool(sources) == bool(prometheus):
        raise UsageError(
            "nothing to diagnose" if not sources else "--prometheus and other sources do not go together",
            "give a URL, /metrics pages, a log or a run directory, or --prometheus with --selector",
        )
    objectives = parse_slo(slo) if slo else None
    flags = parse_flags(flag or [])
    if prometheus:
        window, facts = _query(prometheus, selector, since, api_key_file)
    else:
        window, facts = _read(sources or [], for_, every, api_key_file)
    known = replace(facts, flags={**facts.flags, **flags}, slo=objectives or facts.slo)
    result = run(window, known)
    lines = explain_lines(result) if explain else verdict_lines(result)
    show(result, as_json, lambda: "\n".join(lines))
    return {"bound": EXIT_NEGATIVE, "not bound": EXIT_OK, "cannot tell": NoAnswer.exit_code}[result.answer]


def _read(sources: list[str], for_: str, every: str, api_key_file: Path | None) -> "tuple[Window, Facts]":
    from knee.diagnose.facts import Facts
    from knee.diagnose.runs import is_run, read_run
    from knee.metrics.files import read_files
    from knee.metrics.window import window

    urls = [source for source in sources if "://" in source]
    if urls and len(urls) < len(sources):
        raise UsageError("URLs and files do not go together", "diagnose one or the other")
    if urls:
        return _sample(urls, for_, every, api_key_file)
    paths = [Path(source) for source in sources]
    if len(paths) == 1 and is_run(paths[0]):
        return read_run(paths[0])
    read = read_files(paths)
    return window(read.snapshots), Facts(flags=read.flags)


def _sample(urls: list[str], for_: str, every: str, api_key_file: Path | None) -> "tuple[Window, Facts]":
    from knee.core.clock import RealClock
    from knee.core.units import NS_PER_S, format_duration, parse_duration_ns
    from knee.diagnose.facts import Facts
    from knee.metrics.live import sample
    from knee.metrics.window import window

    for_ns, every_ns = parse_duration_ns(for_), parse_duration_ns(every)
    if every_ns < NS_PER_S // 20 or for_ns < every_ns:
        raise UsageError(
            f"cannot sample every {every} for {for_}", "sample at least every 50ms, at least twice"
        )
    log(f"sampling /metrics of {len(urls)} for {format_duration(for_ns)}")
    seen = sample(urls, for_ns / NS_PER_S, every_ns / NS_PER_S, RealClock(), headers=bearer(api_key_file))
    if seen.missed:
        log(f"{seen.missed} scrapes failed on the way")
    every_flag = [about.flags for about in seen.about.values()]
    alike = {
        name: value for name, value in every_flag[0].items() if all(f.get(name) == value for f in every_flag)
    }
    return window(seen.snapshots), Facts(flags=alike, dead=any(about.dead for about in seen.about.values()))


def _query(url: str, selector: str, since: str, api_key_file: Path | None) -> "tuple[Window, Facts]":
    from knee.core.clock import RealClock
    from knee.core.units import NS_PER_S, parse_duration_ns
    from knee.diagnose.facts import Facts
    from knee.metrics.prometheus import query_range
    from knee.metrics.window import window

    since_ns = parse_duration_ns(since)
    if since_ns < NS_PER_S:
        raise UsageError(f"cannot look back {since}", "write at least a second, like 1h")
    headers = bearer(api_key_file)
    return window(query_range(url, selector, since_ns / NS_PER_S, RealClock(), headers=headers)), Facts()


def bearer(api_key_file: Path | None) -> dict[str, str]:
    """The header that carries the key, where there is one."""
    from knee.measure.client.secret import read_key

    key = read_key(api_key_file)
    return {"authorization": f"Bearer {key.reveal()}"} if key else {}


def parse_flags(pairs: list[str]) -> dict[str, str]:
    """The flags that `NAME=VALUE` pairs state, in underscores.

    Raises:
        UsageError: a pair is none.
    """
    flags = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"not a flag: {pair!r}", "write it like max_num_seqs=256")
        flags[name.strip().lstrip("-").replace("-", "_")] = value.strip()
    return flags
