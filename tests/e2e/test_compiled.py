"""The engine as `make wheel` compiles it does what the sources say."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest
from bench._compiled import ROOT, install_compiled

MODULES = """
import sys
from importlib import import_module
for name in sys.argv[1:]:
    print(import_module(name).__file__)
"""
HEADERS = Path(sysconfig.get_path("include"), "Python.h")
COMMAND = "from knee.cli.main import main; main()"


def in_child(env: dict[str, str], *arguments: str) -> str:
    told = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    return told.stdout


@pytest.mark.skipif(not (shutil.which("gcc") and HEADERS.is_file()), reason="needs gcc and Python's headers")
def test_the_compiled_engine_passes_the_tests_of_the_engine_and_a_command_prints_the_same(
    tmp_path: Path,
) -> None:
    install_compiled(tmp_path)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    hook = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    modules = [path[4:-3].replace("/", ".") for path in hook["hooks"]["mypyc"]["include"]]
    files = in_child(env, "-c", MODULES, *modules).split()
    assert len(files) == len(modules)
    assert not [file for file in files if not file.endswith((".so", ".pyd"))]
    in_child(env, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "tests/engine")
    simulate = ("-c", COMMAND, "simulate", "--rate", "10,20", "--json")
    assert in_child(env, *simulate) == in_child(dict(os.environ), *simulate)
