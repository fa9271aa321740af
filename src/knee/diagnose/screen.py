"""The live view as lines of text: engines, a little history, the verdict. Pure, so that tests can read it."""

from collections.abc import Mapping, Sequence

from knee.core.snapshot import EngineWindow, Histogram, Snapshot, Window
from knee.diagnose.signals import ITL, KV, RUNNING, TTFT, WAITING
from knee.diagnose.text import verdict_lines
from knee.diagnose.verdict import Diagnosis
from knee.metrics.window import Bracket, mean, quantile

BARS = " ▁▂▃▄▅▆▇█"
PLAIN_BARS = " .:-=+*#@"
MOST_ENGINES = 12
_TOP = {"KV": 1.0}
_HEAD = ("engine", "run", "wait", "KV", "TTFT p50/p95", "ITL mean/p99", "tokens/s", "preempt/s", "hits")


def screen_lines(
    window: Window,
    diagnosis: Diagnosis,
    history: Mapping[str, Sequence[float]],
    *,
    width: int = 100,
    plain: bool = False,
) -> list[str]:
    """One screen. `history` holds the last values of gauges, by name; `plain` does without Unicode blocks."""
    rows = [
        _HEAD,
        *(
            _row(label, engine, window.seconds)
            for label, engine in list(window.engines.items())[:MOST_ENGINES]
        ),
    ]
    columns = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    table = [
        "  ".join(
            cell.ljust(size) if i == 0 else cell.rjust(size)
            for i, (cell, size) in enumerate(zip(row, columns, strict=True))
        )
        for row in rows
    ]
    left_out = len(window.engines) - MOST_ENGINES
    if left_out > 0:
        table.append(f"and {left_out} more engines")
    bars = PLAIN_BARS if plain else BARS
    past = [
        f"{name:<8} {sparkline(values, max(10, width - 24), bars, _TOP.get(name))} {_short(values[-1], name)}"
        for name, values in history.items()
        if values
    ]
    return [*(line[:width] for line in table), "", *past, "", *verdict_lines(diagnosis)]


def sparkline(values: Sequence[float], width: int, bars: str = BARS, top: float | None = None) -> str:
    """The last `width` values as bars between 0 and `top`, or their highest."""
    shown = list(values)[-width:]
    top = top or max([*shown, 0.0])
    if top <= 0:
        return (bars[0] * len(shown)).rjust(width)
    last = len(bars) - 1
    return "".join(bars[max(0, min(last, round(value / top * last)))] for value in shown).rjust(width)


def note(history: dict[str, list[float]], snapshots: Sequence[Snapshot], keep: int) -> None:
    """Add one instant of all servers: requests add up over engines, KV usage is the fullest one's."""
    engines = [engine for snapshot in snapshots for engine in snapshot.engines.values()]
    for name, gauge in (("running", RUNNING), ("waiting", WAITING), ("KV", KV)):
        values = [engine.gauges[gauge] for engine in engines if gauge in engine.gauges]
        if values:
            line = history.setdefault(name, [])
            line.append(max(values) if name == "KV" else sum(values))
            del line[:-keep]


def _row(label: str, engine: EngineWindow, seconds: float) -> tuple[str, ...]:
    def last(name: str) -> float | None:
        stats = engine.gauges.get(name)
        return stats.last if stats else None

    def rate(name: str) -> str:
        value = engine.counters.get(name)
        return "?" if value is None or seconds <= 0 else f"{value / seconds:,.3g}"

    running, waiting, kv = last(RUNNING), last(WAITING), last(KV)
    hits, queries = engine.counters.get("prefix_cache_hits"), engine.counters.get("prefix_cache_queries")
    itl = engine.histograms.get(ITL)
    middle = mean(itl) if itl else None
    return (
        label.removeprefix("http://"),
        "?" if running is None else f"{running:g}",
        "?" if waiting is None else f"{waiting:g}",
        "?" if kv is None else f"{kv:.0%}",
        f"{_bracket(engine.histograms.get(TTFT), 0.5)}/{_bracket(engine.histograms.get(TTFT), 0.95)}",
        f"{'-' if middle is None else f'{middle * 1000:.3g}ms'}/{_bracket(itl, 0.99)}",
        rate("generation_tokens"),
        rate("num_preemptions"),
        "-" if hits is None or not queries else f"{hits / queries:.0%}",
    )


def _bracket(histogram: Histogram | None, q: float) -> str:
    found = quantile(histogram, q) if histogram else None
    return "-" if found is None else bracket_text(found)


def bracket_text(bracket: Bracket) -> str:
    """The bucket that holds a quantile, by its upper bound: `<250ms`."""
    if bracket.high is None:
        return f">{_duration(bracket.low)}"
    return f"<{_duration(bracket.high)}"


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:g}ms" if seconds < 1 else f"{seconds:g}s"


def _short(value: float, name: str) -> str:
    return f"{value:.0%}" if name == "KV" else f"{value:g}"
