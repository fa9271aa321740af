from pathlib import Path

import msgspec
import pytest

from knee.core.errors import InputError
from knee.core.requests import RequestRecord
from knee.core.run import (
    MANIFEST,
    PLAN,
    RECORDS,
    append_lines,
    create_run,
    open_run,
    read_lines,
    read_manifest,
    write_atomically,
)

RECORD = RequestRecord(point=1, index=0, due_ns=5, outcome="ok", gap_ns=(1, 2), gap_tokens=(1, 3))


def test_what_is_written_reads_back(tmp_path: Path) -> None:
    run = create_run(tmp_path / "run", {"seed": 7})
    append_lines(run / RECORDS, [RECORD])
    append_lines(run / RECORDS, [msgspec.structs.replace(RECORD, index=1, outcome="failed", cause="cut")])
    assert open_run(run)["seed"] == 7
    assert [record.index for record in read_lines(run / RECORDS, RequestRecord)] == [0, 1]
    assert read_manifest(run) is None
    write_atomically(run / MANIFEST, {"ended": "complete"})
    assert read_manifest(run) == {"ended": "complete"}


def test_a_killed_run_loses_only_the_line_being_written(tmp_path: Path) -> None:
    run = create_run(tmp_path / "run", {})
    append_lines(run / RECORDS, [RECORD, RECORD])
    whole = (run / RECORDS).read_bytes()
    for cut in range(len(whole)):
        (run / RECORDS).write_bytes(whole[:cut])
        assert len(list(read_lines(run / RECORDS, RequestRecord))) == whole[:cut].count(b"\n")


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    run = create_run(tmp_path / "run", {})
    append_lines(run / RECORDS, [RECORD])
    with (run / RECORDS).open("ab") as file:
        file.write(b"{not json}\n")
    with pytest.raises(InputError, match=r"records\.jsonl:2"):
        list(read_lines(run / RECORDS, RequestRecord))


def test_a_directory_that_is_no_run(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InputError, match="not a run directory"):
            open_run(path)


def test_another_schema_is_refused(tmp_path: Path) -> None:
    run = create_run(tmp_path / "run", {})
    write_atomically(run / PLAN, {"schema": 999})
    with pytest.raises(InputError, match="999"):
        open_run(run)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    create_run(tmp_path / "run", {})
    with pytest.raises(InputError, match="not empty"):
        create_run(tmp_path / "run", {})
