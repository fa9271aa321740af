"""One start of the server with one set of flags: what was to be found out, and what came of it."""

from typing import Literal

import msgspec

from knee.core.point import Knee
from knee.tune.config import Flags
from knee.tune.decide import Comparison
from knee.tune.proposal import Proposal, Proposals

Purpose = Literal["baseline", "move", "follow-up", "pair", "repeat", "confirm"]
Outcome = Literal["measured", "cannot start", "died", "infeasible"]
Decided = Literal["baseline", "kept", "reverted", "confirmed", "not confirmed"]


class Trial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What to do: start with `flags`, find the knee. `base` is the number of the trial that it moves from."""

    number: int
    purpose: Purpose
    flags: Flags
    seed: int
    base: int = 0
    move: Proposal | None = None


class Cost(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A latency at the knee, in ms, as estimated at the point nearest below it; None is unbounded.

    `objective` says that the SLO bounds it.
    """

    name: str
    value: float | None
    objective: bool = False


class Result(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of a trial.

    `limit`, `why` and `evidence` are the diagnosis at the knee; `cause` is why no knee was measured.
    `costs` is empty where no point lies at or below the knee.
    `server_s` is the server time of sweep and start, in seconds.
    """

    outcome: Outcome
    knee: Knee | None = None
    limit: str = ""
    why: str = ""
    evidence: tuple[str, ...] = ()
    proposals: Proposals = Proposals()
    pairs: tuple[Proposal, ...] = ()
    costs: tuple[Cost, ...] = ()
    cause: str = ""
    facts: Flags = {}
    version: str = ""
    model: str = ""
    gpu: str = ""
    server_s: float = 0.0
    startup_s: float | None = None

    @property
    def rate(self) -> float:
        """The knee as one number, in requests/s; 0 where there is none."""
        return (self.knee.estimate or self.knee.holds or 0.0) if self.knee is not None else 0.0


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was made of a result. `trades` names objectives that got worse where the knee got better."""

    decided: Decided
    why: str
    comparison: Comparison | None = None
    trades: tuple[str, ...] = ()


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A finished trial."""

    trial: Trial
    result: Result
    decision: Decision


class Stop(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why the session is over. `pair` are the numbers of the two trials between which a trade chooses."""

    reason: Literal[
        "compute binds", "trade", "budget", "no move left", "infeasible SLO", "server cannot start"
    ]
    why: str
    evidence: tuple[str, ...] = ()
    pair: tuple[int, ...] = ()
