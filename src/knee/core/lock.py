"""`knee.lock`: what was measured on which server, in one file small enough to commit beside the manifests.

A run directory holds everything; the lock holds what later steps need from it: the server (version, flags,
model, accelerator), the load and the objectives, the knee, and the point at the knee.
"""

from pathlib import Path
from typing import Any

import msgspec

from knee import __version__
from knee.core.errors import InputError, NoAnswer
from knee.core.point import Knee, Point
from knee.core.run import POINTS, open_run, read_lines, read_manifest, write_atomically
from knee.core.slo import Slo

LOCK_SCHEMA = 1
_MAX_LOCK_BYTES = 4 * 1024 * 1024


class Lock(msgspec.Struct, frozen=True, kw_only=True):
    """A measured server.

    `flags` are vLLM's, keyed as vLLM spells them (`max_num_seqs`). `at_knee` is the point at the highest rate
    that is not above the knee; `startup_s` the measured seconds from process start to the first answer. Both
    are None where nobody measured them. `simulated` says that the server was one.
    """

    schema: int = LOCK_SCHEMA
    tool_version: str = __version__
    vllm_version: str
    model: str
    gpu: str = ""
    flags: dict[str, str] = {}
    workload: dict[str, Any] = {}
    slo: Slo
    knee: Knee
    at_knee: Point | None = None
    startup_s: float | None = None
    simulated: bool = False


def write_lock(path: Path, lock: Lock) -> None:
    """Write `lock` to `path`, whole or not at all.

    Raises:
        InputError: the file cannot be written.
    """
    try:
        write_atomically(path, lock)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error


def read_lock(path: Path) -> Lock:
    """The lock in the file `path`, or the one that the run directory `path` amounts to.

    Raises:
        InputError: neither a lock nor a run directory, or of another schema.
        NoAnswer: the run found no knee.
    """
    if path.is_dir():
        return lock_of_run(path)
    try:
        if path.stat().st_size > _MAX_LOCK_BYTES:
            raise InputError(f"{path} is too large to be a knee.lock")
        raw = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}", "give a run directory or a knee.lock"
        ) from error
    except msgspec.MsgspecError as error:
        raise InputError(f"{path} is not a knee.lock: {error}", "`knee tune` writes one") from error
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if schema != LOCK_SCHEMA:
        raise InputError(f"{path} is not a knee.lock of schema {LOCK_SCHEMA}", "`knee tune` writes one")
    try:
        return msgspec.convert(raw, Lock)
    except msgspec.ValidationError as error:
        raise InputError(f"{path} is not a knee.lock: {error}") from error


def lock_of_run(path: Path) -> Lock:
    """What the run directory `path` found, as a lock.

    Raises:
        InputError: not a run directory, or one that did not end.
        NoAnswer: the run found no knee.
    """
    plan = open_run(path)
    manifest = read_manifest(path)
    if manifest is None:
        raise InputError(f"the run in {path} did not end", "resume it, or measure again")
    if not isinstance(manifest.get("knee"), dict):
        raise NoAnswer(
            f"the run in {path} has no knee", "measure a sweep with an SLO: knee sweep URL --slo …"
        )
    target = plan.get("target")
    target = target if isinstance(target, dict) else {}
    offer = plan.get("offer")
    workload = plan.get("workload") or (offer.get("workload") if isinstance(offer, dict) else None)
    try:
        knee = msgspec.convert(manifest["knee"], Knee)
        return Lock(
            vllm_version=str(target.get("version", "")),
            model=str(target.get("model", "")),
            gpu=str(target.get("gpu", "")),
            flags=msgspec.convert(target.get("flags", {}), dict[str, str], strict=False),
            workload=workload if isinstance(workload, dict) else {},
            slo=knee.slo,
            knee=knee,
            at_knee=_point_at(knee, list(read_lines(path / POINTS, Point))),
            simulated=bool(target.get("simulated", False)),
        )
    except msgspec.ValidationError as error:
        raise InputError(f"the run in {path} cannot be read: {error}") from error


def _point_at(knee: Knee, points: list[Point]) -> Point | None:
    """The valid open-loop point at the highest rate that is not above the knee.

    The knee is estimated from all points together, so a single one may be undecided; one that broke is not
    taken.
    """
    near = [
        point
        for point in points
        if point.holds is not False and point.max_concurrency is None and not point.invalid
        and knee.holds is not None and point.rate <= knee.holds * (1 + 1e-9)
    ]  # fmt: skip
    return max(near, key=lambda point: point.rate, default=None)
