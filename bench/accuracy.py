"""A real server, calibrated on light load only: how far is the knee that is predicted from the one measured?

VLLM_HOME names a folder with a CPU build of vLLM and a small model; without one the benchmark is left out.
Server and client share the machine, and both share it with whatever else runs there: within half a minute its
pace changes by more than the bar. So searches and calibrations take turns, a search first and last, and the
middle of the predictions counts beside the middle of the knees. A calibrated point is one rate with one kind
of arrivals, its error the middle one of the turns. How far knees and predictions are apart is printed, too,
and how much the core of the server's worker changed its pace meanwhile.
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

from bench._pace import swing, watched
from bench._ports import free_port
from bench._vllm_server import running
from bench.figure import Figure
from knee.cli.main import run as knee

SLO = "ttft p95 < 500ms"
LOAD = ["--prompt", "128", "--output", "32"]
SHARE = 0.55
"""Of the first search's knee, the highest rate that is offered to calibrate on."""
MOST_SHARE = 0.6
"""Of the measured knee, the highest rate that a calibration sees."""
TURNS = 3
"""Calibrations, each between two searches."""
WORKER_CORE = 0
"""Where vLLM binds the only worker that two cores have room for (`local_rank=0, core ids=[0]` in its log)."""
PACE = "pace.txt"
SEARCH_TIME = "5m"
"""For each, at most; it ends where the knee is known to 5 %."""

SERVERS = {"max_num_seqs 4": ("--max-num-seqs", "4"), "default flags": ()}
BAR = 0.10


def run() -> Iterator[Figure]:
    """The errors on each server. KNEE_BENCH_KEEP=FOLDER keeps the runs; those there are not repeated."""
    home = Path(os.environ.get("VLLM_HOME", "")).resolve()
    for name, flags in SERVERS.items():
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(os.environ.get("KNEE_BENCH_KEEP") or scratch).resolve() / name.replace(" ", "-")
            if not (folder / "search-1" / "run.json").is_file():
                if not (home / "venv/bin/vllm").is_file():
                    sys.stderr.write(
                        "no vLLM: accuracy is left out; VLLM_HOME names a folder with venv/bin/vllm\n"
                    )
                    return
                measure(home, flags, folder)
            yield from errors(name, folder)


def measure(home: Path, flags: tuple[str, ...], folder: Path) -> None:
    """Runs of one server in `folder`: searches, and calibrations, two runs each, under `runs`."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "server.log"
    with (
        contextlib.chdir(folder),
        running(home, log, free_port(), ("--no-enable-prefix-caching", *flags)) as server,
        watched(WORKER_CORE, folder / PACE),
    ):
        common = [server.url, *LOAD, "--realtime", "--server-log", str(log)]
        search = ["sweep", *common, "--slo", SLO, "--precision", "5%", "--server-time"]
        look = told([*search, SEARCH_TIME, "--out", "search-0"])["sweep"]["knee"]["estimate"]
        light = ["calibrate", *common, "--below", f"{SHARE * look:.3g}", "--seed"]
        for turn in range(1, TURNS + 1):
            told([*light, str(turn)])
            told([*search, SEARCH_TIME, "--seed", str(turn), "--out", f"search-{turn}"])


def errors(name: str, folder: Path) -> Iterator[Figure]:
    """The errors of the predicted knee, TTFT and ITL that the runs in `folder` show."""
    measured = [json.loads(path.read_bytes())["knee"] for path in sorted(folder.glob("search-*/run.json"))]
    seen = [knee["estimate"] for knee in measured]
    true = statistics.geometric_mean(seen)
    below = ["--below", f"{MOST_SHARE * true:.4g}"]
    fitted, knees = [], []
    with tempfile.TemporaryDirectory() as scratch:
        saved = f"{scratch}/calibration.json"
        for turn in range(len(measured) - 1):
            pair = [str(folder / "runs" / f"calibrate-{2 * turn + number}") for number in (1, 2)]
            fitted.append(told(["calibrate", *pair, *below, "--out", saved]))
            knees.append(told(["simulate", "--like", saved, "--slo", SLO])["prediction"]["knee"])
    predicted = statistics.geometric_mean(knees)

    def figure(what: str, value: float, unit: str, bar: float | None = None) -> Figure:
        return Figure(
            bench="accuracy",
            figure=f"{name}: {what}",
            value=round(value, 3),
            unit=unit,
            bar=bar,
            better="lower",
        )

    yield figure("calibrations, each between two searches", len(knees), "turns")
    yield figure("measured knee", true, "req/s")
    yield figure("widest half-width of a measured knee", max(map(half_width, measured)), "share")
    highest = max(rate for one in fitted for rate in one["rates"])
    yield figure("highest rate calibrated on, over it", highest / true, "share", MOST_SHARE)
    yield figure("predicted knee", predicted, "req/s")
    yield figure("measured knees, highest over lowest", spread(seen), "x")
    yield figure("predicted knees, highest over lowest", spread(knees), "x")
    if (folder / PACE).is_file():
        yield figure(
            "a fixed loop on the worker's core, 90th over 10th percentile of its time",
            swing(folder / PACE),
            "x",
        )
    yield figure("error of the predicted knee", abs(predicted / true - 1), "share", BAR)
    for latency in ("itl", "ttft"):
        middle = statistics.median(latency_errors(fitted, latency))
        yield figure(f"median error of {latency.upper()} at the calibrated points", middle, "share", BAR)


def latency_errors(fitted: list[Any], latency: str) -> list[float]:
    """Per rate and kind of arrivals, how far off the fitted latency is, relative: the middle of the turns."""
    points: dict[str, list[float]] = {}
    for one in fitted:
        beyond = one["extra_ttft_ms"] if latency == "ttft" else 0.0
        for point in one["replayed"]:
            name = json.dumps((point["rate"], point["arrivals"]))
            error = (point[f"{latency}_fitted_ms"] + beyond) / point[f"{latency}_ms"] - 1
            points.setdefault(name, []).append(error)
    return [abs(statistics.median(errors)) for errors in points.values()]


def spread(values: list[float]) -> float:
    """The highest over the lowest."""
    return max(values) / min(values)


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
