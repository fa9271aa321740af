"""The model that a search fits to a server which tells no flags: what a burst shows of its limits."""

import pytest

from knee.core.slo import parse_slo
from knee.engine.config import EngineConfig, StepCost
from knee.measure.point import make_point
from knee.measure.search.budget import Budget
from knee.measure.search.steps import Search
from knee.measure.simulated import SimulatedTarget
from knee.workload.spec import Lengths, Workload

SLO = parse_slo("ttft p99 < 2s")
HEAVY = Workload(
    prompt_tokens=Lengths(kind="lognormal", mean=230, cv=1.0, high=8000),
    output_tokens=Lengths(kind="lognormal", mean=64, cv=1.0, high=3000),
)
LONG_PROMPTS = Workload(
    prompt_tokens=Lengths(mean=733), output_tokens=Lengths(kind="lognormal", mean=144, cv=1.2, high=3000)
)


def _after_the_burst(config: EngineConfig, workload: Workload, flags: dict[str, str]) -> EngineConfig:
    search = Search(workload, SLO, seed=1, budget=Budget(server_s=3600), flags=flags)
    target = SimulatedTarget(config)
    for _ in ("light", "burst"):
        step = search.next_step()
        assert step is not None
        measured = target.measure(step.offer, step.watch)
        search.add(step, measured, make_point(measured, step.offer, SLO, simulated=True))
    assert search.evidence.model is not None
    return search.evidence.model.config


def _server(**costs: int) -> EngineConfig:
    cost = StepCost(**{"fixed_ns": 9_000_000, "per_seq_ns": 80_000, "per_prefill_token_ns": 14_000, **costs})
    return EngineConfig(step_cost=cost, max_model_len=16_384, num_gpu_blocks=1 << 22)


def test_a_long_run_of_the_model_refuses_no_request_that_the_server_takes() -> None:
    """Of half a million requests the longest are several times as long as any that a first look sees."""
    assert _after_the_burst(_server(), HEAVY, {}).max_model_len >= 8000
    assert _after_the_burst(_server(), HEAVY, {"max_model_len": "4096"}).max_model_len == 4096


@pytest.mark.parametrize("context_ns", [0, 17])
@pytest.mark.parametrize("budget", [1024, 2048, 4096])
def test_the_token_budget_is_read_off_a_burst(budget: int, context_ns: int) -> None:
    server = _server(per_context_token_ns=context_ns)
    server = EngineConfig(
        **{name: getattr(server, name) for name in ("step_cost", "max_model_len", "num_gpu_blocks")},
        max_num_batched_tokens=budget,
    )
    assert _after_the_burst(server, LONG_PROMPTS, {}).max_num_batched_tokens == budget
