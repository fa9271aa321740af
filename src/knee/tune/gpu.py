"""Whether a stopped server has given its GPU memory back: the next start would fail without it."""

import shutil
import subprocess

from knee.core.clock import RealClock

QUERY = ("--query-gpu=memory.used", "--format=csv,noheader,nounits")
WAIT_S = 60.0
SLACK_MIB = 512
"""Memory that may differ between two looks: contexts of other processes come and go."""


def memory_used() -> int | None:
    """MiB in use on all GPUs together; None where there is no nvidia-smi to ask."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        said = subprocess.run(  # noqa: S603 - our own arguments
            [program, *QUERY], capture_output=True, text=True, timeout=10, check=True
        ).stdout
        return sum(int(line) for line in said.split())
    except (subprocess.SubprocessError, OSError, ValueError):
        return None


def free_again(before_mib: int, within_s: float = WAIT_S) -> bool:
    """Wait until no more memory is in use than before, at most `within_s`; whether that came true."""
    clock = RealClock()
    until_ns = clock.monotonic_ns() + round(within_s * 1e9)
    while (used := memory_used()) is not None and used > before_mib + SLACK_MIB:
        if clock.monotonic_ns() >= until_ns:
            return False
        clock.sleep(1.0)
    return True
