"""One engine's window as the quantities that rules speak of. None means that it was not shown, never zero."""

import msgspec

from knee.core.snapshot import EngineWindow, GaugeStats, Histogram
from knee.diagnose.facts import Facts
from knee.metrics.window import Bracket, mean, quantile

WAITING, RUNNING, KV = "num_requests_waiting", "num_requests_running", "kv_cache_usage_perc"
TTFT, ITL = "time_to_first_token_seconds", "inter_token_latency_seconds"
SMALLEST_BUDGET = 2048
"""The smallest max_num_batched_tokens that a server gets by default (catalog, batch defaults)."""

QUEUE, PREFILL = "request_queue_time_seconds", "request_prefill_time_seconds"


class Signals(msgspec.Struct, frozen=True, kw_only=True):
    """Means in seconds and tokens over the window; `queued_*`: over the instants at which requests waited.

    `kv_tokens` is the cache's capacity, `request_tokens` the mean of prompt + output of finished requests,
    `cached_share` the share of prompt tokens that the prefix cache served. `fill` is the mean share of
    the token budget that a step uses. `front_s` is what TTFT holds beyond queue and prefill: HTTP,
    tokenization, detokenization.
    """

    facts: Facts
    seconds: float
    samples: int
    engine: EngineWindow
    running: GaugeStats | None
    waiting: GaugeStats | None
    kv: GaugeStats | None
    queued_running: GaugeStats | None
    queued_kv: GaugeStats | None
    preemptions: float | None
    finished: float | None
    generated: float | None
    prefilled: float | None
    steps: float | None
    ttft_s: float | None
    queue_s: float | None
    prefill_s: float | None
    itl_s: float | None
    itl_p50: Bracket | None
    itl_p99: Bracket | None
    prompt_tokens: float | None
    output_tokens: float | None
    cached_share: float | None
    kv_tokens: float | None
    cap: float | None
    budget: float | None
    fill: float | None

    @property
    def request_tokens(self) -> float | None:
        """Mean tokens a request holds when it ends."""
        if self.prompt_tokens is None or self.output_tokens is None:
            return None
        return self.prompt_tokens + self.output_tokens

    @property
    def front_s(self) -> float | None:
        """TTFT - queue - prefill, at least zero.

        vLLM records queue and prefill when a request ends, TTFT at its first token: while a queue grows, the
        former lag behind. So the queue counts as at least what waits over what starts (Little's law).
        """
        if self.ttft_s is None or self.queue_s is None or self.prefill_s is None:
            return None
        started = self.engine.histograms[TTFT].count / self.seconds if self.seconds > 0 else 0.0
        waits = self.waiting.mean / started if self.waiting is not None and started > 0 else 0.0
        return max(0.0, self.ttft_s - max(self.queue_s, waits) - self.prefill_s)

    @property
    def itl_p50_s(self) -> float | None:
        """p50 of the gap between tokens as a client saw it; None without one."""
        point = self.facts.point
        return point.itl_ms.p50 / 1000 if point is not None and point.itl_ms.p50 else None

    @property
    def itl_p99_s(self) -> float | None:
        """p99 of the gap between tokens as a client saw it; None without one.

        Where there were too few samples for a percentile of its own, the estimate that was judged stands in.
        """
        point = self.facts.point
        if point is None or point.itl_ms.p99:
            return point.itl_ms.p99 / 1000 if point is not None and point.itl_ms.p99 else None
        judged = [j.value for j in point.judged if j.objective.metric == "itl" and j.value is not None]
        return max(judged) / 1000 if judged else None

    @property
    def batch_gain(self) -> float | None:
        """By what factor a batch of twice the size serves more.

        A step takes `light` alone and `now` in the batch at hand; of twice the batch it takes
        light + 2 (now - light), so twice the work is done in (2 - light / now) times the time.
        """
        light, now = self.facts.light_itl_s, self.itl_s
        if light is None or not now:
            return None
        return 2 / (2 - min(1.0, light / now))

    @property
    def prefill_rate(self) -> float | None:
        """Prompt tokens computed per second of the window."""
        return self.prefilled / self.seconds if self.prefilled is not None and self.seconds > 0 else None

    @property
    def moving(self) -> bool | None:
        """Whether requests came and went: only then does a constant number of running ones mean a cap."""
        counts = [count for count in (self.finished, self.prefilled) if count is not None]
        return any(count > 0 for count in counts) if counts else None


def signals(engine: EngineWindow, seconds: float, facts: Facts) -> Signals:
    """The signals of one engine over a window of `seconds` (0 where there was one instant)."""
    gauges, counters, histograms = engine.gauges, engine.counters, engine.histograms
    itl = histograms.get(ITL)
    prompt, cached = counters.get("prompt_tokens"), counters.get("prompt_tokens_cached")
    computed = histograms.get("request_prefill_kv_computed_tokens")
    queries, hits = counters.get("prefix_cache_queries"), counters.get("prefix_cache_hits")
    share = _ratio(cached, prompt) if cached is not None else _ratio(hits, queries)
    budget = facts.number("max_num_scheduled_tokens") or facts.number("max_num_batched_tokens")
    steps = histograms.get("iteration_tokens")
    prefilled = prompt * (1 - (share or 0.0)) if prompt is not None else (computed.sum if computed else None)
    return Signals(
        facts=facts,
        seconds=seconds,
        samples=max((stats.samples for stats in gauges.values()), default=0),
        engine=engine,
        running=gauges.get(RUNNING),
        waiting=gauges.get(WAITING),
        kv=gauges.get(KV),
        queued_running=engine.queued.get(RUNNING),
        queued_kv=engine.queued.get(KV),
        preemptions=_total(counters, "num_preemptions"),
        finished=_total(counters, "request_success"),
        generated=counters.get("generation_tokens"),
        prefilled=prefilled,
        steps=steps.count if steps else None,
        ttft_s=_mean(histograms.get(TTFT)),
        queue_s=_mean(histograms.get(QUEUE)),
        prefill_s=_mean(histograms.get(PREFILL)),
        itl_s=_mean(itl),
        itl_p50=quantile(itl, 0.5) if itl else None,
        itl_p99=quantile(itl, 0.99) if itl else None,
        prompt_tokens=_mean(histograms.get("request_prompt_tokens")),
        output_tokens=_mean(histograms.get("request_generation_tokens")),
        cached_share=share,
        kv_tokens=kv_tokens(engine.info, facts),
        cap=facts.number("max_num_active_seqs") or facts.number("max_num_seqs"),
        budget=budget,
        fill=_fill(steps, budget),
    )


def kv_tokens(info: dict[str, str], facts: Facts) -> float | None:
    """Tokens the KV cache holds: as the server states it, else blocks x block size.

    The product overstates hybrid models (vLLM's own label `kv_cache_size_tokens`, 0.24+, does not); block 0
    is vLLM's null block (v1/core/block_pool.py).
    """
    for known in (info, facts.flags):
        try:
            stated = float(known["kv_cache_size_tokens"])
        except (KeyError, ValueError):
            continue
        if stated > 0:
            return stated
    try:
        return max(0.0, float(info["num_gpu_blocks"]) - 1) * float(info["block_size"]) or None
    except (KeyError, ValueError):
        return None


def _fill(steps: Histogram | None, budget: float | None) -> float | None:
    """Mean tokens of a step over the budget.

    Only the mean is used: vLLM counts a prompt's tokens in the step that ends its prefill, however many steps
    it took (v1/metrics/stats.py, IterationStats), so single steps look emptier or fuller than they are.
    Without the budget, steps that would be empty under the smallest default one have room under any.
    """
    tokens = mean(steps) if steps else None
    if tokens is None:
        return None
    if budget is not None:
        return tokens / budget
    least = tokens / SMALLEST_BUDGET
    return least if least < 0.15 else None


def _total(counters: dict[str, float], name: str) -> float | None:
    """A counter, summed over its further label where it has one (reasons of preemptions, of endings)."""
    if name in counters:
        return counters[name]
    parts = [value for key, value in counters.items() if key.startswith(name + "{")]
    return sum(parts) if parts else None


def _mean(histogram: Histogram | None) -> float | None:
    return mean(histogram) if histogram else None


def _ratio(part: float | None, whole: float | None) -> float | None:
    return min(1.0, part / whole) if part is not None and whole else None
