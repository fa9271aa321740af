import pytest
from hypothesis import given
from hypothesis import strategies as st

from knee.core.errors import UsageError
from knee.core.units import format_duration, parse_duration_ns


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("60ms", 60_000_000),
        ("1.5s", 1_500_000_000),
        ("20m", 1_200_000_000_000),
        ("2min", 120_000_000_000),
        ("1h", 3_600_000_000_000),
        ("7", 7_000_000_000),
        (" 3 us ", 3_000),
        ("5µs", 5_000),
        ("9ns", 9),
    ],
)
def test_durations(text: str, ns: int) -> None:
    assert parse_duration_ns(text) == ns


@pytest.mark.parametrize("text", ["", "s", "1 day", "-1s", "1e3s", "1.2.3s", "ms5"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_duration_ns(text)


def test_a_unit_can_be_demanded() -> None:
    with pytest.raises(UsageError):
        parse_duration_ns("5", default_unit=None)


@given(st.integers(1, 10**16))
def test_a_printed_duration_is_right_to_three_figures(ns: int) -> None:
    printed = format_duration(ns)
    assert parse_duration_ns(printed) == pytest.approx(ns, rel=0.006)


def test_no_finite_duration() -> None:
    assert format_duration(float("inf")) == "∞"
    assert format_duration(float("nan")) == "?"
