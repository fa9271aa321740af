"""What a search may spend, and the steps it spends it on."""

import math
from typing import Literal

import msgspec

from knee.core.errors import UsageError
from knee.measure.target import Offer, Watch

Phase = Literal["light", "again", "burst", "probe", "long", "beyond"]
"""`light` and `again`: an idle server; `burst`: its capacity; `probe`, `long`, `beyond`: open-loop points."""

MOST_POINTS = 24


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Where to stop: half-width of the interval (relative), server time in seconds, open-loop points."""

    precision: float = 0.03
    server_s: float = math.inf
    points: int = MOST_POINTS

    def checked(self) -> "Budget":
        """This budget if one can search within it.

        Raises:
            UsageError: it leaves no room for a search.
        """
        if not 0.001 <= self.precision <= 0.5:
            raise UsageError(f"a precision of {self.precision:g}", "between 0.1% and 50%, like 3%")
        if not self.server_s > 0:
            raise UsageError(f"a server time of {self.server_s:g} s", "write a duration like 20m")
        if not 1 <= self.points <= MOST_POINTS:
            raise UsageError(f"{self.points} points", f"between 1 and {MOST_POINTS}")
        return self


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What to do next: an offer, the watch that ends it, what it is for; `left_s` of server time before."""

    phase: Phase
    offer: Offer
    watch: Watch
    why: str
    left_s: float = math.inf
