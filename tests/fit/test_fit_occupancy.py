from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knee.core.errors import InputError, UsageError
from knee.core.requests import column
from knee.fit.config import read_model
from knee.fit.kv import Parallel, blocks_per_request, plan_kv
from knee.fit.occupancy import blocks_of, percentile_tokens, tail, whole_blocks
from knee.fit.traffic import drawn, read_traffic, servable
from knee.workload.spec import Lengths, Workload

SHARED = Path(__file__).parents[2].parent / "shared"
MODELS = Path(__file__).parents[1] / "data/models"
SEED = 20_261


def generator() -> np.random.Generator:
    return np.random.default_rng(SEED)


def test_equal_requests_fit_as_often_as_they_divide_the_cache() -> None:
    found = tail(column([900] * 10), column([100] * 10), 327_680, generator())
    assert found.full_length == 327
    assert found.in_flight > found.full_length
    assert found.p95_tokens == 1000


def test_the_tail_of_a_sum_is_that_of_the_normal_distribution() -> None:
    """p99 of the sum of n requests is n x mean + 2.326 x sd x sqrt(n), within two percent."""
    lengths = generator().integers(500, 1501, 20_000)
    budget = 200_000
    found = tail(column(lengths), column(np.zeros(20_000)), budget, generator())
    mean, deviation = lengths.mean(), lengths.std()
    n = np.arange(1, 400)
    expected = int(n[n * mean + 2.326 * deviation * np.sqrt(n) <= budget][-1])
    assert found.full_length == pytest.approx(expected, rel=0.02)


def test_what_is_in_flight_is_met_by_its_length_and_half_done() -> None:
    """One output of 1,000 in ten and nine of 10: met in 1000 : 90, so its mean progress dominates."""
    prompt, output = column([0] * 10), column([1000] + [10] * 9)
    found = tail(prompt + 1, output, 50_000, generator(), quantile=0.5)
    share = 1000 / 1090
    mean = 1 + share * 500 + (1 - share) * 5
    assert found.in_flight == pytest.approx(50_000 / mean, rel=0.03)


def test_the_same_seed_gives_the_same_answer() -> None:
    lengths = column(generator().integers(1, 5000, 500))
    assert tail(lengths, lengths, 100_000, generator()) == tail(lengths, lengths, 100_000, generator())


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 3000)), min_size=1, max_size=50),
    st.integers(0, 10**6),
)
def test_the_count_never_exceeds_what_the_shortest_requests_allow(
    pairs: list[tuple[int, int]], budget: int
) -> None:
    prompt, output = np.asarray(pairs, dtype=np.int64).T
    found = tail(prompt, output, budget, generator(), draws=200)
    total = prompt + output
    assert budget // int(total.max()) <= found.full_length or found.capped
    assert found.full_length <= budget // int(total.min())
    rounded = tail(prompt, output, budget, generator(), draws=200, cost=whole_blocks(16))
    blocks = -(-total // 16) * 16
    assert budget // int(blocks.max()) <= rounded.full_length or rounded.capped
    assert rounded.full_length <= budget // int(blocks.min())


def test_a_hybrid_models_requests_are_counted_in_blocks() -> None:
    plan = plan_kv(read_model(MODELS / "gemma-3-27b.json"), Parallel(), in_flight_tokens=2048)
    price = blocks_of(plan, 50_000)
    for tokens in (1, 16, 1000, 1040, 40_000, 50_000):
        exact = blocks_per_request(plan, tokens)
        assert exact <= int(price(column([tokens]))[0]) <= exact + 7


def test_the_percentile_is_a_length_that_occurred() -> None:
    assert percentile_tokens(column(range(1, 101)), column([0] * 100)) == 95
    assert percentile_tokens(column([7]), column([3])) == 10


@pytest.mark.parametrize(("prompt", "output"), [([], []), ([0], [0]), ([-1], [5])])
def test_requests_without_tokens_are_refused(prompt: list[int], output: list[int]) -> None:
    with pytest.raises(UsageError):
        tail(column(prompt), column(output), 100, generator())


@pytest.mark.parametrize(
    ("name", "requests", "first"),
    [("azure_llm_2023_code.csv", 8819, (4808, 10)), ("mooncake_conversation_head.jsonl", 4000, (6758, 500))],
)
def test_public_traces_are_read(name: str, requests: int, first: tuple[int, int]) -> None:
    found = read_traffic(SHARED / "traces" / name, SEED)
    assert len(found.prompt) == requests
    assert (int(found.prompt[0]), int(found.output[0])) == first


def test_a_saved_workload_is_drawn_from(tmp_path: Path) -> None:
    workload = Workload(prompt_tokens=Lengths(kind="uniform", low=10, high=30), output_tokens=Lengths(mean=7))
    file = tmp_path / "workload.json"
    file.write_bytes(msgspec.json.encode(workload))
    found = read_traffic(file, SEED)
    assert len(found.prompt) == len(found.output) >= 10_000
    assert float(found.prompt.mean()) == pytest.approx(20, abs=0.3)
    assert set(found.output.tolist()) == {7}
    assert read_traffic(file, SEED).prompt.tolist() == found.prompt.tolist()


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", b"\xff\xfe\x00", b"{}"])
def test_a_file_without_requests_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "trace"
    file.write_bytes(content)
    with pytest.raises(InputError):
        read_traffic(file, SEED)
    with pytest.raises(InputError, match="cannot read"):
        read_traffic(tmp_path / "nothing", SEED)


def test_drawn_lengths_and_what_can_be_served_of_them() -> None:
    found = drawn(Lengths(kind="uniform", low=1, high=100), Lengths(mean=50), SEED)
    assert found.output.tolist() == [50] * 10_000
    kept, refused = servable(found, 100)
    assert int((kept.prompt + kept.output).max()) == 100
    assert refused == pytest.approx(0.5, abs=0.03)
    assert servable(found, 150)[1] == 0
