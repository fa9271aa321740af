"""Whole sessions on simulated servers: kept, killed, resumed, refused."""

import os
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
import pytest

from knee.core.clock import ManualClock
from knee.core.errors import InputError, UsageError
from knee.core.lock import read_lock
from knee.core.slo import parse_slo
from knee.tune.config import Bounds, Flags, SimulatedServer, Spend, TuneConfig
from knee.tune.journal import JOURNAL, Journal
from knee.tune.outcome import Outcome
from knee.tune.server import Running, Say
from knee.tune.session import new_session, run_session
from knee.tune.simulated import SimulatedLauncher
from knee.workload.spec import Lengths, Workload

SERVER = SimulatedServer(step_ms=5, seq_ms=0.1, prefill_token_ms=0.02, num_gpu_blocks=20_000)
CONFIG = TuneConfig(
    server=SERVER,
    workload=Workload(prompt_tokens=Lengths(mean=60), output_tokens=Lengths(mean=12)),
    slo=parse_slo("ttft p95 < 300ms"),
    flags={"max_num_seqs": "4", "max_num_batched_tokens": "256"},
    moves={
        "max_num_seqs": Bounds(low=1, high=128),
        "max_num_batched_tokens": Bounds(low=64, high=2048),
    },
    spend=Spend(precision=0.1, points=3, trials=6),
)


class Counting:
    """The simulated launcher, with the flags of every start; raises instead of the start `stop_at`."""

    def __init__(self, stop_at: int = 0) -> None:
        self.starts: list[Flags] = []
        self._stop_at = stop_at
        self._launcher = SimulatedLauncher(SERVER)

    def server(self, flags: Flags, log: Path, say: Say) -> AbstractContextManager[Running]:
        if len(self.starts) + 1 == self._stop_at:
            raise KeyboardInterrupt
        self.starts.append(flags)
        return self._launcher.server(flags, log, say)


def session(folder: Path, config: TuneConfig, launcher: Counting | None = None) -> Outcome:
    if not folder.exists():
        new_session(folder, config)
    counting = launcher or Counting()
    return run_session(folder, config, ManualClock(), lambda _: None, lambda _: counting)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome, Counting]:
    folder, counting = tmp_path_factory.mktemp("whole") / "session", Counting()
    return folder, session(folder, CONFIG, counting), counting


def test_the_cap_is_moved_and_the_knee_rises(whole: tuple[Path, Outcome, Counting]) -> None:
    _, outcome, counting = whole
    first = outcome.entries[0].result
    assert first.limit == "sequence_cap"
    assert outcome.entries[1].trial.move is not None
    assert outcome.entries[1].trial.move.changes[0].flag == "max_num_seqs"
    assert outcome.gain is not None
    assert outcome.gain > 2
    assert outcome.entries[-1].trial.purpose == "confirm"
    assert [entry.trial.flags for entry in outcome.entries] == counting.starts
    assert len(outcome.entries) <= 6
    changed = [
        [name for name in entry.trial.flags if entry.trial.flags[name] != base.trial.flags[name]]
        for entry in outcome.entries[1:-1]
        for base in (outcome.entries[entry.trial.base - 1],)
    ]
    assert all(len(names) == 1 for names in changed), changed


def test_exploring_tries_pairs_too_and_ends_no_lower(
    whole: tuple[Path, Outcome, Counting], tmp_path: Path
) -> None:
    spend = msgspec.structs.replace(CONFIG.spend, trials=len(whole[1].entries) + 1)
    config = msgspec.structs.replace(CONFIG, explore=True, spend=spend)
    outcome = session(tmp_path / "session", config)
    tried = [entry for entry in outcome.entries if entry.trial.purpose == "pair"]
    assert len(tried) == 1
    for entry in tried:
        assert entry.trial.move is not None
        assert len(entry.trial.move.changes) == 2
    assert outcome.gain is not None
    assert whole[1].gain is not None
    assert outcome.gain > 0.95 * whole[1].gain  # another schedule of the confirmation
    assert outcome.entries[-1].trial.purpose == "confirm"


def test_it_leaves_a_lock_limits_and_the_engines_own_flags(whole: tuple[Path, Outcome, Counting]) -> None:
    _, outcome, _ = whole
    lock = read_lock(Path(outcome.lock))
    assert lock.flags == outcome.flags
    assert lock.knee == outcome.after
    assert lock.vllm_version == "0.32.0"
    assert outcome.limits is not None
    assert lock.at_knee is not None
    assert lock.knee.holds is not None
    assert lock.at_knee.rate <= lock.knee.holds
    reqs = int(outcome.queue_flags["max_num_queued_reqs"])
    assert reqs == outcome.limits.max_in_flight + outcome.limits.max_queue
    assert int(outcome.queue_flags["max_num_queued_tokens"]) > 0


def test_a_session_that_is_over_is_read_back_as_it_was(whole: tuple[Path, Outcome, Counting]) -> None:
    folder, outcome, _ = whole
    before = (folder / JOURNAL).read_bytes()
    again = Counting()
    assert session(folder, CONFIG, again) == outcome
    assert again.starts == []
    assert (folder / JOURNAL).read_bytes() == before


@pytest.mark.parametrize("cut_inside", [False, True])
def test_a_session_killed_anywhere_repeats_nothing_that_was_finished(
    whole: tuple[Path, Outcome, Counting], tmp_path: Path, cut_inside: bool
) -> None:
    """What a kill -9 leaves: the journal up to some line, or to the middle of the next one."""
    folder, outcome, counting = whole
    lines = (folder / JOURNAL).read_bytes().splitlines(keepends=True)
    ended = [number for number, line in enumerate(lines) if b'"kind":"ended"' in line]
    at = ended[-2] + 1 if not cut_inside else ended[-2] + 2
    left = tmp_path / "session"
    new_session(left, CONFIG)
    (left / JOURNAL).write_bytes(
        b"".join(lines[:at]) + (lines[at][: len(lines[at]) // 2] if cut_inside else b"")
    )
    again = Counting()
    assert session(left, CONFIG, again).flags == outcome.flags
    assert again.starts == counting.starts[-1:]
    kept = Journal(left).read()
    assert [e.trial for e in kept.entries] == [e.trial for e in outcome.entries]


def test_ctrl_c_keeps_what_is_finished_and_the_next_run_goes_on(
    whole: tuple[Path, Outcome, Counting], tmp_path: Path
) -> None:
    _, outcome, counting = whole
    folder = tmp_path / "session"
    first = Counting(stop_at=2)
    with pytest.raises(KeyboardInterrupt):
        session(folder, CONFIG, first)
    (folder / "trial-2").mkdir()
    (folder / "trial-2" / "points.jsonl").write_text("")
    capped = msgspec.structs.replace(CONFIG, spend=msgspec.structs.replace(CONFIG.spend, trials=3))
    again = Counting()
    found = session(folder, capped, again)  # the budget may change
    assert first.starts + again.starts == [*counting.starts[:2], found.flags]
    assert (folder / "trial-2-cut-1").is_dir()
    assert found.stop.reason in ("budget", outcome.stop.reason)


def test_another_configuration_is_refused(whole: tuple[Path, Outcome, Counting]) -> None:
    folder, _, _ = whole
    other = msgspec.structs.replace(CONFIG, slo=parse_slo("ttft p95 < 2s"))
    with pytest.raises(InputError, match="was begun with another slo"):
        session(folder, other)


def test_a_folder_that_is_no_session(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a run directory"):
        run_session(tmp_path, CONFIG, ManualClock(), lambda _: None)


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "session"
    new_session(folder, CONFIG)
    (folder / JOURNAL).symlink_to("/dev/full")
    with pytest.raises(InputError, match=r"cannot write the journal .*No space left on device") as found:
        session(folder, CONFIG)
    assert "nothing before is lost" in found.value.hint


def test_a_disk_that_fills_up_during_a_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("knee.measure.sweep.append_lines", full)
    with pytest.raises(InputError, match="trial 1 cannot be written: No space left on device"):
        session(tmp_path / "session", CONFIG)


def test_an_slo_that_one_request_breaks_is_said_at_once(tmp_path: Path) -> None:
    config = msgspec.structs.replace(CONFIG, slo=parse_slo("ttft p95 < 2ms"))
    outcome = session(tmp_path / "session", config)
    assert outcome.stop.reason == "infeasible SLO"
    assert "a single unloaded request breaks it" in outcome.stop.why
    assert "ttft p95 < 2ms" in outcome.stop.why
    assert len(outcome.entries) == 1
    assert outcome.server_s < 5
    assert outcome.lock == ""


def test_flags_that_no_engine_starts_with(tmp_path: Path) -> None:
    server = msgspec.structs.replace(SERVER, num_gpu_blocks=1)
    config = msgspec.structs.replace(CONFIG, server=server, flags={"max_model_len": "0"})

    class Bad(Counting):
        def __init__(self) -> None:
            super().__init__()
            self._launcher = SimulatedLauncher(server)

    outcome = session(tmp_path / "session", config, Bad())
    assert outcome.stop.reason == "server cannot start"
    assert "max_model_len must be at least 1" in outcome.stop.why


def test_a_flag_that_the_simulated_engine_lacks(tmp_path: Path) -> None:
    config = msgspec.structs.replace(CONFIG, flags={"tensor_parallel_size": "2"})
    with pytest.raises(UsageError, match="the simulated engine lacks one of tensor_parallel_size"):
        session(tmp_path / "session", config)
