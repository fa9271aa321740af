from pathlib import Path

import msgspec
import pytest
from tests.deploy.measured import lock_of, point_at

from knee.core.errors import InputError, NoAnswer
from knee.core.lock import Lock, read_lock, write_lock
from knee.core.point import Knee, Point
from knee.core.run import MANIFEST, POINTS, append_lines, create_run, write_atomically


def run_with(path: Path, points: list[Point], knee: Knee | None = None, *, ended: bool = True) -> Path:
    lock = lock_of()
    target = {
        "name": "t",
        "simulated": True,
        "version": "0.32.0",
        "model": "m",
        "flags": {"max_num_seqs": "128"},
    }
    create_run(path, {"target": target, "workload": lock.workload})
    append_lines(path / POINTS, points)
    if ended:
        write_atomically(path / MANIFEST, {"knee": knee or lock.knee})
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    lock = lock_of(startup_s=12.5)
    write_lock(tmp_path / "knee.lock", lock)
    assert read_lock(tmp_path / "knee.lock") == lock


def test_a_run_amounts_to_a_lock(tmp_path: Path) -> None:
    undecided = point_at(18.5, holds=None)
    invalid = msgspec.structs.replace(point_at(18.8), invalid=("the client fell behind",))
    closed = msgspec.structs.replace(point_at(18.9), max_concurrency=128)
    broke = point_at(18.7, holds=False)
    points = [point_at(10.0), point_at(18.0), undecided, broke, invalid, closed, point_at(20.0, holds=False)]
    lock = read_lock(run_with(tmp_path / "run", points))
    assert lock.at_knee is not None
    assert lock.at_knee.rate == 18.5
    assert (lock.vllm_version, lock.model, lock.flags, lock.simulated) == (
        "0.32.0",
        "m",
        {"max_num_seqs": "128"},
        True,
    )


def test_a_run_that_did_not_end(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did not end"):
        read_lock(run_with(tmp_path / "run", [], ended=False))


def test_a_run_without_a_knee(tmp_path: Path) -> None:
    path = run_with(tmp_path / "run", [])
    write_atomically(path / MANIFEST, {"knee": None})
    with pytest.raises(NoAnswer, match="has no knee"):
        read_lock(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not a knee.lock"),
        (b"[]", "not a knee.lock"),
        (b'{"schema": 9}', "schema 1"),
        (b'{"schema": 1, "model": 3}', "not a knee.lock"),
        (b"\xff\xfe", "not a knee.lock"),
        (b" " * (5 << 20), "too large"),
    ],
)
def test_other_files(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "knee.lock"
    path.write_bytes(content)
    with pytest.raises(InputError, match=says):
        read_lock(path)


def test_no_such_file_and_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_lock(tmp_path / "absent")
    with pytest.raises(InputError, match="not a run directory"):
        read_lock(tmp_path)


def test_a_lock_holds_no_secret() -> None:
    assert not [name for name in Lock.__struct_fields__ if "key" in name or "token" in name]
