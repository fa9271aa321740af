"""A server's log as a source: the line it writes every ten seconds, and the flags it started with.

The line holds gauges and two throughputs; the throughputs become counters again, so that a log gives the
same kind of window as a metrics page. What the line does not hold (queue time, latencies) is missing.
"""

import ast
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import pairwise

import msgspec

from knee.catalog.logs import pattern
from knee.core.snapshot import EngineSnapshot, Snapshot
from knee.core.units import NS_PER_S, s_to_ns

DEFAULT_INTERVAL_S = 10.0
"""VLLM_LOG_STATS_INTERVAL's default (vllm/envs.py)."""

MAX_LINES = 2_000_000
MAX_LINE_CHARS = 16 * 1024

_STAMP = re.compile(r"\b(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\b")
_NEEDLE = "Avg prompt throughput"
_LEAP_YEAR = 2024  # the lines carry no year; one that has every date


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """What a log tells: one snapshot per periodic line, and the start-up facts as vLLM's flags."""

    snapshots: tuple[Snapshot, ...]
    flags: dict[str, str]


class _Line(msgspec.Struct):
    at_s: float
    engine: str
    values: dict[str, float]
    preemptions: float | None


def read_log(lines: Iterable[str], source: str = "") -> Log:
    """The periodic lines of a log as snapshots, and the flags that its start-up lines state.

    `Preemptions` stands in a line only where there were some, and only from 0.11.1: in a log that never
    states it, it is missing, not zero.
    """
    periodic: list[_Line] = []
    flags: dict[str, str] = {}
    for number, line in enumerate(lines):
        if number >= MAX_LINES:
            break
        text = line[:MAX_LINE_CHARS]
        if _NEEDLE in text:
            found = _periodic(text, len(periodic))
            if found is not None:
                periodic.append(found)
        else:
            _note_flags(text, flags)
    return Log(snapshots=_snapshots(periodic, source), flags=flags)


def _periodic(text: str, index: int) -> _Line | None:
    found = pattern("periodic").search(text) or pattern("periodic_v0").search(text)
    if found is None:
        return None
    seen = found.groupdict()
    stamp = _STAMP.search(text)
    values = {
        "prompt_tps": float(seen["prompt_tps"]),
        "generation_tps": float(seen["generation_tps"]),
        "num_requests_running": float(seen["running"]),
        "num_requests_waiting": float(seen["waiting"]),
        "kv_cache_usage_perc": float(seen["kv_percent"]) / 100,
    }
    for name, key in (
        ("deferred", "num_requests_waiting_by_reason{deferred}"),
        ("swapped", "num_requests_swapped"),
    ):
        if seen.get(name) is not None:
            values[key] = float(seen[name])
    if seen.get("hit_percent") is not None:
        values["prefix_cache_hit_rate"] = float(seen["hit_percent"]) / 100
    preemptions = seen.get("preemptions")
    return _Line(
        at_s=_seconds(stamp) if stamp else index * DEFAULT_INTERVAL_S,
        engine=str(int(seen.get("engine") or 0)),
        values=values,
        preemptions=float(preemptions) if preemptions else None,
    )


def _seconds(stamp: re.Match[str]) -> float:
    month, day, hour, minute, second = (int(part) for part in stamp.groups())
    try:
        at = datetime(_LEAP_YEAR, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return 0.0
    return (at - datetime(_LEAP_YEAR, 1, 1, tzinfo=UTC)).total_seconds()


def _snapshots(periodic: list[_Line], source: str) -> tuple[Snapshot, ...]:
    result: list[Snapshot] = []
    for engine in dict.fromkeys(line.engine for line in periodic):
        own = [line for line in periodic if line.engine == engine]
        gaps = sorted(b.at_s - a.at_s for a, b in pairwise(own) if 0 < b.at_s - a.at_s <= 60)
        interval_s = gaps[len(gaps) // 2] if gaps else DEFAULT_INTERVAL_S
        states = any(line.preemptions is not None for line in own)
        counters = {"prompt_tokens": 0.0, "generation_tokens": 0.0} | (
            {"num_preemptions": 0.0} if states else {}
        )
        before_ns = s_to_ns(own[0].at_s - interval_s)
        result.append(
            Snapshot(at_ns=before_ns, source=source, engines={engine: EngineSnapshot(counters=counters)})
        )
        at_ns = before_ns
        for line in own:
            counters = dict(counters)
            counters["prompt_tokens"] += line.values["prompt_tps"] * interval_s
            counters["generation_tokens"] += line.values["generation_tps"] * interval_s
            if states:
                counters["num_preemptions"] += line.preemptions or 0.0
            gauges = {name: value for name, value in line.values.items() if not name.endswith("_tps")}
            # A clock that steps back (new year, another server's log behind) must not reorder lines.
            at_ns = max(at_ns + NS_PER_S // 1000, s_to_ns(line.at_s))
            seen = EngineSnapshot(gauges=gauges, counters=counters)
            result.append(Snapshot(at_ns=at_ns, source=source, engines={engine: seen}))
    return tuple(result)


def _note_flags(text: str, flags: dict[str, str]) -> None:
    """Note what a start-up line states; of a log with several starts, the last one counts."""
    if "non-default args: " in text and (found := pattern("non_default_args").search(text)):
        try:
            stated = ast.literal_eval(found["d"])
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            stated = dict(re.findall(r"'(max_\w+)': (\d+)", found["d"]))
        flags.update({str(key): str(value) for key, value in stated.items() if _plain(value)})
    elif "KV cache size" in text and (found := pattern("kv_tokens").search(text)):
        flags["kv_cache_size_tokens"] = found["tokens"].replace(",", "")
    elif "Chunked prefill is enabled" in text and (found := pattern("chunked_prefill").search(text)):
        flags["max_num_batched_tokens"] = found["n"]
    if "Maximum concurrency for" in text and (found := pattern("max_concurrency").search(text)):
        flags["max_model_len"] = found["max_model_len"].replace(",", "")
        flags["kv_cache_max_concurrency"] = found["x"]


def _plain(value: object) -> bool:
    return isinstance(value, (bool, int, float, str)) and len(str(value)) < 200
