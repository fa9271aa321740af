"""What an engine is: its flags, in vLLM's spelling, and what a step costs.

The rules that changed between vLLM versions stand here as switches; `rules_of` sets them for a version.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from knee.core.errors import UsageError
from knee.core.units import NS_PER_MS

Policy = Literal["fcfs", "priority"]


class StepCost(msgspec.Struct, frozen=True, kw_only=True):
    """What one engine step takes, in integer nanoseconds, so that steps add up the same in any order.

    fixed + per sequence in the batch + per prefill token computed + once where there is any + per token of
    context that attention reads (of every sequence in the batch: the tokens it holds when the step ends).
    What a step with prefill costs beyond its tokens: a GPU leaves the CUDA graph of pure decoding, and on any
    server the batch is laid out anew.
    """

    fixed_ns: int
    per_seq_ns: int
    per_prefill_token_ns: int
    per_context_token_ns: int = 0
    per_prefill_step_ns: int = 0

    def step_ns(self, seqs: int, prefill_tokens: int, context_tokens: int = 0) -> int:
        """Nanoseconds of one step."""
        return (
            self.fixed_ns
            + self.per_seq_ns * seqs
            + (self.per_prefill_step_ns + self.per_prefill_token_ns * prefill_tokens if prefill_tokens else 0)
            + self.per_context_token_ns * context_tokens
        )


COST_FLAGS = {
    "step_ms": "fixed_ns",
    "seq_ms": "per_seq_ns",
    "prefill_token_ms": "per_prefill_token_ns",
    "context_token_ms": "per_context_token_ns",
    "prefill_step_ms": "per_prefill_step_ns",
}
"""What people give in milliseconds, and the part of a `StepCost` that it is."""


def step_cost_from(ms: Mapping[str, Any]) -> StepCost:
    """The step cost of what COST_FLAGS name, in milliseconds; what is not there costs nothing."""
    return StepCost(**{part: round(ms.get(flag, 0.0) * NS_PER_MS) for flag, part in COST_FLAGS.items()})


class FrontEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The API servers before the engine: `servers` alike, each doing one thing at a time.

    A request costs `per_request_ns` (HTTP, tokenization) before the engine sees it, and every token that is
    streamed costs `per_token_ns` (detokenization, a chunk on the wire). What costs nothing does not wait for
    a server either; zero cost for both means no front end.
    """

    servers: int = 1
    per_request_ns: int = 0
    per_token_ns: int = 0


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One engine. Names and meanings are vLLM's; `num_gpu_blocks` counts the null block, as vLLM does."""

    step_cost: StepCost
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    max_model_len: int = 8192
    block_size: int = 16
    num_gpu_blocks: int = 20_481
    enable_prefix_caching: bool = False
    long_prefill_token_threshold: int = 0
    watermark: float = 0.0
    scheduling_policy: Policy = "fcfs"
    scheduler_reserve_full_isl: bool = True
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    async_scheduling: bool = False
    front_end: FrontEnd = FrontEnd()
    version: str = "0.30.0"

    @property
    def kv_tokens(self) -> int:
        """Tokens of context the KV cache holds; one block is vLLM's null block."""
        return (self.num_gpu_blocks - 1) * self.block_size

    def checked(self) -> "EngineConfig":
        """This configuration, if an engine can run with it.

        Raises:
            UsageError: a value is out of range, by vLLM's own rules where vLLM has one.
        """
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size"):
            _at_least(name, getattr(self, name), 1)
        _at_least("num_gpu_blocks", self.num_gpu_blocks, 2, "one is the null block")
        _at_least("long_prefill_token_threshold", self.long_prefill_token_threshold, 0)
        for name in ("max_num_queued_reqs", "max_num_queued_tokens"):
            limit = getattr(self, name)
            _at_least(name, 1 if limit is None else limit, 1, "leave it out for no limit")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise UsageError(
                f"{self.max_num_batched_tokens} max_num_batched_tokens for {self.max_num_seqs} max_num_seqs",
                "vLLM refuses this too: every running sequence needs a token a step",
            )
        if not 0 <= self.watermark < 1:
            raise UsageError(
                f"a watermark of {self.watermark}", "it is a share of the blocks, from 0 to below 1"
            )
        for part in msgspec.structs.fields(StepCost):
            _at_least(part.name, getattr(self.step_cost, part.name), 0)
        _at_least("fixed_ns + per_seq_ns", self.step_cost.fixed_ns + self.step_cost.per_seq_ns, 1)
        _at_least("front end servers", self.front_end.servers, 1)
        _at_least("front end cost", min(self.front_end.per_request_ns, self.front_end.per_token_ns), 0)
        return self


def _at_least(name: str, value: int, least: int, hint: str = "") -> None:
    if value < least:
        raise UsageError(f"{name} must be at least {least}, not {value}", hint)


REFERENCE = EngineConfig(
    step_cost=StepCost(fixed_ns=7_000_000, per_seq_ns=100_000, per_prefill_token_ns=18_000),
    max_num_seqs=128,
    max_num_batched_tokens=4096,
    max_model_len=8192,
    num_gpu_blocks=65_537,
)
"""The model of the reference document: 7 ms a step, 0.10 ms a sequence, 0.018 ms a prefill token.

Its KV cache (1,048,576 tokens = 128 sequences of 8,192) never binds."""
