"""One shape for everything that can be offered load: a live server, or a simulated engine in virtual time.

Sweeps, the knee search and tuning see only the `Target`, so that what is proved on thousands of simulated
servers runs unchanged on a real one.
"""

from collections.abc import Callable
from typing import Literal, Protocol

import msgspec

from knee.core.requests import Observed
from knee.core.snapshot import Snapshot, Window
from knee.workload.spec import Workload

Stop = Literal["", "clearly holds", "clearly breaks", "enough", "target lost", "interrupted"]

Watch = Callable[[Observed, int], Stop]
"""Called about once a second of the target's time with what was seen so far and the instant in ns from the
start of the point; anything but "" ends the point early, for that reason."""


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What to offer at one point.

    Open loop: `workload` at `rate` requests/s, drawn from `seed`; arrivals go on until the last request due
    in the measured window [warmup_ns, warmup_ns + window_ns) has ended, at most `drain_ns` after it; what
    has not ended then is censored. Closed loop: `max_concurrency` clients, each sending its next request when
    the last one ended; `rate` is then without meaning.
    """

    workload: Workload
    rate: float
    seed: int
    warmup_ns: int
    window_ns: int
    drain_ns: int
    max_concurrency: int | None = None


class ClientHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How the client itself fared, for the validity of a point. None where it cannot be known.

    `dispatch_lag_p99_ms` is how late requests were started (the time to connect is not in it), `cpu_share`
    the share of one core that the busiest worker used, `cached_share` the share of prompt tokens that the
    server took from its prefix cache, `prompt_error_share` how far its count of prompt tokens was off what
    was to be sent, `clock_jump_ms` how far the wall clock moved against the monotonic one.
    """

    loop_lag_p99_ms: float | None = None
    dispatch_lag_p99_ms: float | None = None
    cpu_share: float | None = None
    cached_share: float | None = None
    prompt_error_share: float | None = None
    clock_jump_ms: float | None = None
    workers: int = 1
    notes: tuple[str, ...] = ()


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """All that one point gave: what requests saw, what the server said, how the client fared."""

    observed: Observed
    spent_ns: int
    window: Window | None = None
    snapshots: tuple[Snapshot, ...] = ()
    health: ClientHealth | None = None
    stopped: Stop = ""


class TargetInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a target is; goes into the run directory, so it holds no secret."""

    name: str
    simulated: bool
    version: str = ""
    model: str = ""
    flags: dict[str, str] = {}


class Target(Protocol):
    """Anything that takes requests at given instants and reports what became of each."""

    def describe(self) -> TargetInfo:
        """Name, version, model and flags, as far as the target tells."""
        ...

    def measure(self, offer: Offer, watch: Watch | None = None) -> Measured:
        """Offer load and see what comes of it; blocks until the point is over.

        Raises:
            TargetError: the target cannot be used at all. A target that fails on the way is not an
                exception: the point ends with `stopped="target lost"` and everything seen so far.
        """
        ...

    def snapshot(self) -> Snapshot | None:
        """The server's metrics now; None where it shows none."""
        ...

    def settle(self, limit_ns: int) -> bool:
        """Wait until nothing is running or waiting, at most `limit_ns`; whether it is idle now."""
        ...
