"""The session as a state: which trial next, what is kept, why it stops."""

from typing import Any

import msgspec
import pytest

from knee.core.point import Knee
from knee.core.slo import parse_slo
from knee.tune.config import Bounds, SimulatedServer, Spend, TuneConfig
from knee.tune.decide import compare_knees, pooled_knee
from knee.tune.proposal import Change, Proposal, Proposals
from knee.tune.stopping import pareto
from knee.tune.trial import Cost, Result, Trial
from knee.tune.tuning import Tuning
from knee.workload.spec import Lengths, Workload

SLO = parse_slo("ttft p95 < 1s, itl p99 < 50ms")


def config(**more: Any) -> TuneConfig:
    return TuneConfig(
        server=SimulatedServer(),
        workload=Workload(prompt_tokens=Lengths(mean=100), output_tokens=Lengths(mean=50)),
        slo=SLO,
        flags={"max_num_seqs": "4"},
        moves={
            "max_num_seqs": Bounds(low=1, high=512),
            "max_num_batched_tokens": Bounds(low=64, high=8192),
        },
        **more,
    )


def knee(rate: float, binding: str = "ttft", spread: float = 0.03) -> Knee:
    return Knee(
        slo=SLO,
        holds=rate * (1 - spread),
        breaks=rate * (1 + spread),
        estimate=rate,
        confidence=0.95,
        reason="",
        binding_objective=binding,  # type: ignore[arg-type]
        saturation_rate=rate * 1.1,
    )


def move(flag: str, current: str, to: str, limit: str = "sequence_cap") -> Proposal:
    return Proposal(changes=(Change(flag=flag, current=current, to=to),), limit=limit, why="because")


def measured(
    rate: float, *moves: Proposal, limit: str = "sequence_cap", binding: str = "ttft", **more: Any
) -> Result:
    return Result(
        outcome="measured",
        knee=knee(rate, binding),
        limit=limit,
        why=f"{limit} it is",
        proposals=Proposals(moves=moves),
        server_s=100,
        **more,
    )


def step(tuning: Tuning, result: Result) -> tuple[Trial, str]:
    trial = tuning.next_trial()
    assert trial is not None
    return trial, tuning.add(trial, result).decided


def test_a_better_move_is_kept_followed_up_and_confirmed() -> None:
    tuning = Tuning(config())
    assert step(tuning, measured(5, move("max_num_seqs", "4", "16")))[1] == "baseline"
    trial, decided = step(tuning, measured(15, move("max_num_seqs", "16", "64")))
    assert (trial.flags, trial.base, decided) == ({"max_num_seqs": "16"}, 1, "kept")
    trial, decided = step(tuning, measured(20, limit="compute"))
    assert (trial.flags, decided) == ({"max_num_seqs": "64"}, "kept")
    trial, decided = step(tuning, measured(20.3, limit="compute"))
    assert (trial.purpose, trial.flags, decided) == ("confirm", {"max_num_seqs": "64"}, "confirmed")
    assert trial.seed != tuning.entries[0].trial.seed
    assert tuning.next_trial() is None
    assert tuning.stop is not None
    assert tuning.stop.reason == "compute binds"
    assert any("no longer rises above 22" in text for text in tuning.stop.evidence)


def test_what_is_within_noise_is_reverted_and_not_tried_again() -> None:
    tuning = Tuning(config())
    same = move("max_num_seqs", "4", "16")
    step(tuning, measured(5, same, same))
    assert step(tuning, measured(5.1))[1] == "reverted"
    assert tuning.next_trial() is None  # nothing was kept, so there is nothing to confirm
    assert tuning.best is tuning.entries[0]
    assert tuning.stop is not None
    assert tuning.stop.reason == "no move left"
    assert any("tried max_num_seqs → 16" in text for text in tuning.stop.evidence)


def test_a_move_that_opens_another_limit_is_followed_up_once() -> None:
    tuning = Tuning(config())
    step(tuning, measured(5, move("max_num_seqs", "4", "16")))
    budget = move("max_num_batched_tokens", "256", "1024", "token_budget")
    assert step(tuning, measured(5.1, budget, limit="token_budget"))[1] == "reverted"
    trial, decided = step(tuning, measured(9, limit="compute"))
    assert trial.purpose == "follow-up"
    assert trial.flags == {"max_num_seqs": "16", "max_num_batched_tokens": "1024"}
    assert decided == "kept"
    assert tuning.best is tuning.entries[2]


def test_a_follow_up_that_gains_nothing_goes_back() -> None:
    tuning = Tuning(config())
    step(tuning, measured(5, move("max_num_seqs", "4", "16"), move("max_num_seqs", "4", "8")))
    step(tuning, measured(5, move("max_num_batched_tokens", "256", "512"), limit="token_budget"))
    step(tuning, measured(5, move("max_num_batched_tokens", "512", "1024"), limit="token_budget"))
    trial = tuning.next_trial()
    assert trial is not None
    assert (trial.flags, trial.base) == ({"max_num_seqs": "8"}, 1)


def test_a_wide_interval_that_looks_better_is_measured_once_more() -> None:
    tuning = Tuning(config())
    step(tuning, measured(5, move("max_num_seqs", "4", "16")))
    wide = msgspec.structs.replace(measured(6), knee=knee(6, spread=0.3))
    assert step(tuning, wide)[1] == "reverted"
    trial, decided = step(tuning, measured(5.9, limit="compute"))
    assert (trial.purpose, trial.flags, decided) == ("repeat", {"max_num_seqs": "16"}, "kept")
    assert trial.seed not in {entry.trial.seed for entry in tuning.entries[:2]}
    assert tuning.best is tuning.entries[2]


def test_it_is_not_measured_a_third_time() -> None:
    tuning = Tuning(config())
    step(tuning, measured(5, move("max_num_seqs", "4", "16")))
    wide = msgspec.structs.replace(measured(6), knee=knee(6, spread=0.3))
    step(tuning, wide)
    assert step(tuning, wide)[1] == "reverted"
    assert tuning.next_trial() is None


def test_two_measurements_are_narrower_than_each() -> None:
    both = pooled_knee(knee(10, spread=0.1), knee(11, spread=0.1))
    assert both.estimate == pytest.approx(10.49, abs=0.01)
    assert both.holds is not None
    assert both.breaks is not None
    assert both.breaks / both.holds < 1.1 / 0.9


def test_a_value_that_does_not_start_is_learned_and_approached_by_half() -> None:
    tuning = Tuning(config())
    step(tuning, measured(5, move("max_num_seqs", "4", "256")))
    assert step(tuning, Result(outcome="cannot start", cause="CUDA out of memory"))[1] == "reverted"
    trial, _ = step(tuning, measured(9, move("max_num_seqs", "32", "256"), limit="sequence_cap"))
    assert trial.flags == {"max_num_seqs": "32"}
    trial = tuning.next_trial()  # type: ignore[assignment]
    assert trial.flags == {"max_num_seqs": "91"}  # never 256 again


def test_a_server_that_dies_is_reverted_and_the_loop_goes_on() -> None:
    tuning = Tuning(config())
    step(tuning, measured(5, move("max_num_seqs", "4", "8"), move("max_num_batched_tokens", "256", "512")))
    assert step(tuning, Result(outcome="died", cause="illegal memory access"))[1] == "reverted"
    assert step(tuning, Result(outcome="died", cause="illegal memory access"))[1] == "reverted"
    trial = tuning.next_trial()
    assert trial is not None
    assert trial.flags == {"max_num_seqs": "4", "max_num_batched_tokens": "512"}


def test_a_trade_ends_it_with_its_pair() -> None:
    tuning = Tuning(config())
    costs = (Cost(name="itl p99", value=20.0, objective=True),)
    step(tuning, measured(5, move("max_num_batched_tokens", "256", "1024", "token_budget"), costs=costs))
    worse = (Cost(name="itl p99", value=49.0, objective=True),)
    step(tuning, measured(4.9, binding="itl", limit="prefill_interference", costs=worse))
    assert tuning.next_trial() is None
    assert tuning.stop is not None
    assert (tuning.stop.reason, tuning.stop.pair) == ("trade", (1, 2))
    assert tuning.entries[1].decision.trades == (
        "itl p99 at the knee 20 → 49 ms",
        "itl breaks first now, not ttft",
    )


@pytest.mark.parametrize("outcome", ["cannot start", "died"])
def test_a_server_that_cannot_start_at_all(outcome: Any) -> None:
    tuning = Tuning(config())
    step(tuning, Result(outcome=outcome, cause="no device"))
    assert tuning.next_trial() is None
    assert tuning.stop is not None
    assert (tuning.stop.reason, tuning.stop.why) == ("server cannot start", "no device")


def test_an_slo_that_one_request_breaks_ends_it_at_once() -> None:
    tuning = Tuning(config())
    step(tuning, Result(outcome="infeasible", cause="a single unloaded request breaks it"))
    assert tuning.next_trial() is None
    assert tuning.stop is not None
    assert tuning.stop.reason == "infeasible SLO"


def test_an_slo_that_a_longer_step_would_keep_is_given_one_try() -> None:
    tuning = Tuning(config())
    longer = move("max_num_batched_tokens", "64", "1024")
    step(tuning, Result(outcome="infeasible", cause="alone", proposals=Proposals(moves=(longer,))))
    assert step(tuning, measured(7, limit="compute"))[1] == "kept"


def test_the_budget_of_trials_keeps_one_for_the_confirmation() -> None:
    tuning = Tuning(config(spend=Spend(trials=3)))
    step(tuning, measured(5, move("max_num_seqs", "4", "16")))
    step(tuning, measured(15, move("max_num_seqs", "16", "64")))
    trial, _ = step(tuning, measured(15))
    assert trial.purpose == "confirm"
    assert tuning.next_trial() is None
    assert tuning.stop is not None
    assert tuning.stop.reason == "budget"


def test_the_budget_of_server_time_does_too() -> None:
    tuning = Tuning(config(spend=Spend(server_s=320)))
    step(tuning, measured(5, move("max_num_seqs", "4", "16")))
    step(tuning, measured(15, move("max_num_seqs", "16", "64")))
    trial, _ = step(tuning, measured(15))
    assert trial.purpose == "confirm"
    assert tuning.stop is not None
    assert tuning.stop.reason == "budget"


def test_it_never_ends_below_its_start() -> None:
    tuning = Tuning(config())
    step(tuning, measured(5, move("max_num_seqs", "4", "16")))
    step(tuning, measured(15, limit="compute"))
    assert step(tuning, measured(3, limit="compute"))[1] == "not confirmed"
    assert tuning.best is tuning.entries[0]


def test_pairs_are_explored_only_when_asked() -> None:
    pair = Proposal(
        changes=(
            Change(flag="max_num_seqs", current="4", to="8"),
            Change(flag="max_num_batched_tokens", current="256", to="512"),
        ),
        limit="pair",
        why="",
    )
    first = msgspec.structs.replace(measured(5, limit="compute"), pairs=(pair,))
    plain, exploring = Tuning(config()), Tuning(config(explore=True))
    step(plain, first)
    assert plain.next_trial() is None
    step(exploring, first)
    trial = exploring.next_trial()
    assert trial is not None
    assert (trial.purpose, trial.flags) == ("pair", {"max_num_seqs": "8", "max_num_batched_tokens": "512"})


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (knee(10), knee(12), "better"),
        (knee(10), knee(10.3), "within noise"),
        (knee(10), knee(8), "worse"),
        (knee(10, spread=0.2), knee(12, spread=0.2), "within noise"),
        (msgspec.structs.replace(knee(10), holds=None, estimate=None), knee(1), "better"),
        (knee(10), msgspec.structs.replace(knee(10), holds=None, estimate=None), "worse"),
        (msgspec.structs.replace(knee(10), breaks=None), knee(20), "within noise"),
        (knee(10), msgspec.structs.replace(knee(20), breaks=None), "better"),
    ],
)
def test_a_knee_is_better_only_beyond_noise(before: Knee, after: Knee, verdict: str) -> None:
    assert compare_knees(before, after).verdict == verdict
    assert compare_knees(before, after, repeatable=True).verdict == verdict


def test_the_front_holds_what_nothing_beats() -> None:
    tuning = Tuning(config())

    def costs(value: float) -> tuple[Cost, ...]:
        return (Cost(name="itl p99", value=value, objective=True),)

    step(
        tuning, measured(5, move("max_num_seqs", "4", "8"), move("max_num_seqs", "4", "16"), costs=costs(10))
    )
    step(tuning, measured(4.9, costs=costs(20)))
    step(tuning, measured(9, limit="compute", costs=costs(30)))
    assert [entry.trial.number for entry in pareto(tuning.entries)] == [1, 3]
