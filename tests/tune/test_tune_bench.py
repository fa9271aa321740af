"""Two of the benchmark's servers, on a small grid: near the best, in few sweeps, never below the start."""

import pytest
from bench import tune


@pytest.mark.parametrize("seed", [0, 6])
def test_a_drawn_server_ends_near_the_best_of_a_grid(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "SEQS", (8, 64, 512))
    monkeypatch.setattr(tune, "TOKENS", (512, 2048, 8192))
    row = tune.run_server(seed)
    assert row is not None
    assert row.ended >= 0.95 * row.best, row
    assert row.ended >= 0.98 * row.first, row
    assert row.sweeps <= 8, row


def test_searches_stop_when_the_time_is_spent() -> None:
    truth = {(8, 256): 1.0, (16, 256): 2.0, (32, 256): 4.0}
    assert tune._searched(list(truth), truth, each=10, time_s=9) == 0
    assert tune._searched(list(truth), truth, each=10, time_s=16) == 2
    assert tune._searched(list(truth)[::-1], truth, each=10, time_s=3) == 4
