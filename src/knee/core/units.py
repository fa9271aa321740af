"""Durations and numbers as people write them; integer nanoseconds inside."""

import re

from knee.core.errors import UsageError

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

_UNIT_NS = {
    "ns": 1,
    "us": NS_PER_US,
    "ms": NS_PER_MS,
    "s": NS_PER_S,
    "m": 60 * NS_PER_S,
    "min": 60 * NS_PER_S,
    "h": 3600 * NS_PER_S,
}
_SHOWN = (
    ("h", 7200 * NS_PER_S),
    ("min", 120 * NS_PER_S),
    ("s", NS_PER_S),
    ("ms", NS_PER_MS),
    ("us", NS_PER_US),
)
"""Units and the duration from which each is the one a person would choose."""

_DURATION = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*(ns|us|µs|ms|s|m|min|h)?\s*")


def parse_duration_ns(text: str, default_unit: str | None = "s") -> int:
    """Nanoseconds of a duration such as `60ms`, `1.5s`, `20m` or `1h`.

    A bare number takes `default_unit`; with `default_unit=None` it is an error.

    Raises:
        UsageError: the text is not a duration.
    """
    found = _DURATION.fullmatch(text)
    unit = (found.group(2) or default_unit) if found else None
    if found is None or unit is None:
        raise UsageError(f"not a duration: {text!r}", "write a number with a unit: 60ms, 1.5s, 20m")
    unit = {"µs": "us"}.get(unit, unit)
    return round(float(found.group(1)) * _UNIT_NS[unit])


def format_duration(ns: float) -> str:
    """A duration with three significant figures in the unit a person would choose."""
    if ns != ns or ns in (float("inf"), float("-inf")):  # noqa: PLR0124 - NaN is what differs from itself
        return "∞" if ns == float("inf") else "?"
    for unit, size in _SHOWN:
        if abs(ns) >= size:
            return f"{float(f'{ns / _UNIT_NS[unit]:.3g}'):.10g} {unit}"
    return f"{ns:.0f} ns"


def ns_to_ms(ns: float) -> float:
    """Milliseconds of `ns` nanoseconds."""
    return ns / NS_PER_MS


def ns_to_s(ns: float) -> float:
    """Seconds of `ns` nanoseconds."""
    return ns / NS_PER_S


def s_to_ns(seconds: float) -> int:
    """Nanoseconds, rounded, of `seconds`."""
    return round(seconds * NS_PER_S)
