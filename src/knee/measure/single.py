"""One point of a live server, checked and summarised."""

from pathlib import Path

import msgspec

from knee.core.point import Point
from knee.core.run import MANIFEST, POINTS, SNAPSHOTS, append_lines, create_run, write_atomically
from knee.core.slo import Slo
from knee.measure.live import LiveTarget
from knee.measure.point import make_point
from knee.measure.target import Measured, Offer
from knee.measure.validity import check_validity


def live_point(measured: Measured, offer: Offer, slo: Slo) -> Point:
    """The point that `measured` amounts to, with its reasons for and against."""
    verdict = check_validity(measured, offer)
    return make_point(measured, offer, slo, invalid=verdict.invalid, notes=verdict.notes)


def measure_point(target: LiveTarget, offer: Offer, slo: Slo, run: Path | None = None) -> Point:
    """Measure one point; with `run`, into a new run directory.

    Raises:
        InputError: the run directory exists and is not empty, or cannot be written.
        TargetError: the target cannot be used as asked.
    """
    if run is not None:
        plan = {"command": "bench", "target": target.describe(), "offer": offer, "slo": slo}
        create_run(run, plan)
        target.run = run
    measured = target.measure(offer)
    point = live_point(measured, offer, slo)
    if run is not None:
        append_lines(run / POINTS, [point])
        append_lines(
            run / SNAPSHOTS,
            [{"point": 0, **msgspec.to_builtins(snapshot)} for snapshot in measured.snapshots],
        )
        write_atomically(run / MANIFEST, {"ended": point.stopped or "complete", "points": 1})
    return point
