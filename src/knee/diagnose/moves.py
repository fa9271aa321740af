"""The one flag that moves a limit, and the value that the numbers give it."""

import math

from knee.diagnose.signals import Signals
from knee.diagnose.verdict import Move

STEP_TARGET_S = 0.2
"""Without an ITL objective, a step should take no longer: the bound on time between tokens that Sarathi-Serve
uses by default (Agrawal et al., OSDI 2024)."""

AIM = 0.85
"""Aim this far below an objective: estimates are means, and prompts come in bunches."""

HEADROOM = 1.3
"""Steps must carry this many times the prompt tokens that come."""

MOST_AT_ONCE = 4
"""A flag moves by at most this factor between two measurements."""


def lower_max_num_seqs(s: Signals) -> Move | None:
    """Admit only what the cache can carry: KV tokens / tokens per request."""
    if not s.kv_tokens or not s.request_tokens:
        return None
    fits = max(1, math.floor(s.kv_tokens / s.request_tokens))
    high = s.running.high if s.running else None
    if (s.cap is not None and fits >= s.cap) or (s.cap is None and high is not None and fits >= high):
        return None
    return Move(
        flag="max_num_seqs",
        current=_text(s.cap),
        to=str(fits),
        arithmetic=f"{s.kv_tokens:,.0f} KV tokens / {s.request_tokens:,.0f} tokens per request = {fits}",
        effect="preemptions stop, and with them the work that is done twice",
        price="more requests wait before they run: watch the tail of the time to first token",
    )


def fp8_kv(s: Signals) -> Move | None:
    """Store the KV cache in one byte an element."""
    dtype = s.engine.info.get("cache_dtype") or s.facts.flags.get("kv_cache_dtype") or "auto"
    if dtype != "auto" and not dtype.startswith(("bfloat16", "float16", "half")):
        return None
    return Move(
        flag="kv_cache_dtype",
        current=dtype,
        to="fp8",
        arithmetic="one byte an element instead of two: about twice the tokens"
        + (f", {s.kv_tokens:,.0f} → {2 * s.kv_tokens:,.0f}" if s.kv_tokens else ""),
        effect="about twice as many requests fit",
        price="precision of attention: compare outputs on a fixed evaluation set; needs a device with fp8",
    )


def more_memory(s: Signals) -> Move | None:
    """Give the cache more of the device, where there is more to give."""
    text = s.engine.info.get("gpu_memory_utilization") or s.facts.flags.get("gpu_memory_utilization") or ""
    try:
        now = float(text)
    except ValueError:
        now = 0.92
    if now < 0.945:
        return Move(
            flag="gpu_memory_utilization",
            current=text,
            to="0.95",
            arithmetic=f"{0.95 - now:.2f} of the device's memory goes to the cache",
            effect="more requests fit",
            price="less room for peaks outside the cache: a start that succeeds can still run out of "
            "memory under load",
        )
    return Move(
        flag="tensor_parallel_size",
        current=s.facts.flags.get("tensor_parallel_size", ""),
        to=str(2 * int(s.facts.number("tensor_parallel_size") or 1)),
        arithmetic="weights are split over twice the devices; what they leave goes to the cache",
        effect="more requests fit, and each step is faster",
        price="twice the devices, and their synchronisation in every layer",
    )


def raise_max_num_seqs(s: Signals, cap: float, *, with_twice_the_cache: bool = False) -> Move | None:
    """Let in as many as wait, as far as the cache carries them."""
    waiting = s.waiting.high if s.waiting else cap
    wanted = max(2 * cap, cap + waiting)
    arithmetic = f"{cap:g} run and up to {waiting:g} wait"
    kv = s.queued_kv or s.kv
    fits = MOST_AT_ONCE * cap
    if kv is not None and kv.mean > 0:
        carries = math.floor(0.9 * cap / kv.mean * (2 if with_twice_the_cache else 1))
        if carries < fits:
            fits = carries
            twice = "twice the cache" if with_twice_the_cache else "the cache"
            arithmetic += f"; at {kv.mean:.0%} of the cache for {cap:g}, {carries} fit in 90% of {twice}"
    to = min(wanted, fits)
    if s.budget is not None and to > s.budget:
        to = s.budget
        arithmetic += f"; max_num_batched_tokens is {s.budget:g}"
    to = math.floor(to) if to < 16 else math.floor(to / 8) * 8
    if to <= cap:
        return None
    return Move(
        flag="max_num_seqs",
        current=_text(s.cap) or f"{cap:g} (as seen)",
        to=str(to),
        arithmetic=arithmetic,
        effect="the queue moves into the batch: time to first token falls",
        price="larger batches: the gap between tokens grows a little; judge by time to first token and "
        "its tail",
    )


def raise_budget(s: Signals) -> Move | None:
    """Let a step take more prompt tokens."""
    budget = s.budget
    if budget is None:
        return None
    return Move(
        flag="max_num_batched_tokens",
        current=_text(budget),
        to=str(int(2 * budget)),
        arithmetic=f"steps are full at {budget:g} tokens",
        effect="more prompt tokens a step: the fixed cost of a step is paid less often",
        price="steps with prompts take longer: the gap between tokens grows at the tail",
    )


def lower_budget(s: Signals) -> Move | None:
    """Shorten the steps that carry prompts: to the time they may take, over that of a prompt token.

    max_num_batched_tokens cannot go below max_num_seqs (vLLM refuses); below that,
    long_prefill_token_threshold caps one prompt's share of a step. None where steps that short could not
    carry the prompts that come: then one objective is only traded for the other.
    """
    target_s = s.facts.bound_s("itl") or s.facts.bound_s("tpot") or STEP_TARGET_S
    budget, base_s, token_s = s.budget, step_base_s(s), prompt_token_s(s)
    if token_s is None or target_s <= base_s:
        return None
    tokens = (AIM * target_s - base_s) / token_s
    carried = HEADROOM * (s.prefill_rate or 0.0) * AIM * target_s
    if tokens < 1 or (s.facts.bound_s("ttft") is not None and carried > 1.5 * tokens):
        return None
    tokens = max(tokens, carried) if s.facts.bound_s("ttft") is not None else tokens
    to = math.floor(tokens) if tokens < 32 else math.floor(tokens / 32) * 32
    capped = s.cap is not None and to < s.cap
    if not capped and budget is not None and to >= budget:
        return None
    return Move(
        flag="long_prefill_token_threshold" if capped else "max_num_batched_tokens",
        current=s.facts.flags.get("long_prefill_token_threshold", "") if capped else _text(budget),
        to=str(int(to)),
        arithmetic=f"({AIM * target_s * 1000:.0f} ms a step - {base_s * 1000:.1f} ms without prompts) "
        f"/ {token_s * 1e6:.1f} us a prompt token = {tokens:,.0f}",
        effect="steps that carry prompts get shorter, and with them the longest gaps between tokens",
        price="prompts take more steps: time to first token grows for long ones",
    )


def step_base_s(s: Signals) -> float:
    """What a step without prompts takes: the median gap between tokens (of a bucket, its middle), else 0."""
    if s.itl_p50_s is not None:
        return s.itl_p50_s
    middle = (s.itl_p50.low + s.itl_p50.high) / 2 if s.itl_p50 and s.itl_p50.high else 0.0
    return s.facts.light_itl_s or middle


def prompt_token_s(s: Signals) -> float | None:
    """What one prompt token adds to a step.

    From the mean prefill, which takes one step for every budget's worth of prompt; else from the longest
    common step, taken as full.
    """
    if s.prompt_tokens and s.prefill_s:
        computed = max(1.0, s.prompt_tokens * (1 - (s.cached_share or 0.0)))
        steps = math.ceil(computed / s.budget) if s.budget else 1
        beyond = s.prefill_s - steps * step_base_s(s)
        if beyond > 0:
            return beyond / computed
    if s.budget is not None and s.itl_p99 is not None and s.itl_p99.high is not None:
        return s.itl_p99.high / s.budget
    return None


def more_api_servers(s: Signals) -> Move:
    """Give HTTP, tokenization and detokenization more processes."""
    now = int(s.facts.number("api_server_count") or 1)
    return Move(
        flag="api_server_count",
        current=s.facts.flags.get("api_server_count", "") or "1",
        to=str(2 * now),
        arithmetic=f"{now} API server process, one core of Python each",
        effect="tokenization and streaming no longer wait for one another",
        price="more CPU and host memory; metrics come from several processes (--api-server-count, vLLM "
        "0.9.1+)",
    )


def shorter_context(s: Signals) -> Move | None:
    """Accept no request that can never run."""
    if not s.kv_tokens:
        return None
    return Move(
        flag="max_model_len",
        current=s.facts.flags.get("max_model_len", ""),
        to=str(int(s.kv_tokens)),
        arithmetic=f"the cache holds {s.kv_tokens:,.0f} tokens; a longer request never fits",
        effect="requests that can never run are refused with 400 at once, and block nobody",
        price="the longest requests are refused; more KV memory would serve them",
    )


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:g}"
