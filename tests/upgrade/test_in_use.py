"""Where an upgrade starts from: a version and flags, or what a lock says was measured."""

import json
from pathlib import Path

import msgspec
import pytest

from knee.cli.main import run
from knee.core.errors import InputError
from knee.core.lock import Lock, write_lock
from knee.core.point import Knee
from knee.core.slo import parse_slo
from knee.upgrade.inuse import in_use

SLO = parse_slo("ttft p95 < 1s")


def _lock(path: Path, version: str = "0.27.0", knee: float = 20.0) -> Path:
    found = Knee(
        slo=SLO, holds=knee * 0.98, breaks=knee * 1.02, estimate=knee, confidence=0.95, reason="narrow enough"
    )
    flags = {"max_num_seqs": "64", "calculate_kv_scales": ""}
    lock = Lock(vllm_version=version, model="tiny", flags=flags, workload={"a": 1}, slo=SLO, knee=found)
    write_lock(path, lock)
    return path


def test_a_lock_tells_version_and_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = _lock(tmp_path / "knee.lock")
    assert run(["upgrade", "plan", "--from", str(lock), "--to", "0.32.0", "--json"]) == 1
    plan = json.loads(capsys.readouterr().out)
    assert plan["before"] == "0.27.0"
    assert {note["flag"]: note["fate"] for note in plan["flags"]} == {
        "--max-num-seqs": "kept",
        "--calculate-kv-scales": "removed",
    }


def test_words_come_first(tmp_path: Path) -> None:
    lock = _lock(tmp_path / "knee.lock")
    assert in_use(str(lock), "--seed 1") == ("0.27.0", "--seed 1")
    assert in_use("0.30.0", "") == ("0.30.0", "")


def test_a_lock_without_a_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not say which vLLM"):
        in_use(str(_lock(tmp_path / "knee.lock", version="")), "")


@pytest.mark.parametrize(("after", "code", "verdict"), [(20.2, 0, "unchanged"), (14.0, 1, "regressed")])
def test_locks_are_compared_by_their_knees(
    after: float, code: int, verdict: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = _lock(tmp_path / "old.lock"), _lock(tmp_path / "new.lock", knee=after)
    assert run(["upgrade", "compare", str(one), str(other), "--margin", "15%", "--json"]) == code
    assert json.loads(capsys.readouterr().out)["verdict"] == verdict


def test_locks_of_other_workloads_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = _lock(tmp_path / "old.lock")
    other = tmp_path / "new.lock"
    raw = msgspec.json.decode(one.read_bytes())
    other.write_bytes(msgspec.json.encode(raw | {"workload": {"a": 2}}))
    assert run(["compare", str(one), str(other)]) == 3
    assert "the workloads differ" in capsys.readouterr().err
