"""Moves: within their bounds, never contradictory, sized by the simulator where there is one."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knee.diagnose.verdict import Diagnosis, Move
from knee.tune.check import contradicts
from knee.tune.climb import pairs
from knee.tune.config import Bounds, Flags
from knee.tune.proposal import Change, Place, Predict
from knee.tune.propose import propose, unloaded_moves

SEQS, TOKENS = "max_num_seqs", "max_num_batched_tokens"


def move(flag: str, to: int, *together: Move) -> Move:
    return Move(flag=flag, to=str(to), arithmetic="sum", effect="more", price="less", together=together)


def bound(*moves: Move) -> Diagnosis:
    first, *more = moves
    return Diagnosis(
        answer="bound", limit="sequence_cap", why="", move=first, next_move=more[0] if more else None
    )


def place(seqs: int, tokens: int, moves: dict[str, Bounds] | None = None) -> Place:
    return Place(
        flags={SEQS: str(seqs), TOKENS: str(tokens)},
        facts={},
        moves=moves or {SEQS: Bounds(low=1, high=512), TOKENS: Bounds(low=64, high=8192)},
    )


def knee_at(best_seqs: int, best_tokens: int) -> Predict:
    """A server whose knee falls off on both sides of one pair of flags."""

    def predict(flags: Flags) -> float:
        away = abs(math.log2(int(flags[SEQS]) / best_seqs)) + abs(math.log2(int(flags[TOKENS]) / best_tokens))
        return float(10 * 0.7**away)

    return predict


def test_the_diagnosis_alone_gives_its_own_value() -> None:
    found = propose(place(4, 2048), bound(move(SEQS, 16)), None)
    assert [[(c.flag, c.current, c.to) for c in m.changes] for m in found.moves] == [[(SEQS, "4", "16")]]


def test_the_simulator_goes_as_far_as_it_expects_more() -> None:
    (first, *_) = propose(place(4, 2048), bound(move(SEQS, 8)), knee_at(64, 2048)).moves
    assert first.changes[0].to == "64"
    assert first.predicted == pytest.approx(10)
    assert first.gain == pytest.approx(1 / 0.7**4)


def test_a_move_that_the_simulator_expects_nothing_of_is_passed_over_and_said() -> None:
    found = propose(place(64, 2048), bound(move(SEQS, 128)), knee_at(64, 2048))
    assert found.moves == ()
    assert "the simulator expects a factor of 0.70" in found.passed_over[0]


def test_what_no_limit_names_is_tried_where_the_simulator_expects_much() -> None:
    found = propose(place(64, 512), bound(move(SEQS, 128)), knee_at(64, 2048))
    assert [(m.limit, m.changes[0].flag, m.changes[0].to) for m in found.moves] == [
        ("simulator", TOKENS, "2048")
    ]


def test_flags_that_limit_each_other_are_not_moved_in_turns() -> None:
    def predict(flags: Flags) -> float:
        return min(int(flags[SEQS]) / 16, int(flags[TOKENS]) / 512, 8.0)

    (first, *_) = propose(place(16, 512), bound(move(SEQS, 32)), predict).moves
    assert {c.flag: c.to for c in first.changes} == {SEQS: "128", TOKENS: "4096"}
    (first, *_) = propose(place(16, 1024), bound(move(SEQS, 32)), predict).moves
    assert first.changes == (Change(flag=SEQS, current="16", to="128"),)


def test_a_flag_that_is_off_may_be_turned_on() -> None:
    flag = "long_prefill_token_threshold"
    start = Place(flags={flag: "0"}, facts={}, moves={flag: Bounds(low=16, high=1024)})
    (first,) = propose(start, bound(move(flag, 256)), lambda flags: float(flags[flag] == "256") + 1).moves
    assert first.changes == (Change(flag=flag, current="0", to="256"),)


def test_limits_that_hold_each_other_move_together() -> None:
    (first,) = propose(place(4, 256), bound(move(SEQS, 16, move(TOKENS, 512))), None).moves
    assert [(c.flag, c.to) for c in first.changes] == [(SEQS, "16"), (TOKENS, "512")]


def test_more_sequences_than_tokens_take_the_budget_along() -> None:
    (first,) = propose(place(200, 256), bound(move(SEQS, 400)), None).moves
    assert [(c.flag, c.to) for c in first.changes] == [(SEQS, "400"), (TOKENS, "400")]
    fixed = place(200, 256, {SEQS: Bounds(low=1, high=512)})
    assert propose(fixed, bound(move(SEQS, 400)), None).moves == ()


def test_a_flag_that_may_not_move_is_said() -> None:
    found = propose(place(4, 256), bound(Move(
        flag="kv_cache_dtype", to="fp8", arithmetic="", effect="", price=""
    )), None)  # fmt: skip
    assert found.passed_over == ("kv_cache_dtype → fp8 (sequence_cap): not among [moves]",)


def test_a_prompt_longer_than_the_budget_may_be_taken_in_one_step() -> None:
    (first,) = unloaded_moves(place(4, 256), 1000).moves
    assert (first.changes[0].flag, first.changes[0].to) == (TOKENS, "1024")
    assert unloaded_moves(place(4, 1024), 1000).moves == ()


@given(
    seqs=st.integers(1, 512),
    tokens=st.integers(64, 8192),
    to=st.integers(0, 100_000),
    flag=st.sampled_from([SEQS, TOKENS]),
    best=st.none() | st.tuples(st.integers(1, 1000), st.integers(1, 10_000)),
)
def test_every_proposal_is_a_server_within_bounds(
    seqs: int, tokens: int, to: int, flag: str, best: tuple[int, int] | None
) -> None:
    start = place(seqs, max(seqs, tokens))
    predict = knee_at(*best) if best else None
    found = propose(start, bound(move(flag, to), move(SEQS, 2 * seqs)), predict)
    for proposal in (*found.moves, *pairs(start, predict, 4)):
        after = proposal.applied(start.flags)
        assert after != start.flags
        assert not contradicts(after)
        assert all(
            start.moves[name].admits(value) for name, value in after.items() if value != start.flags[name]
        )
        assert proposal.gain is None or proposal.gain > 1 or proposal.limit == "pair"
