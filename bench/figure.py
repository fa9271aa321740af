"""One measured figure, and the bar it is held against."""

from typing import Literal

import msgspec


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """`value` in `unit`; `bar` is the figure asked for, and `better` on which side of it is good.

    `bar` is None for a figure that is printed for the record only.
    """

    bench: str
    figure: str
    value: float
    unit: str
    bar: float | None = None
    better: Literal["higher", "lower"] = "higher"

    @property
    def holds(self) -> bool | None:
        """Whether the value meets the bar; None without a bar."""
        if self.bar is None:
            return None
        return self.value >= self.bar if self.better == "higher" else self.value <= self.bar


def line(figure: Figure) -> str:
    """The figure as one JSON line: bench, figure, value, unit, bar, holds."""
    shown = {name: getattr(figure, name) for name in ("bench", "figure", "value", "unit", "bar", "holds")}
    return msgspec.json.encode(shown).decode()
