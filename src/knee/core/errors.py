"""Errors that a person can act on, and the exit codes that a script can.

    KneeError            (70) a bug in knee, if it ever shows itself bare
    ├── UsageError        (2) the command line or a configuration value cannot be understood
    ├── InputError        (3) a file is missing, unreadable, or of another kind than asked
    ├── TargetError       (4) the server cannot be used: unreachable, not vLLM, loading, refusing, wrong model
    │   └── TargetLost    (6) the server was fine and failed during the run; finished points are kept
    └── NoAnswer          (5) everything ran, but the evidence does not decide

Exit code 0 is a positive answer, 1 a negative one ("does not fit", "regressed"), 130 an interrupt.
docs/exit-codes.md lists the same for users.
"""

EXIT_OK = 0
EXIT_NEGATIVE = 1
EXIT_INTERRUPTED = 130


class KneeError(Exception):
    """One clear line: what is wrong and where; `hint` says what to do about it."""

    exit_code = 70

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.what} ({self.hint})" if self.hint else self.what


class UsageError(KneeError):
    """The command line or a configuration value cannot be understood."""

    exit_code = 2


class InputError(KneeError):
    """A file is missing, unreadable, or of another kind than asked."""

    exit_code = 3


class TargetError(KneeError):
    """The server cannot be used as asked."""

    exit_code = 4


class TargetLost(TargetError):  # noqa: N818 - the tree above reads better with what happened than with a suffix
    """The server was usable and failed while it was measured."""

    exit_code = 6


class NoAnswer(KneeError):  # noqa: N818 - the same
    """Everything ran, and the evidence does not decide."""

    exit_code = 5
