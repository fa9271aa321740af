"""One point of a live server, checked and summarised."""

from pathlib import Path
from typing import Any

from knee.core.clock import RealClock
from knee.core.errors import InputError
from knee.core.point import Point
from knee.core.run import MANIFEST, create_run, write_atomically
from knee.core.slo import Slo
from knee.measure.client.live import LiveTarget
from knee.measure.point import make_point
from knee.measure.sweep import keep_point
from knee.measure.target import Measured, Offer
from knee.measure.validity import check_validity
from knee.measure.vllm_result import vllm_result


def live_point(measured: Measured, offer: Offer, slo: Slo) -> Point:
    """The point that `measured` amounts to, with its reasons for and against."""
    verdict = check_validity(measured, offer)
    return make_point(measured, offer, slo, invalid=verdict.invalid, notes=verdict.notes)


def measure_point(
    target: LiveTarget, offer: Offer, slo: Slo, run: Path | None = None, result: Path | None = None
) -> Point:
    """Measure one point; `run` is a run directory to make, `result` a file to write as vLLM's benchmark does.

    Raises:
        InputError: the run directory exists and is not empty, or cannot be written.
        TargetError: the target cannot be used as asked.
    """
    if run is not None:
        plan = {"command": "bench", "target": target.describe(), "offer": offer, "slo": slo}
        create_run(run, plan)
        target.keep_in(run)
    if result is not None:
        target.collect = []
    wall_ns = RealClock().wall_ns()
    measured = target.measure(offer)
    point = live_point(measured, offer, slo)
    if run is not None:
        keep_point(run, 0, point, measured)
        write_atomically(run / MANIFEST, {"ended": point.stopped or "complete", "points": 1})
    if result is not None:
        arrivals = offer.workload.arrivals
        write_result(result, vllm_result(point, target.collect or (), target.describe(), arrivals, wall_ns))
    return point


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Write a result file.

    Raises:
        InputError: it cannot be written.
    """
    try:
        write_atomically(path, result)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
