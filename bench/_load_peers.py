"""Other tools as clients of the truth server, where they are installed; never a part of what is shipped.

`VLLM_HOME` (as in the Makefile) and `AIPERF_HOME` are virtual environments or hold one in `venv`; else the
PATH is searched. Prompts are made with the tokenizer in the folder `VLLM_TOKENIZER`, or in `VLLM_HOME`/tiny.
"""

import json
import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

FEW = 10
"""Requests of a run that tells what a program costs before its first request."""


def program(name: str) -> str | None:
    """The program of a tool: below the folder that NAME_HOME names, or on the PATH."""
    home = os.environ.get(f"{name.upper()}_HOME")
    return shutil.which(name, path=f"{home}/bin{os.pathsep}{home}/venv/bin" if home else None)


def tokenizer() -> str | None:
    """A folder with a tokenizer."""
    given, home = os.environ.get("VLLM_TOKENIZER"), os.environ.get("VLLM_HOME")
    return given or (str(Path(home) / "tiny") if home else None)


def installed(name: str) -> bool:
    """Whether rows of a tool can be measured here."""
    return program(name) is not None and tokenizer() is not None


def vllm_client(asked: dict[str, Any]) -> dict[str, Any]:
    """`vllm bench serve` with its defaults, at the same rate and lengths."""
    cpu_ms, result = _per_request(asked, _vllm_run)
    return {"cpu_ms": cpu_ms, "ttft_p99_ms": result["p99_ttft_ms"], "ok": result["completed"]}


def aiperf_client(asked: dict[str, Any]) -> dict[str, Any]:
    """AIPerf with its defaults, at the same rate (Poisson) and lengths."""
    cpu_ms, result = _per_request(asked, _aiperf_run)
    return {
        "cpu_ms": cpu_ms,
        "ttft_p99_ms": result["time_to_first_token"]["p99"],
        "ok": int(result["request_count"]["avg"]),
    }


Run = Callable[[dict[str, Any], int, Path], tuple[str, Path]]
"""The command that sends so many requests, and the file in which its result will be."""


def _per_request(asked: dict[str, Any], run: Run) -> tuple[float, dict[str, Any]]:
    """CPU milliseconds a request, of all processes and without the start, and the result."""
    prompts = int(asked["rate"] * asked["seconds"])
    base_s, _ = _run(asked, FEW, run)
    cpu_s, result = _run(asked, prompts, run)
    return (cpu_s - base_s) / (prompts - FEW) * 1e3, result


def _run(asked: dict[str, Any], prompts: int, run: Run) -> tuple[float, dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command, path = run(asked, prompts, Path(folder))
        subprocess.run(command.split(), check=True, capture_output=True, timeout=300, cwd=folder)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        result: dict[str, Any] = json.loads(path.read_text())
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, result


def _vllm_run(asked: dict[str, Any], prompts: int, folder: Path) -> tuple[str, Path]:
    command = (
        f"{program('vllm')} bench serve --backend openai --base-url {asked['url']}"
        f" --endpoint /v1/completions --model truth --tokenizer {tokenizer()}"
        f" --dataset-name random --random-input-len 32 --random-output-len {asked['chunks']}"
        f" --ignore-eos --request-rate {asked['rate']} --num-prompts {prompts}"
        f" --save-result --result-dir {folder} --result-filename r.json"
    )
    return command, folder / "r.json"


def _aiperf_run(asked: dict[str, Any], prompts: int, folder: Path) -> tuple[str, Path]:
    command = (
        f"{program('aiperf')} profile --model truth --url {asked['url']}"
        f" --endpoint-type completions --streaming"
        f" --tokenizer {tokenizer()} --isl 32 --osl {asked['chunks']}"
        f" --extra-inputs ignore_eos:true --request-rate {asked['rate']} --request-count {prompts}"
        f" --ui none --no-gpu-telemetry --no-server-metrics --artifact-dir {folder}"
    )
    return command, folder / "profile_export_aiperf.json"


PEERS = {"vllm": vllm_client, "aiperf": aiperf_client}
