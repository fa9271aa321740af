"""Joint lengths, shared prefixes, stages and conversations: what comes of them is what was asked."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from knee.core.errors import UsageError
from knee.core.requests import NEVER, Ints, Requests
from knee.workload.schedule import schedule
from knee.workload.shapes import mean_of
from knee.workload.spec import Arrivals, Conversations, Lengths, Prefixes, Stage, Workload
from knee.workload.stages import warp

FIXED = Lengths(mean=100)


def spec(**changes: Any) -> Workload:
    return Workload(**({"prompt_tokens": FIXED, "output_tokens": Lengths(mean=20)} | changes))


def drawn(workload: Workload, rate: float = 10.0, chunks: int = 4, seed: int = 5) -> list[Requests]:
    return list(itertools.islice(schedule(workload, rate, seed), chunks))


def joined(parts: list[Requests], name: str) -> Ints:
    return np.concatenate([getattr(part, name) for part in parts])


def test_pairs_are_drawn_together() -> None:
    workload = spec(pairs=((10, 1), (500, 90)), pair_weights=(3.0, 1.0))
    parts = drawn(workload, chunks=10)
    seen = set(
        zip(joined(parts, "prompt_tokens").tolist(), joined(parts, "output_tokens").tolist(), strict=True)
    )
    assert seen == {(10, 1), (500, 90)}
    assert (joined(parts, "prompt_tokens") == 10).mean() == pytest.approx(0.75, abs=0.02)


def test_shared_prefixes_open_every_prompt() -> None:
    parts = drawn(spec(prefixes=Prefixes(tokens=60, groups=4)), chunks=5)
    shared = [segments for part in parts for segments in part.shared or ()]
    assert {segments[0][1] for segments in shared} == {60}
    groups = np.bincount([segments[0][0] for segments in shared])
    assert len(groups) == 4
    assert groups.min() > 0.2 * len(shared)
    short = drawn(spec(prompt_tokens=Lengths(mean=8), prefixes=Prefixes(tokens=60)), chunks=1)[0]
    assert set(short.prompt_tokens.tolist()) == {61}


def test_prefixes_survive_bursts() -> None:
    workload = spec(
        prefixes=Prefixes(tokens=60, groups=4), arrivals=Arrivals(burst_size=9, burst_every_s=1.0)
    )
    for part in drawn(workload):
        assert part.shared is not None
        assert len(part.shared) == len(part)


def per_second(due_ns: Ints, start: float, end: float) -> float:
    return float(((due_ns >= start * 1e9) & (due_ns < end * 1e9)).sum() / (end - start))


@pytest.mark.parametrize("kind", ["poisson", "constant"])
def test_stages_bend_the_rate(kind: Any) -> None:
    stages = (
        Stage(seconds=100, start=0.0, end=1.0),
        Stage(seconds=50),
        Stage(seconds=50, start=0.5, end=0.5),
    )
    due = joined(drawn(spec(arrivals=Arrivals(kind=kind, stages=stages)), 40.0, 9), "due_ns")
    assert (np.diff(due) >= 0).all()
    for start, end, rate in [
        (0, 20, 4),
        (40, 60, 20),
        (80, 100, 36),
        (100, 150, 40),
        (150, 200, 20),
        (200, 250, 20),
    ]:
        assert per_second(due, start, end) == pytest.approx(rate, abs=4 * (rate / (end - start)) ** 0.5)


def test_a_stage_of_nothing_is_a_pause() -> None:
    stages = (Stage(seconds=10), Stage(seconds=5, start=0, end=0), Stage(seconds=10))
    due = joined(drawn(spec(arrivals=Arrivals(stages=stages)), 30.0, 1), "due_ns")
    assert per_second(due, 10, 15) == 0
    assert per_second(due, 15, 25) == pytest.approx(30, rel=0.25)


def test_load_that_ends_at_nothing_ends() -> None:
    due = joined(
        drawn(spec(arrivals=Arrivals(stages=(Stage(seconds=10, start=1, end=0),))), 20.0, 2), "due_ns"
    )
    assert (due < 10e9).sum() == pytest.approx(100, abs=35)
    assert (due >= 1 << 60).sum() > 1_500  # never


@given(
    stages=st.lists(
        st.builds(Stage, seconds=st.floats(0.1, 50), start=st.floats(0, 3), end=st.floats(0.01, 3)),
        min_size=1,
    ),
    due=st.lists(st.floats(0, 500), min_size=1, max_size=50),
)
@example(stages=[Stage(seconds=4.0, start=0.0, end=1.0)], due=[5e-324])
@settings(max_examples=200, deadline=None)
def test_the_bend_inverts_the_integral_of_the_rate(stages: list[Stage], due: list[float]) -> None:
    bent = warp(tuple(stages))(np.array(due))
    for wanted, at in zip(due, bent.tolist(), strict=True):
        left, total = at, 0.0
        for stage in stages:
            t = min(left, stage.seconds)
            total += stage.start * t + (stage.end - stage.start) * t * t / (2 * stage.seconds)
            left -= t
        total += max(0.0, left) * stages[-1].end
        assert total == pytest.approx(wanted, rel=1e-6, abs=1e-6)


def chats(**changes: Any) -> Workload:
    turns = changes.pop("turns", Lengths(kind="uniform", low=1, high=5))
    return spec(conversations=Conversations(turns=turns, think_s=2.0), **changes)


def test_conversations_carry_what_was_said() -> None:
    parts = drawn(chats(), chunks=20)
    begun = 0
    for part in parts:
        assert part.follows is not None
        assert part.shared is not None
        for i, parent in enumerate(part.follows.tolist()):
            if parent == NEVER:
                assert part.prompt_tokens[i] == 100
                assert len(part.shared[i]) == 1
            else:
                assert parent == begun + i - 1  # its own conversation's turn before
                assert part.prompt_tokens[i] == part.prompt_tokens[i - 1] + 120
                assert part.shared[i][:-2] == part.shared[i - 1]
            assert sum(tokens for _, tokens in part.shared[i]) == part.prompt_tokens[i]
        begun += len(part)
    ids = {segments[0][0] for part in parts for segments in part.shared or ()}
    assert len(ids) == 20 * 64  # no two conversations open alike


def test_the_rate_is_that_of_requests() -> None:
    """Conversations begin at rate / mean turns, so that requests come at the rate."""
    parts = drawn(chats(), rate=30.0, chunks=40)
    starts = np.concatenate([part.due_ns[part.follows == NEVER] for part in parts])
    requests = sum(len(part) for part in parts)
    assert (np.diff(starts) >= 0).all()
    assert requests / (starts[-1] / 1e9) == pytest.approx(30, rel=0.1)
    pauses = np.concatenate([part.due_ns[part.follows != NEVER] for part in parts]) / 1e9
    assert pauses.mean() == pytest.approx(2.0, rel=0.05)


def test_conversations_stretch_with_the_rate() -> None:
    slow, fast = (drawn(chats(), rate, 2) for rate in (5.0, 10.0))
    for one, other in zip(slow, fast, strict=True):
        assert (one.prompt_tokens == other.prompt_tokens).all()
        first = one.follows == NEVER
        assert (np.abs(one.due_ns - 2 * other.due_ns)[first] <= 1).all()
        assert (one.due_ns == other.due_ns)[~first].all()  # people do not think faster under load


def test_means() -> None:
    assert mean_of(Lengths(kind="uniform", low=2, high=6)) == 4
    assert mean_of(Lengths(kind="empirical", values=(1, 9), weights=(3, 1))) == 3
    assert mean_of(Lengths(kind="lognormal", mean=77, cv=1)) == 77


@pytest.mark.parametrize(
    "workload",
    [
        spec(pairs=((0, 5),)),
        spec(pairs=((5, 5),), pair_weights=(1.0, 2.0)),
        spec(prefixes=Prefixes(tokens=0)),
        spec(prefixes=Prefixes(tokens=5), conversations=Conversations(turns=FIXED, think_s=1)),
        chats(turns=Lengths(mean=1_000)),
        chats(arrivals=Arrivals(burst_size=2, burst_every_s=1)),
        spec(conversations=Conversations(turns=Lengths(mean=2), think_s=-1)),
        spec(arrivals=Arrivals(stages=(Stage(seconds=0),))),
        spec(arrivals=Arrivals(stages=(Stage(seconds=1, start=-1),))),
        spec(arrivals=Arrivals(stages=(Stage(seconds=1, start=0, end=0),))),
    ],
)
def test_what_cannot_be_is_refused_at_once(workload: Workload) -> None:
    with pytest.raises(UsageError):
        schedule(workload, 1.0, 1)
