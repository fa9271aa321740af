"""The engine against the program and the tables of the reference document."""

import importlib.util
from pathlib import Path

import pytest
from tests.engine.document import columns, line, simulate

REPO = Path(__file__).parents[2]
TABLES = (REPO / "tests/data/reference-tables.txt").read_text().splitlines()
PROGRAM = REPO.parent / "shared/reference/openloop.py"
OPEN_LOOP = (10, 15, 18, 19, 20, 21, 24)
CLOSED_LOOP = (32, 64, 128, 256, 512)


@pytest.mark.parametrize("rate", OPEN_LOOP)
def test_the_open_loop_table_digit_for_digit(rate: int) -> None:
    head = TABLES.index("open loop (arrivals do not wait for the server)")
    assert line(rate, columns(*simulate(rate=rate))) == TABLES[head + 2 + OPEN_LOOP.index(rate)]


@pytest.mark.parametrize("clients", CLOSED_LOOP)
def test_the_closed_loop_table_digit_for_digit(clients: int) -> None:
    head = TABLES.index("closed loop (each client waits for its reply)")
    assert line(clients, columns(*simulate(clients=clients))) == TABLES[head + 2 + CLOSED_LOOP.index(clients)]


@pytest.mark.skipif(not PROGRAM.is_file(), reason=f"the document's program is not at {PROGRAM}")
@pytest.mark.parametrize(("rate", "seed"), [(12.5, 1), (19.5, 2), (22.0, 3)])
def test_other_rates_and_seeds_against_the_program_itself(rate: float, seed: int) -> None:
    spec = importlib.util.spec_from_file_location("openloop", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    __import__("sys").modules["openloop"] = program  # its dataclass looks there for its types
    spec.loader.exec_module(program)
    theirs = program.simulate(rate_per_s=rate, seed=seed)
    ours = columns(*simulate(rate=rate, seed=seed))
    assert ours[0] == theirs[0]
    assert ours[1:3] == pytest.approx(theirs[1:3], abs=2e-6)  # their milliseconds are floats, ours whole ns
    assert ours[3] == theirs[3]
