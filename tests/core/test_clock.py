import pytest

from knee.core.clock import ManualClock, RealClock


def test_a_manual_clock_moves_when_told() -> None:
    clock = ManualClock()
    before = clock.wall_ns()
    clock.advance_ns(5)
    assert clock.monotonic_ns() == 5
    assert clock.wall_ns() - before == 5
    with pytest.raises(ValueError, match="backwards"):
        clock.advance_ns(-1)


def test_the_real_clock_does_not_step_back() -> None:
    clock = RealClock()
    stamps = [clock.monotonic_ns() for _ in range(100)]
    assert stamps == sorted(stamps)
