"""What is in use before an upgrade: a version and its flags, from words or from a `knee.lock`."""

from pathlib import Path

from knee.core.errors import InputError
from knee.core.lock import read_lock


def in_use(version: str, flags: str) -> tuple[str, str]:
    """The version and the flags in use; `version` may be the path of a `knee.lock` or of a run.

    `flags` that are given count, else those that were measured.

    Raises:
        InputError: the lock cannot be read, or it does not know the version.
        NoAnswer: the run found no knee.
    """
    path = Path(version)
    if not path.exists():
        return version, flags
    lock = read_lock(path)
    if not lock.vllm_version:
        raise InputError(f"{path} does not say which vLLM was measured", "give the version: --from 0.27.0")
    measured = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in lock.flags.items())
    return lock.vllm_version, flags or measured
