"""Ground truth by counterfactual, in small; `make bench ONLY=diagnose` does it on hundreds of servers."""

import pytest
from bench._counterfactual import run_case, truth_of
from bench._random_servers import draw

from knee.diagnose.verdict import Limit


@pytest.mark.parametrize(
    ("gains", "truth"),
    [
        ({"kv_memory": 2.0, "sequence_cap": 1.0, "none": 2.0}, "kv_memory"),
        ({"kv_memory": 1.0, "sequence_cap": 1.04, "none": 1.04}, "compute"),
        ({"kv_memory": 1.0, "sequence_cap": 1.0, "none": 1.5}, None),  # two limits, neither moves alone
        ({"kv_memory": 1.3, "sequence_cap": 1.25, "none": 1.6}, None),  # too close to call
        ({"kv_memory": 1.1, "sequence_cap": 1.0, "none": 1.1}, None),  # matters too little
    ],
)
def test_what_counts_as_the_truth(gains: dict[Limit, float], truth: Limit | None) -> None:
    assert truth_of(gains) == truth


def test_a_seed_is_a_server() -> None:
    assert draw(7) == draw(7)
    assert draw(7) != draw(8)


@pytest.mark.parametrize("seed", [13, 22, 37, 48, 72, 77, 413, 421])
def test_the_first_verdict_is_the_true_limit_and_its_move_raises_the_knee(seed: int) -> None:
    case = run_case(seed)
    assert case is not None
    assert case.truth is not None
    assert case.verdict.limit == case.truth, case
    assert case.moved is not None, case
    assert case.moved > 1, case


def test_where_no_flag_helps_the_device_is_named_and_nothing_is_moved() -> None:
    case = run_case(115)
    assert case is not None
    assert (case.truth, case.verdict.limit, case.verdict.move) == ("compute", "compute", None)
