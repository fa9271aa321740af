"""A real server, calibrated on light load only: how far is the knee that is predicted from the one measured?

VLLM_HOME names a folder with a CPU build of vLLM and a small model; without one the benchmark is left out.
Server and client share the machine, and both share it with whatever else runs there: the spread of what is
measured at one rate is printed beside the errors.
"""

import contextlib
import io
import json
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
SHARES = (0.2, 0.35, 0.5, 0.6)
"""Of the knee that was measured, the rates that the calibration sees, each once before and once after."""

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
        search = ["--precision", "5%", "--server-time", "300s", "--out", f"{runs}-search"]
        measured = told(["sweep", *common, *search])["sweep"]["knee"]
        rates = [f"{share * measured['estimate']:.3g}" for share in SHARES]
        timed = ["--rates", ",".join(rates + rates[::-1]), "--duration", "20s", "--warmup", "4s"]
        told(["sweep", *common, *timed, "--drain", "20s", "--out", f"{runs}-light"])
    fitted = told(["calibrate", f"{runs}-light", "--out", f"{runs}.json"])
    predicted = told(["simulate", "--like", f"{runs}.json", "--slo", SLO])["prediction"]

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
    yield figure("predicted knee", predicted["knee"], "req/s")
    yield figure(
        "error of the predicted knee", abs(predicted["knee"] / measured["estimate"] - 1), "share", BAR
    )
    for latency, extra in (("ttft", fitted["extra_ttft_ms"]), ("itl", 0.0)):
        off = [
            abs((point[f"{latency}_fitted_ms"] + extra) / point[f"{latency}_ms"] - 1)
            for point in fitted["replayed"]
        ]
        yield figure(
            f"median error of {latency.upper()} at the calibrated points",
            statistics.median(off),
            "share",
            BAR,
        )
    yield figure("mean ITL at one rate, before over after", spread(fitted["replayed"]), "x")


def spread(replayed: list[dict[str, float]]) -> float:
    """The largest ratio of two mean gaps that were measured at one rate."""
    seen: dict[float, list[float]] = {}
    for point in replayed:
        seen.setdefault(point["rate"], []).append(point["itl_ms"])
    return max(max(gaps) / min(gaps) for gaps in seen.values())


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
