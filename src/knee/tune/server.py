"""A server that was started for one trial, whatever started it."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import msgspec

from knee.core.errors import TargetError
from knee.measure.sweep import MakePoint
from knee.measure.target import Target
from knee.tune.config import Flags

Say = Callable[[str], None]
"""Takes one line of progress."""


class StartFailed(TargetError):  # noqa: N818 - what happened reads better than a suffix
    """The server did not come up; `what` is the log's own cause, `hint` the remedy."""


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """A server that is ready. `facts` are its flags as far as they are known, and its KV cache.

    `cause` looks for what its log says about a death, "" where it says nothing. `startup_s` is None where no
    start was measured (virtual time).
    """

    target: Target
    make_point: MakePoint
    facts: Mapping[str, str]
    cause: Callable[[], str]
    version: str = ""
    model: str = ""
    gpu: str = ""
    startup_s: float | None = None


class Launcher(Protocol):
    """Starts one server after another."""

    def server(self, flags: Flags, log: Path, say: Say) -> AbstractContextManager[Running]:
        """A server with `flags` while the block lasts; what it writes goes to `log`.

        When the block ends, however it ends, nothing of the server is left.

        Raises:
            StartFailed: it did not come up with these flags.
            TargetError: no server can be started at all.
        """
        ...
