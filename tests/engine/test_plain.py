"""The plain case at full speed against the general drive, and where it hands over."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.worlds import EXAMPLES

from knee.core.requests import Requests, column
from knee.engine.config import REFERENCE, EngineConfig, StepCost
from knee.engine.engine import Engine
from knee.engine.plain import is_plain
from knee.engine.run import Run

LATE = 1 << 40


class Case(msgspec.Struct, frozen=True):
    config: EngineConfig
    requests: tuple[tuple[int, int, int], ...]  # gap before it, prompt, output
    untils: tuple[int, ...]

    def schedule(self) -> Iterator[Requests]:
        gaps, prompts, outputs = (column(part) for part in zip(*self.requests, strict=True))
        due = gaps.cumsum()
        for i in range(0, len(due), 5):
            part = slice(i, i + 5)
            yield Requests(due_ns=due[part], prompt_tokens=prompts[part], output_tokens=outputs[part])
        while True:  # schedules have no end
            yield Requests(due_ns=column([LATE]), prompt_tokens=column([1]), output_tokens=column([1]))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    seqs = draw(st.sampled_from((1, 2, 4, 8)))
    config = EngineConfig(
        step_cost=StepCost(
            fixed_ns=draw(st.integers(1, 30)),
            per_seq_ns=draw(st.integers(0, 4)),
            per_prefill_token_ns=draw(st.integers(0, 3)),
        ),
        max_num_seqs=seqs,
        max_num_batched_tokens=seqs + draw(st.sampled_from((0, 1, 7, 30, 100))),
        max_model_len=draw(st.sampled_from((70, 100))),
        block_size=draw(st.sampled_from((1, 3, 16))),
        num_gpu_blocks=draw(st.sampled_from((12, 40, 200, 1000))),
        enable_prefix_caching=draw(st.booleans()),
        watermark=draw(st.sampled_from((0.0, 0.1))),
    )
    request = st.tuples(st.sampled_from((0, 0, 1, 5, 30, 300)), st.integers(1, 60), st.integers(1, 30))
    requests = draw(st.lists(request, min_size=1, max_size=20)) * draw(st.sampled_from((1, 3)))
    untils = draw(st.lists(st.integers(1, 4000), min_size=1, max_size=5))
    return Case(config, tuple(requests), tuple(sorted(untils)))


def _run(case: Case) -> list[dict[str, Any]]:
    engine = Engine(case.config)
    told = []
    for start in (0, 7_000):  # the second point finds the counters of the first
        run = Run(engine, case.schedule, start, (10, 2_000), None)
        for until in case.untils:
            run.advance(max(until, run.now_ns))
            seen = run.observed()
            # A stretch of steps may be told in fewer entries, but not across the end of one `advance`.
            gaps = Counter[tuple[int, int]]()
            columns = (part.tolist() for part in (seen.gaps.ns, seen.gaps.count, seen.gaps.at_ns))
            for ns, count, at in zip(*columns, strict=True):
                gaps[ns, bisect_right(case.untils, at)] += count
            told.append(
                {
                    "now": run.now_ns,
                    "open": run.open(),
                    "gaps": gaps,
                    "gauges": run.gauges(),
                    **{
                        name: getattr(seen, name).tolist()
                        for name in seen.__struct_fields__
                        if name not in ("gaps", "causes", "end_of_load_ns")
                    },
                    "causes": seen.causes,
                }
            )
        told.append({"metrics": run.snapshot()})
        run.end()
        told.append({"after": engine.snapshot(start + run.now_ns)})
    return told


@settings(max_examples=EXAMPLES, deadline=None)
@given(cases())
def test_the_plain_drive_tells_what_the_general_one_does(case: Case) -> None:
    assert is_plain(case.config)
    plain = _run(case)
    with patch("knee.engine.run.is_plain", lambda _: False):
        general = _run(case)
    for mine, theirs in zip(plain, general, strict=True):
        for part, value in theirs.items():
            assert mine[part] == value, part


def test_what_is_not_plain() -> None:
    for change in (
        {"scheduling_policy": "priority"},
        {"long_prefill_token_threshold": 100},
        {"max_num_queued_reqs": 5},
        {"max_num_queued_tokens": 5},
        {"step_cost": msgspec.structs.replace(REFERENCE.step_cost, per_context_token_ns=1)},
    ):
        assert is_plain(REFERENCE)
        assert not is_plain(msgspec.structs.replace(REFERENCE, **change))
