"""Drives of one state machine: whatever the configuration, `skip`, `leap` and `step` tell the same story."""

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.engine.worlds import EXAMPLES, configs
from tests.engine.worlds import requests as a_request

from knee.core.requests import NEVER, Requests, column
from knee.engine.config import REFERENCE, EngineConfig, FrontEnd, StepCost
from knee.engine.drive import step_until
from knee.engine.engine import Engine
from knee.engine.plain import is_plain
from knee.engine.run import run
from knee.engine.skip import can_skip

LATE = 1 << 40


class Case(msgspec.Struct, frozen=True):
    """An engine, what comes to it (gap or pause, prompt, output, segments, whether it goes on)."""

    config: EngineConfig
    requests: tuple[tuple[int, int, int, tuple[tuple[int, int], ...], int], ...]
    untils: tuple[int, ...]
    clients: int | None
    sharing: bool
    talking: bool

    def schedule(self) -> Iterator[Requests]:
        now, due, follows = 0, list[int](), list[int]()
        for number, (gap, _, _, _, goes_on) in enumerate(self.requests):
            if self.talking and goes_on and number:
                follows.append(number - 1)
                due.append(gap)
            else:
                now += gap
                follows.append(NEVER)
                due.append(now)
        _, prompt, output, shared, _ = zip(*self.requests, strict=True)
        for i in range(0, len(due), 5):
            part = slice(i, i + 5)
            yield Requests(
                due_ns=column(due[part]),
                prompt_tokens=column(prompt[part]),
                output_tokens=column(output[part]),
                shared=shared[part] if self.sharing else None,
                follows=column(follows[part]) if self.talking else None,
            )  # fmt: skip


@st.composite
def cases(draw: st.DrawFn) -> Case:
    # Hypothesis prefers short lists; the same few requests again and again make a crowd.
    few = draw(st.lists(a_request(), min_size=1, max_size=8)) * draw(st.sampled_from((1, 3, 6)))
    untils = draw(st.lists(st.integers(1, 4000), min_size=1, max_size=5))
    sharing = draw(st.booleans())
    config = msgspec.structs.replace(
        draw(configs()), scheduling_policy="fcfs", long_prefill_token_threshold=0
    )
    blocks = draw(st.sampled_from((0, 0, 200, 600, 1300)))  # for all who may run, at some lengths
    if blocks:
        config = msgspec.structs.replace(config, num_gpu_blocks=blocks)
    front = FrontEnd(servers=draw(st.integers(1, 3)), per_request_ns=draw(st.sampled_from((0, 0, 1, 20, 80))))
    config = msgspec.structs.replace(config, front_end=front)
    return Case(
        config,
        tuple(draw(st.lists(a_request(), min_size=1, max_size=30)) + few),
        tuple(sorted(untils)),
        draw(st.sampled_from((None, None, 1, 3, 9))),
        sharing,
        draw(st.booleans()),
    )


def _run(case: Case) -> list[dict[str, Any]]:
    engine = Engine(case.config)
    told: list[dict[str, Any]] = []
    for start in (0, 7_000):  # the second point finds the counters and the cache of the first
        point = run(engine, case.schedule(), start, (10, 2_000), case.clients)
        for until in case.untils:
            point.advance(max(until, point.now_ns))
            seen = point.observed()
            # A stretch of steps may be told in fewer entries, but not across the end of one `advance`.
            gaps = Counter[tuple[int, int]]()
            columns = (part.tolist() for part in (seen.gaps.ns, seen.gaps.count, seen.gaps.at_ns))
            for ns, count, at in zip(*columns, strict=True):
                gaps[ns, bisect_right(case.untils, at)] += count
            told.append(
                {
                    "now": point.now_ns,
                    "open": point.open(),
                    "gaps": gaps,
                    "gauges": point.gauges(),
                    **{
                        name: getattr(seen, name).tolist()
                        for name in seen.__struct_fields__
                        if name not in ("gaps", "causes", "end_of_load_ns")
                    },
                    "causes": seen.causes,
                }
            )
        told.append({"metrics": point.snapshot()})
        point.end()
        told.append({"after": engine.snapshot(start + point.now_ns)})
    return told


def _case(requests: list[tuple[int, int, int]], untils: tuple[int, ...], clients: int | None) -> Case:
    config = EngineConfig(
        step_cost=StepCost(fixed_ns=1, per_seq_ns=0, per_prefill_token_ns=0), max_num_seqs=4,
        max_num_batched_tokens=4, max_model_len=100, block_size=1, num_gpu_blocks=42,
    )  # fmt: skip
    return Case(config, tuple((*r, (), 0) for r in requests), untils, clients, sharing=False, talking=False)


@settings(max_examples=EXAMPLES, deadline=None)
@given(cases())
@example(_case([(0, 1, 1), (0, 1, 1), (0, 3, 1), (0, 1, 1)], (2,), 3))  # one comes while a prefill goes on
def test_skip_is_step(case: Case) -> None:
    assert can_skip(case.config)
    skipping = _run(case)
    with patch("knee.engine.run.can_skip", lambda _: False), patch("knee.engine.run.leap_until", step_until):
        stepping = _run(case)
    for mine, theirs in zip(skipping, stepping, strict=True):
        for part, value in theirs.items():
            assert mine[part] == value, part


def _crowd(seed: int) -> Case:
    """Lengths and a cache like those of a real server, for more clients than there are blocks."""
    rng = random.Random(seed)
    config = msgspec.structs.replace(
        REFERENCE, max_num_batched_tokens=1024, num_gpu_blocks=1_500, enable_prefix_caching=True
    )

    def a_request() -> tuple[int, int, int, tuple[tuple[int, int], ...], int]:
        prompt, output = min(6000, rng.lognormvariate(6.7, 0.6)), min(2000, rng.lognormvariate(5.1, 0.6))
        text = rng.randrange(12)
        return 0, int(prompt) + 257, int(output) + 1, ((text, 256),) if text < 6 else (), 0

    requests = tuple(a_request() for _ in range(1_500))
    return Case(config, requests, (300_000_000_000,), 40, sharing=True, talking=False)


@pytest.mark.parametrize("seed", range(3))
def test_skip_is_step_in_a_crowd(seed: int) -> None:
    """What the head of the queue lacked says nothing of the next head: small worlds did not show it."""
    case = _crowd(seed)
    skipping = _run(case)
    assert skipping[1]["metrics"].counters["num_preemptions"] > 100
    with patch("knee.engine.run.can_skip", lambda _: False):
        assert _run(case) == skipping


def test_what_is_plain_and_what_can_be_skipped() -> None:
    assert is_plain(REFERENCE)
    assert can_skip(REFERENCE)
    for name, value in (
        ("max_num_queued_reqs", 5),
        ("max_num_queued_tokens", 5),
        ("async_scheduling", True),
        ("step_cost", msgspec.structs.replace(REFERENCE.step_cost, per_context_token_ns=1)),
    ):
        assert not is_plain(msgspec.structs.replace(REFERENCE, **{name: value}))
        assert can_skip(msgspec.structs.replace(REFERENCE, **{name: value}))
    assert not can_skip(msgspec.structs.replace(REFERENCE, scheduling_policy="priority"))
    assert not can_skip(msgspec.structs.replace(REFERENCE, long_prefill_token_threshold=100))
