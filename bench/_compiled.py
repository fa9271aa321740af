"""knee as `make wheel` builds it: the hot part of the simulated engine compiled by mypyc."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def install_compiled(folder: Path) -> None:
    """Build the wheel and unpack it into `folder`, which then goes first on PYTHONPATH. Takes half a minute.

    It is built from a copy: modules compiled beside their sources would be imported in their place.

    Raises:
        subprocess.CalledProcessError: it does not build; why stands on stderr.
    """
    with tempfile.TemporaryDirectory() as copy:
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, copy)
        shutil.copytree(ROOT / "src", Path(copy) / "src", ignore=shutil.ignore_patterns("__pycache__"))
        subprocess.run(
            [
                sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-deps",
                "--no-build-isolation", "--target", folder, copy,
            ],
            env={**os.environ, "HATCH_BUILD_HOOKS_ENABLE": "1"},
            stdout=sys.stderr,
            check=True,
            timeout=600,
        )  # fmt: skip
