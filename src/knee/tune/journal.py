"""The journal: one JSON line for each thing that happened, on the disk before the next one begins.

{"kind": "began", …}    a trial is about to start its server
{"kind": "server", …}   the process group that runs for it, so that a killed session can be cleaned up after
{"kind": "ended", …}    what came of it, and what was decided
{"kind": "stopped", …}  why the session is over
"""

from pathlib import Path

import msgspec

from knee.core.errors import InputError
from knee.core.run import append_lines, read_lines
from knee.tune.process import Group
from knee.tune.trial import Decision, Entry, Result, Stop, Trial

JOURNAL = "journal.jsonl"


class Began(msgspec.Struct, frozen=True, tag="began", tag_field="kind"):
    """A trial that is about to start."""

    at_ns: int
    trial: Trial


class Serving(msgspec.Struct, frozen=True, tag="server", tag_field="kind"):
    """The process group of a trial's server."""

    at_ns: int
    trial: int
    group: Group


class Ended(msgspec.Struct, frozen=True, tag="ended", tag_field="kind"):
    """A trial that is over."""

    at_ns: int
    trial: int
    result: Result
    decision: Decision


class Stopped(msgspec.Struct, frozen=True, tag="stopped", tag_field="kind"):
    """The session is over."""

    at_ns: int
    stop: Stop


Line = Began | Serving | Ended | Stopped


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What a journal holds: finished trials, and the trial and the server that a killed session left."""

    entries: tuple[Entry, ...] = ()
    cut: Trial | None = None
    left: Group | None = None
    stop: Stop | None = None


class Journal:
    """The file `journal.jsonl` of a session's folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOURNAL

    def write(self, line: Line) -> None:
        """Append one line, and see it on the disk.

        Raises:
            InputError: the disk is full or the file cannot be written. What was written before is whole.
        """
        try:
            append_lines(self.path, [line])
        except OSError as error:
            raise InputError(
                f"cannot write the journal {self.path}: {error.strerror}",
                f"nothing before is lost; make room, then: knee tune … --resume {self.path.parent}",
            ) from error

    def read(self) -> Kept:
        """What is in the file; a last line that was cut by a kill is taken off it.

        Raises:
            InputError: it cannot be read, or is no journal.
        """
        self._mend()
        trials: dict[int, Trial] = {}
        groups: dict[int, Group] = {}
        ended: dict[int, Entry] = {}
        stop = None
        for line in read_lines(self.path, Line):  # type: ignore[arg-type, var-annotated]
            match line:
                case Began():
                    trials[line.trial.number] = line.trial
                    groups.pop(line.trial.number, None)
                case Serving():
                    groups[line.trial] = line.group
                case Ended() if line.trial in trials:
                    ended[line.trial] = Entry(
                        trial=trials[line.trial], result=line.result, decision=line.decision
                    )
                case Ended():
                    raise InputError(f"{self.path}: trial {line.trial} ended and never began")
                case Stopped():
                    stop = line.stop
        cut = next((trial for number, trial in trials.items() if number not in ended), None)
        return Kept(
            entries=tuple(ended.values()),
            cut=cut,
            left=groups.get(cut.number) if cut is not None else None,
            stop=stop,
        )

    def _mend(self) -> None:
        """Cut off what follows the last whole line, so that the next one does not run into it."""
        try:
            data = self.path.read_bytes() if self.path.is_file() else b""
            if data and not data.endswith(b"\n"):
                with self.path.open("r+b") as file:
                    file.truncate(data.rfind(b"\n") + 1)
        except OSError as error:
            raise InputError(f"cannot read {self.path}: {error.strerror}") from error
