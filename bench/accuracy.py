"""A real server, calibrated on light load only: how far is the knee that is predicted from the one measured?

VLLM_HOME names a folder with a CPU build of vLLM and a small model; without one the benchmark is left out.
Server and client share the machine, and both share it with whatever else runs there. So the light points are
measured before the knee and again after it, each half predicts, and the middle of the two counts; how far the
two are apart is printed beside the errors.
"""

import contextlib
import io
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench._ports import free_port
from bench._vllm_server import running
from bench.figure import Figure
from knee.cli.main import run as knee

SLO = "ttft p95 < 500ms"
LOAD = ["--prompt", "128", "--output", "32", "--realtime"]
SHARES = (0.15, 0.3, 0.45, 0.55)
"""Of a first look's knee, the rates that the calibration sees."""

SERVERS = {"max_num_seqs 4": ("--max-num-seqs", "4"), "default flags": ()}
BAR = 0.10


def run() -> Iterator[Figure]:
    home = Path(os.environ.get("VLLM_HOME", "")).resolve()
    if not (home / "venv/bin/vllm").is_file():
        sys.stderr.write("no vLLM: accuracy is left out; VLLM_HOME names a folder with venv/bin/vllm\n")
        return
    for name, flags in SERVERS.items():
        with tempfile.TemporaryDirectory() as folder:
            yield from errors(name, home, flags, Path(os.environ.get("KNEE_BENCH_KEEP") or folder))


def errors(name: str, home: Path, flags: tuple[str, ...], folder: Path) -> Iterator[Figure]:
    """The errors of the predicted knee, TTFT and ITL on one server."""
    folder.mkdir(parents=True, exist_ok=True)
    runs = folder / name.replace(" ", "-")
    log = folder / f"{runs.name}.log"
    with running(home, log, free_port(), ("--no-enable-prefix-caching", *flags)) as server:
        common = [server.url, "--slo", SLO, *LOAD, "--server-log", str(log)]
        search = ["sweep", *common, "--precision", "5%", "--server-time"]
        look = told([*search, "90s", "--out", f"{runs}-look"])["sweep"]["knee"]
        rates = ",".join(f"{share * look['estimate']:.3g}" for share in SHARES)
        light = ["sweep", *common, "--rates", rates, "--duration", "20s", "--warmup", "4s", "--drain", "20s"]
        told([*light, "--out", f"{runs}-before"])
        measured = told([*search, "300s", "--out", f"{runs}-search"])["sweep"]["knee"]
        told([*light, "--out", f"{runs}-after"])
    halves = [f"{runs}-before", f"{runs}-after"]
    fitted = [told(["calibrate", half, "--out", f"{half}.json"]) for half in halves]
    knees = [
        told(["simulate", "--like", f"{half}.json", "--slo", SLO])["prediction"]["knee"] for half in halves
    ]
    predicted = math.sqrt(knees[0] * knees[1])

    def figure(what: str, value: float, unit: str, bar: float | None = None) -> Figure:
        return Figure(
            bench="accuracy",
            figure=f"{name}: {what}",
            value=round(value, 3),
            unit=unit,
            bar=bar,
            better="lower",
        )

    yield figure("measured knee", measured["estimate"], "req/s")
    yield figure("half-width of the measured knee", half_width(measured), "share")
    highest = max(rate for half in fitted for rate in half["rates"])
    yield figure("highest rate calibrated on, over it", highest / measured["estimate"], "share", 0.6)
    yield figure("predicted knee", predicted, "req/s")
    yield figure("predicted before over predicted after", knees[0] / knees[1], "x")
    yield figure("error of the predicted knee", abs(predicted / measured["estimate"] - 1), "share", BAR)
    for latency, extra in (("ttft", "extra_ttft_ms"), ("itl", "")):
        off = [
            abs((point[f"{latency}_fitted_ms"] + half.get(extra, 0.0)) / point[f"{latency}_ms"] - 1)
            for half in fitted
            for point in half["replayed"]
        ]
        yield figure(
            f"median error of {latency.upper()} at the calibrated points",
            statistics.median(off),
            "share",
            BAR,
        )


def half_width(knee: dict[str, Any]) -> float:
    """Half of the measured interval over its estimate."""
    return float((knee["breaks"] - knee["holds"]) / 2 / knee["estimate"])


def told(arguments: list[str]) -> Any:
    """What a command prints as JSON; exit code 5 is an answer, too."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = knee([*arguments, "--json"])
    if code not in (0, 5):
        raise RuntimeError(f"knee {' '.join(arguments)} ended with {code}")
    return json.loads(said.getvalue())
