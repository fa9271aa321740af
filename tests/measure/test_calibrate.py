"""A run recorded on an engine of known costs: the calibration must find them, and predict other limits."""

import json
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from knee.cli.main import run as cli
from knee.core.errors import InputError, NoAnswer
from knee.core.requests import RequestRecord
from knee.core.run import POINTS, RECORDS, append_lines, create_run, write_atomically
from knee.core.slo import Slo, parse_slo
from knee.core.units import NS_PER_S
from knee.engine.config import EngineConfig, StepCost
from knee.engine.engine import Engine
from knee.engine.request import Request
from knee.measure.model.calibrate import PARTS, Calibration, calibrate
from knee.measure.model.fitting import fit_steps
from knee.measure.model.light import in_clumps
from knee.measure.model.like import load_calibration, predict_knee
from knee.measure.point import make_point
from knee.measure.recorded import read_recorded
from knee.measure.simulated import SimulatedTarget
from knee.measure.target import Offer
from knee.workload.schedule import schedule
from knee.workload.spec import Lengths, Workload

SLO = parse_slo("ttft p95 < 300ms")
WORKLOAD = Workload(
    prompt_tokens=Lengths(kind="lognormal", mean=128, cv=0.5, high=1000),
    output_tokens=Lengths(kind="lognormal", mean=32, cv=0.5, high=300),
)
TRUE = EngineConfig(
    step_cost=StepCost(fixed_ns=3_000_000, per_seq_ns=500_000, per_prefill_token_ns=20_000),
    max_num_seqs=128,
    max_num_batched_tokens=2048,
)


def _offer(rate: float, seed: int) -> Offer:
    return Offer(
        workload=WORKLOAD, rate=rate, seed=seed, warmup_ns=5 * NS_PER_S, window_ns=40 * NS_PER_S,
        drain_ns=20 * NS_PER_S,
    )  # fmt: skip


JITTER_NS = 200_000
SWING_NS = 5 * NS_PER_S


def _records(
    config: EngineConfig, offer: Offer, point: int, *, stall_ns: float = 0, slow: float = 1.0
) -> list[RequestRecord]:
    """What a client would note of the engine: every token's instant, late by up to JITTER_NS.

    One step in 300 takes `stall_ns` longer, because the machine was away. In every other SWING_NS it is slow:
    a step takes `slow` times as long.
    """
    engine, rng = Engine(config), random.Random(offer.seed)
    requests: list[Request] = []
    for stretch in schedule(offer.workload, offer.rate, offer.seed):
        columns = (stretch.due_ns.tolist(), stretch.prompt_tokens.tolist(), stretch.output_tokens.tolist())
        for due, prompt, output in zip(*columns, strict=True):
            requests.append(Request(len(requests), prompt, output, arrival_ns=due))
        if requests[-1].arrival_ns > offer.warmup_ns + offer.window_ns:
            break
    tokens: dict[object, list[int]] = {request.id: [] for request in requests}
    now, sent = 0, 0
    while sent < len(requests) or engine.requests:
        while sent < len(requests) and requests[sent].arrival_ns <= now:
            engine.add(requests[sent], requests[sent].arrival_ns)
            sent += 1
        step = engine.next_step(now)
        if step is None and sent == len(requests):
            break
        if step is None:
            now = requests[sent].arrival_ns
            continue
        pace = slow if now // SWING_NS % 2 else 1.0
        stall = stall_ns if rng.random() < 1 / 300 else 0
        now = round(now + (step.end_ns - now) * pace + stall)
        for request in step.emitted:
            before = tokens[request.id][-1] if tokens[request.id] else 0
            tokens[request.id].append(max(before + 1, now + rng.randrange(JITTER_NS)))
    return [_record(request, point, tokens[request.id]) for request in requests]


def _record(request: Request, point: int, at: list[int]) -> RequestRecord:
    gaps = tuple(later - earlier for earlier, later in pairwise(at))
    return RequestRecord(
        point=point, index=int(request.id), outcome="ok",
        due_ns=request.arrival_ns, sent_ns=request.arrival_ns, first_ns=at[0],
        last_ns=at[-1], end_ns=at[-1], prompt_tokens=request.prompt_tokens,
        asked_tokens=request.output_tokens, output_tokens=len(at), gap_ns=gaps, gap_tokens=(1,) * len(gaps),
    )  # fmt: skip


def _run(
    folder: Path, config: EngineConfig, workload: Workload, rates: Sequence[float], **machine: float
) -> Path:
    """A run of points at `rates`; `machine` is what `_records` takes of stalls and slow times."""
    target = SimulatedTarget(config)
    plan = {
        "command": "sweep", "target": msgspec.to_builtins(target.describe()), "seed": 1,
        "workload": msgspec.to_builtins(workload), "slo": msgspec.to_builtins(SLO),
    }  # fmt: skip
    create_run(folder, plan)
    for number, rate in enumerate(rates):
        offer = msgspec.structs.replace(_offer(rate, seed=number), workload=workload)
        append_lines(folder / POINTS, [make_point(target.measure(offer), offer, SLO)])
        append_lines(folder / RECORDS, _records(config, offer, number, **machine))
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _run(tmp_path_factory.mktemp("run") / "sweep", TRUE, WORKLOAD, (8.0, 16.0, 24.0))


@pytest.fixture(scope="module")
def found(run: Path) -> Calibration:
    return calibrate([read_recorded(run)], {})


def test_the_costs_are_found_within_their_intervals(found: Calibration) -> None:
    truth = {"fixed": 3.0, "per_seq": 0.5, "per_prefill_token": 0.02, "per_context_token": 0.0}
    for part, ms in truth.items():
        cost = found.costs[part]
        assert cost.low_ms - 0.02 * ms <= ms <= cost.high_ms + 0.02 * ms, (part, cost)
        assert cost.ms == pytest.approx(ms, rel=0.1, abs=1e-4), part
    assert found.residual < 0.1
    assert found.engine.max_num_seqs == 128
    assert found.assumed == ()
    assert found.rates == (8.0, 16.0, 24.0)


def test_the_fitted_engine_replays_what_was_seen(found: Calibration) -> None:
    for one in found.replayed:
        assert one.itl_fitted_ms == pytest.approx(one.itl_ms, rel=0.05)
        assert one.ttft_fitted_ms + found.extra_ttft_ms == pytest.approx(one.ttft_ms, rel=0.10)


def _served(config: EngineConfig, slo: Slo, workload: Workload = WORKLOAD) -> float:
    """The served rate of an overloaded engine."""
    offer = msgspec.structs.replace(_offer(200, seed=9), workload=workload, drain_ns=0)
    return make_point(SimulatedTarget(config).measure(offer), offer, slo).served_rate


@pytest.mark.parametrize("seats", [4, 16, 128])
def test_it_predicts_the_capacity_at_other_limits(found: Calibration, seats: int) -> None:
    true = _served(msgspec.structs.replace(TRUE, max_num_seqs=seats), SLO)
    ours = _served(msgspec.structs.replace(found.engine, max_num_seqs=seats), SLO)
    assert ours == pytest.approx(true, rel=0.05)


LAID_OUT_ANEW = EngineConfig(
    step_cost=StepCost(
        fixed_ns=2_000_000, per_seq_ns=120_000, per_prefill_token_ns=20_000, per_prefill_step_ns=2_500_000
    ),
    max_num_seqs=128,
    max_num_batched_tokens=2048,
)
FIXED = Workload(prompt_tokens=Lengths(mean=128), output_tokens=Lengths(mean=32))


def test_what_a_step_with_prefill_costs_is_told_from_its_tokens_where_requests_come_in_clumps(
    tmp_path: Path,
) -> None:
    """At the knee four prompts share a step, in light load one has it alone: all at once tells them apart."""
    light = (15.0, 30.0, 45.0)
    clumped = read_recorded(_run(tmp_path / "clumped", LAID_OUT_ANEW, in_clumps(FIXED), light))
    even = read_recorded(_run(tmp_path / "even", LAID_OUT_ANEW, FIXED, light))
    true = _served(LAID_OUT_ANEW, SLO, FIXED)
    found = calibrate([clumped], {})
    assert found.costs["per_prefill_step"].ms == pytest.approx(2.5, rel=0.2)
    assert found.costs["per_prefill_token"].ms == pytest.approx(0.02, rel=0.1)
    assert _served(found.engine, SLO, FIXED) == pytest.approx(true, rel=0.03)
    both = calibrate([even, clumped], {})
    assert _served(both.engine, SLO, FIXED) == pytest.approx(true, rel=0.03)
    assert both.workload == FIXED
    plain = fit_steps([seen for _, seen in even.points])
    assert plain is not None
    cost = StepCost(**{part: round(getattr(plain, part)) for part in PARTS})
    without = msgspec.structs.replace(LAID_OUT_ANEW, step_cost=cost)
    assert _served(without, SLO, FIXED) < 0.85 * true


def test_stalls_of_the_machine_are_not_taken_for_the_cost_of_a_sequence(tmp_path: Path) -> None:
    stalled = read_recorded(
        _run(tmp_path / "stalled", LAID_OUT_ANEW, in_clumps(FIXED), (30.0, 45.0, 60.0), stall_ns=60_000_000)
    )
    found = calibrate([stalled], {})
    assert found.costs["per_seq"].ms == pytest.approx(0.12, rel=0.15)
    assert found.costs["fixed"].ms == pytest.approx(2.0, rel=0.15)


def test_costs_are_told_apart_on_a_machine_that_is_slow_for_seconds(tmp_path: Path) -> None:
    """Slow, it holds more sequences and reads more prompts at once; all costs are those of its mean pace."""
    swinging = _run(tmp_path / "swinging", LAID_OUT_ANEW, in_clumps(FIXED), (30.0, 45.0, 60.0), slow=2.0)
    costs = calibrate([read_recorded(swinging)], {}).costs
    fixed = costs["fixed"].ms
    assert 2.0 < fixed < 4.0
    assert costs["per_seq"].ms / fixed == pytest.approx(0.12 / 2.0, rel=0.1)
    assert costs["per_prefill_token"].ms / fixed == pytest.approx(0.02 / 2.0, rel=0.2)
    assert costs["per_prefill_step"].ms / fixed == pytest.approx(2.5 / 2.0, rel=0.2)


def test_a_run_of_a_single_point_can_be_calibrated_on(run: Path, tmp_path: Path) -> None:
    """What `knee bench` writes has an offer in its plan, where a sweep has a workload."""
    plan = {
        "command": "bench",
        "target": {},
        "offer": {"workload": msgspec.to_builtins(WORKLOAD), "rate": 8.0},
    }
    single = create_run(tmp_path / "bench", plan)
    for name in (POINTS, RECORDS):
        (single / name).write_bytes((run / name).read_bytes())
    found = calibrate([read_recorded(single)], {"max_num_seqs": 128})
    assert found.workload == WORKLOAD
    assert found.costs["fixed"].ms == pytest.approx(3.0, rel=0.1)


def test_a_server_beside_runs_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli(["calibrate", str(run), "http://127.0.0.1:9"]) == 2
    assert "http://127.0.0.1:9 beside others" in capsys.readouterr().err


def test_only_the_points_below_a_rate(run: Path) -> None:
    found = calibrate([read_recorded(run)], {"max_num_seqs": 4}, below=16)
    assert found.rates == (8.0, 16.0)
    assert found.engine.max_num_seqs == 4
    with pytest.raises(NoAnswer, match="0 points"):
        calibrate([read_recorded(run)], {}, below=1)


def test_a_run_without_records_is_told(tmp_path: Path) -> None:
    create_run(tmp_path / "run", {"command": "sweep", "workload": {}, "slo": {}})
    with pytest.raises(InputError, match="no records"):
        read_recorded(tmp_path / "run")
    with pytest.raises(InputError, match="not a run directory"):
        read_recorded(tmp_path)


@pytest.mark.parametrize("seats", [4, 16])
def test_the_predicted_knee_at_another_cap_is_the_true_one(found: Calibration, seats: int) -> None:
    """Calibrated at rates up to 24 requests/s with 128 seats; 4 seats have their knee at 18.5, 16 at 36."""
    found = msgspec.structs.replace(found, alternatives=found.alternatives[::3])
    slo = parse_slo("ttft p95 < 300ms")
    ours = msgspec.structs.replace(found.engine, max_num_seqs=seats)
    told = predict_knee(found, ours, WORKLOAD, slo)
    exact = msgspec.structs.replace(found, alternatives=(), extra_ttft_ms=0.0)
    true = predict_knee(exact, msgspec.structs.replace(TRUE, max_num_seqs=seats), WORKLOAD, slo).knee
    assert told.knee == pytest.approx(true, rel=0.03)
    assert told.low < true < told.high
    assert told.high / told.low < 1.2
    assert told.extrapolated == ""


def test_an_answer_far_beyond_what_was_seen_is_marked(found: Calibration) -> None:
    found = msgspec.structs.replace(found, alternatives=())
    told = predict_knee(found, found.engine, WORKLOAD, SLO)
    assert told.running > found.running_trusted
    assert "sequences run at once there" in told.extrapolated


def test_an_slo_that_never_holds_has_no_knee(found: Calibration) -> None:
    with pytest.raises(NoAnswer, match=r"breaks even at 1\.04 req/s"):
        predict_knee(found, found.engine, WORKLOAD, parse_slo("ttft p95 < 1ms"))


@pytest.mark.parametrize("slo", ["ttft p95 < 10000s", "itl p99 < 10s", "e2e p99 < 20000s"])
def test_an_slo_that_always_holds_has_no_knee(found: Calibration, slo: str) -> None:
    with pytest.raises(NoAnswer, match="holds for 12,000 requests even at 414 req/s, 8 times"):
        predict_knee(found, found.engine, WORKLOAD, parse_slo(slo))


def test_saved_and_read_again_it_is_the_same(found: Calibration, run: Path, tmp_path: Path) -> None:
    write_atomically(tmp_path / "cal.json", found)
    assert load_calibration(tmp_path / "cal.json") == found == load_calibration(run)


def test_the_commands(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "cal.json"
    assert cli(["calibrate", str(run), "--out", str(saved)]) == 0
    told = capsys.readouterr().out
    assert "a running sequence" in told
    assert "do not trust it beyond" in told
    like = ["simulate", "--like", str(saved), "--max-num-seqs", "4", "--rate", "5", "--duration", "40s"]
    assert cli([*like, "--warmup", "5s", "--slo", "ttft p95 < 300ms", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["engine"]["max_num_seqs"] == 4
    assert shown["engine"]["step_cost"]["per_seq_ns"] == pytest.approx(500_000, rel=0.05)
    assert shown["workload"]["prompt_tokens"]["mean"] == 128
    assert shown["prediction"]["knee"] == pytest.approx(19, rel=0.05)


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (["calibrate", "http://127.0.0.1:9"], "refuses connections", 4),
        (["calibrate", "/nowhere"], "not a run directory", 3),
        (["simulate", "--like", "/nowhere"], "/nowhere cannot be read", 3),
        (["simulate", "--like", __file__], "no calibration", 3),
        (["simulate", "--slo", "ttft p95 < 1s"], "--slo without --like", 2),
    ],
)
def test_bad_input(arguments: list[str], said: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli(arguments) == code
    assert said in capsys.readouterr().err
