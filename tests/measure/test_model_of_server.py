"""The model that a search fits to a server which tells no flags: what a burst shows of its limits."""

import pytest
from bench._drawn import Hidden, draw_server

from knee.core.slo import parse_slo
from knee.engine.config import EngineConfig, StepCost
from knee.measure.point import make_point
from knee.measure.search.budget import Budget
from knee.measure.search.steps import Search
from knee.workload.spec import Lengths, Workload

SLO = parse_slo("ttft p99 < 2s")
HEAVY = Workload(
    prompt_tokens=Lengths(kind="lognormal", mean=230, cv=1.0, high=8000),
    output_tokens=Lengths(kind="lognormal", mean=64, cv=1.0, high=3000),
)


SERVER = EngineConfig(
    step_cost=StepCost(fixed_ns=9_000_000, per_seq_ns=80_000, per_prefill_token_ns=14_000),
    max_model_len=16_384,
    num_gpu_blocks=1 << 22,
)


def _model_after(search: Search, config: EngineConfig, steps: int) -> EngineConfig:
    target = Hidden(config)
    for _ in range(steps):
        step = search.next_step()
        if step is None:
            break
        measured = target.measure(step.offer, step.watch)
        search.add(step, measured, make_point(measured, step.offer, search.slo, simulated=True))
    assert search.evidence.model is not None
    return search.evidence.model.config


@pytest.mark.parametrize(("flags", "least"), [({}, 8000), ({"max_model_len": "4096"}, 4096)])
def test_a_long_run_of_the_model_refuses_no_request_that_the_server_takes(
    flags: dict[str, str], least: int
) -> None:
    """Of half a million requests the longest are several times as long as any that a first look sees."""
    search = Search(HEAVY, SLO, seed=1, budget=Budget(server_s=3600), flags=flags)
    found = _model_after(search, SERVER, steps=2).max_model_len
    assert found >= least
    assert not flags or found == least


@pytest.mark.parametrize("seed", [43, 133])
def test_the_token_budget_is_read_off_a_burst(seed: int) -> None:
    """Reading context lengthens steps, too (43), and a fitted cost of prefill may be 6 % low (133)."""
    server = draw_server(seed)
    search = Search(server.workload, server.slo, seed=seed, budget=Budget(server_s=14_400))
    found = _model_after(search, server.config, steps=6)
    assert found.max_num_batched_tokens == server.config.max_num_batched_tokens
