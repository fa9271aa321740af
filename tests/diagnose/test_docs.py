"""The documentation says what the code and the catalogue say."""

import re
from pathlib import Path
from typing import get_args

import pytest

from knee.catalog.flags import flag, flag_default
from knee.catalog.metrics import metric
from knee.diagnose.verdict import Limit

DOC = (Path(__file__).parents[2] / "docs" / "diagnose.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in DOC.splitlines()
    if line.startswith("| `")
]
FLAG_ROWS = [row for row in ROWS if len(row) == 5]


def test_every_limit_has_its_row() -> None:
    assert {row[0].strip("`") for row in ROWS if len(row) == 3} == set(get_args(Limit))


@pytest.mark.parametrize("row", FLAG_ROWS, ids=lambda row: row[0])
def test_flags_and_their_defaults_are_the_catalogue_s(row: list[str]) -> None:
    name = row[0].strip("`")
    assert flag(name) is not None
    for text, tier in ((row[1], "small"), (row[2], "large")):
        known = flag_default(name, "0.32.0", tier)  # type: ignore[arg-type]
        assert known is not None
        assert text == str(known.value)
    assert set(re.findall(r"`(\w+)`", row[3])) <= set(get_args(Limit))


def test_every_name_in_code_is_a_flag_a_metric_a_limit_or_a_finding() -> None:
    sections = DOC.split("## Findings")
    named = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", sections[0]))
    assert len(named) > 15
    limits = set(get_args(Limit))
    unknown = {name for name in named if name not in limits and flag(name) is None and metric(name) is None}
    assert unknown <= {"api_server_count", "tensor_parallel_size"}


def test_findings_are_those_of_the_code() -> None:
    section = DOC.split("## Findings beside the limit")[1].split("##")[0]
    source = (Path(__file__).parents[2] / "src/knee/diagnose/findings.py").read_text()
    assert set(re.findall(r"`(\w+)`", section)) == set(re.findall(r'name="(\w+)"', source))
