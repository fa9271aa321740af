"""`python -m bench [NAME…]`: run the benchmarks and print their figures.

A benchmark is a module of this folder with `run() -> Iterator[Figure]`.
"""

import os
import sys
from importlib import import_module
from pathlib import Path

from bench.figure import line

NOT_BENCHMARKS = {"__init__", "__main__", "figure"}


def names() -> list[str]:
    """All benchmarks, by name."""
    found = (path.stem for path in Path(__file__).parent.glob("*.py"))
    return sorted(name for name in found if name not in NOT_BENCHMARKS and not name.startswith("_"))


def main(wanted: list[str]) -> int:
    """Run `wanted`, or all; 0 when every bar was met, 1 when one was not, 2 for a name that is not there."""
    unknown = set(wanted) - set(names())
    if unknown:
        sys.stderr.write(f"no such benchmark: {', '.join(sorted(unknown))}; known: {', '.join(names())}\n")
        return 2
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as `knee` does for itself
    met = True
    for name in wanted or names():
        for figure in import_module(f"bench.{name}").run():
            sys.stdout.write(line(figure) + "\n")
            sys.stdout.flush()
            met = met and figure.holds is not False
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
