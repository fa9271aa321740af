"""A measured server to deploy: figures of the reference engine (knee at 19 req/s, 1,000 in, 200 out)."""

from knee.core.lock import Lock
from knee.core.point import Judged, Knee, Point, Summary
from knee.core.slo import parse_slo
from knee.core.snapshot import EngineWindow, GaugeStats, Window

S = 1_000_000_000


def gauge(mean: float) -> GaugeStats:
    return GaugeStats(first=mean, last=mean, low=0, high=2 * mean, mean=mean, samples=60)


def summary(p50: float, p99: float | None, mean: float | None) -> Summary:
    return Summary(n=1000, p50=p50, p90=p50 * 1.2, p95=p50 * 1.3, p99=p99, mean_finite=mean)


def point_at(rate: float, holds: bool | None = True, e2e_mean: float | None = 3000.0) -> Point:
    slo = parse_slo("ttft p95 < 1s")
    judged = Judged(objective=slo.objectives[0], value=400.0, low=350.0, high=450.0, holds=holds, n=1000)
    window = Window(
        start_ns=0,
        end_ns=60 * S,
        engines={
            "a/0": EngineWindow(
                gauges={"num_requests_waiting": gauge(2.4), "num_requests_running": gauge(54.0)}
            )
        },
    )
    return Point(
        rate=rate,
        attained_rate=rate,
        served_rate=rate,
        seed=1,
        window_start_ns=0,
        window_end_ns=60 * S,
        spent_ns=70 * S,
        offered=1000,
        ok=1000,
        failed=0,
        rejected=0,
        censored=0,
        ttft_ms=summary(200, 900, 240),
        itl_ms=summary(14, 30, 14),
        tpot_ms=summary(14, 20, 14),
        e2e_ms=summary(2900, 4100.0, e2e_mean),
        send_lag_ms=summary(0.1, 0.5, 0.1),
        output_tokens_per_s=rate * 200,
        prompt_tokens_mean=1000,
        output_tokens_mean=200,
        judged=(judged,),
        window=window,
    )


def lock_of(
    version: str = "0.32.0",
    flags: dict[str, str] | None = None,
    holds: float | None = 19.0,
    point: Point | None = None,
    startup_s: float | None = None,
) -> Lock:
    slo = parse_slo("ttft p95 < 1s")
    return Lock(
        tool_version="0.1.0",
        vllm_version=version,
        model="meta-llama/Llama-3.1-8B-Instruct",
        gpu="NVIDIA H100 80GB HBM3",
        flags={"max_num_seqs": "128", "max_num_batched_tokens": "4096"} if flags is None else flags,
        workload={"prompt_tokens": {"mean": 1000.0}, "output_tokens": {"mean": 200.0}},
        slo=slo,
        knee=Knee(
            slo=slo, holds=holds, breaks=20.0, estimate=19.4, confidence=0.95, reason="the SLO breaks at 20"
        ),
        at_knee=point_at(19.0) if point is None else point,
        startup_s=startup_s,
    )
