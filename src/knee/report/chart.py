"""A chart in plain characters: latency against rate, for terminals, logs and CI pages alike."""

import math
from collections.abc import Sequence

import msgspec

MARKS = "o+x*#@"
UNBOUNDED = "^"


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One curve: points (x, y), y None where it is unbounded (drawn at the top edge)."""

    name: str
    points: tuple[tuple[float, float | None], ...]


def chart(
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    bound: float | None = None,
    knee: tuple[float, float] | None = None,
    width: int = 64,
    height: int = 14,
) -> str:
    """The curves on a logarithmic y axis, each with its mark, the bound as a dashed line.

    `knee` is an interval of the x axis, drawn on it as `[===]`. `width` and `height` are of the plotting
    area, in characters. Points with y <= 0 are drawn at the bottom edge. Without a finite point there is
    nothing to scale by, and the chart says so.
    """
    finite = [y for one in series for _, y in one.points if y is not None and y > 0]
    every_x = [x for one in series for x, _ in one.points] + list(knee or ())
    if not finite:
        return f"(no finite {y_label} to draw)"
    low, high = _log_range(finite + ([bound] if bound else []))
    left, right = min(every_x), max(every_x)
    grid = [[" "] * width for _ in range(height)]
    if bound:
        row = _row(bound, low, high, height)
        grid[row] = ["-" if column % 2 == 0 else " " for column in range(width)]
    for one, mark in zip(series, MARKS, strict=False):
        for x, y in one.points:
            column = _column(x, (left, right), width)
            if y is None:
                grid[0][column] = UNBOUNDED
            else:
                grid[_row(y, low, high, height)][column] = mark
    return "\n".join(
        [
            y_label,
            *_with_axis(grid, low, high),
            f"{'':8} +{_axis((left, right), knee, width)}",
            *_foot(series, (left, right), x_label, width, bound=bound, knee=knee is not None),
        ]
    )


def _column(x: float, ends_x: tuple[float, float], width: int) -> int:
    """The column of a value, 0 at the left."""
    left, right = ends_x
    return round((x - left) / (right - left) * (width - 1)) if right > left else width // 2


def _axis(ends_x: tuple[float, float], knee: tuple[float, float] | None, width: int) -> str:
    """The x axis, with the knee on it; an interval too narrow for both brackets is a `#`."""
    if knee is None:
        return "-" * width
    first, last = (_column(end, ends_x, width) for end in knee)
    drawn = "[" + "=" * (last - first - 1) + "]" if last > first else "#"
    return "-" * first + drawn + "-" * (width - last - 1)


def _log_range(values: Sequence[float]) -> tuple[float, float]:
    """Decades' logarithms below and above all values, at least a third of a decade apart."""
    low = math.floor(math.log10(min(values)) * 3) / 3
    high = math.ceil(math.log10(max(values)) * 3) / 3
    return low, max(high, low + 1 / 3)


def _row(y: float, low: float, high: float, height: int) -> int:
    """The row of a value, 0 at the top."""
    share = (math.log10(y) - low) / (high - low) if y > 0 else 0.0
    return round((1 - min(1.0, max(0.0, share))) * (height - 1))


def _with_axis(grid: list[list[str]], low: float, high: float) -> list[str]:
    """The rows with a labelled axis at their left; every third row and the ends are labelled."""
    last = len(grid) - 1
    lines = []
    for index, row in enumerate(grid):
        value = 10 ** (high - (high - low) * index / last)
        label = f"{value:>8.3g}" if index % 3 == 0 or index == last else " " * 8
        lines.append(f"{label} |{''.join(row).rstrip()}")
    return lines


def _foot(
    series: Sequence[Series],
    ends_x: tuple[float, float],
    x_label: str,
    width: int,
    *,
    bound: float | None,
    knee: bool,
) -> list[str]:
    """The ends of the x axis, and the legend."""
    left, right = (f"{x:g}" for x in ends_x)
    ends = left.ljust(width - len(right)) + right
    legend = [f"{mark} {one.name}" for one, mark in zip(series, MARKS, strict=False)]
    legend += [f"- bound {bound:g}"] if bound else []
    legend += ["[=] knee"] if knee else []
    if any(y is None for one in series for _, y in one.points):
        legend.append(f"{UNBOUNDED} unbounded")
    return [f"{'':10}{ends}", f"{'':10}{x_label}    {'   '.join(legend)}"]
