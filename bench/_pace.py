"""The pace of a machine while something is measured on it: a fixed loop, timed again and again.

A virtual machine shares its cores with neighbours that it does not see: the same loop takes half as long
again, and steal time stays at zero. The loop's own time on the CPU counts, so load from here that takes its
turn on the core does not make the machine look slow.
"""

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

EVERY_S = 0.1
LONGEST_S = 7200
ROUNDS = 5000
"""A third of a millisecond: 0.3 % of a core."""


@contextlib.contextmanager
def watched(core: int, file: Path) -> Iterator[None]:
    """Time the loop on `core` until the block ends, an instant and a time in ns to each line of `file`."""
    process = subprocess.Popen([sys.executable, __file__, str(core), str(file)])
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def swing(file: Path) -> float:
    """The 90th over the 10th percentile of the times in `file`."""
    took_ns = [int(line.split()[1]) for line in file.read_text().splitlines()]
    tenths = statistics.quantiles(took_ns, n=10)
    return tenths[-1] / tenths[0]


def main(core: int, file: Path) -> None:
    """Write the lines of `watched`, for LONGEST_S at most."""
    os.sched_setaffinity(0, {core})
    with contextlib.suppress(PermissionError):  # without real-time priority it is timed less often
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    with file.open("w", buffering=1) as out:
        for _ in range(round(LONGEST_S / EVERY_S)):
            start_ns = time.thread_time_ns()
            sum(number * number for number in range(ROUNDS))
            out.write(f"{time.time_ns()} {time.thread_time_ns() - start_ns}\n")
            time.sleep(EVERY_S)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
