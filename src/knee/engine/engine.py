"""One vLLM engine in virtual time, driven step by step.

engine = Engine(REFERENCE)
engine.add(Request("a", prompt_tokens=1000, output_tokens=200, arrival_ns=0), now_ns=0)
step = engine.next_step(now_ns=0)   # what happens at step.end_ns; call again then
"""

from collections.abc import Iterator

import msgspec

from knee.core.requests import NEVER
from knee.core.snapshot import EngineSnapshot
from knee.engine.config import EngineConfig
from knee.engine.metrics import Metrics
from knee.engine.request import Request
from knee.engine.scheduler import Scheduler

Gap = tuple[int, int, int]
"""A gap in ns, between how many pairs of tokens it was seen, and when the later ones came."""


class StepResult(msgspec.Struct, frozen=True):
    """One step: it takes `duration_ns` and ends at `end_ns`.

    Every request in `emitted` has one more output token then; those in `finished` have all of theirs (they
    are in `emitted` too). Those in `preempted` lost their blocks when the step began, and wait.
    """

    duration_ns: int
    end_ns: int
    emitted: tuple[Request, ...]
    finished: tuple[Request, ...]
    preempted: tuple[Request, ...]
    scheduled_tokens: int


class Engine:
    """The engine: requests in, steps out, metrics at any instant. Instants never run backwards."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config.checked()
        self.scheduler = Scheduler(self.config)
        self.metrics = Metrics(config.max_model_len)
        self.requests: dict[str | int, Request] = {}
        self.queued_tokens = 0  # prompt tokens of requests without a first token
        self.step_end_ns = 0
        self._pending: StepResult | None = None
        self._late: dict[Request, int] = {}  # when a decode that missed a step had its last token
        self._aborting: list[Request] = []
        self._gaps: list[Gap] = []

    def add(self, request: Request, now_ns: int) -> str:
        """Take a request; "" if it is queued, else the reason why it is not.

        `max_num_queued_reqs` and `max_num_queued_tokens`: the queue is full, as vLLM 0.29 and later count it
        (all unfinished requests; prompt tokens still to be prefilled); answered with 503. `max_model_len`: it
        is longer than that; vLLM answers 400. `unservable`: it needs more KV blocks than there are; vLLM
        takes it and never finishes it.
        """
        self.settle(now_ns)
        config = self.config
        if request.prompt_tokens + request.output_tokens > config.max_model_len:
            return "max_model_len"
        kv = self.scheduler.kv
        if kv.blocks_for(request.prompt_tokens + request.output_tokens - 1) > kv.total:
            return "unservable"
        if config.max_num_queued_reqs is not None and len(self.requests) + 1 > config.max_num_queued_reqs:
            self.metrics.rejected["max_num_queued_reqs"] += 1
            return "max_num_queued_reqs"
        if config.max_num_queued_tokens is not None and self.queued_tokens >= config.max_num_queued_tokens:
            self.metrics.rejected["max_num_queued_tokens"] += 1
            return "max_num_queued_tokens"
        request.queued_ns = now_ns
        self.requests[request.id] = request
        self.queued_tokens += request.prompt_tokens
        self.scheduler.waiting.add(request)
        return ""

    def abort(self, request_id: str | int, now_ns: int) -> bool:
        """End a request early; False if there is none of that id. In mid-step it ends with the step."""
        self.settle(now_ns)
        request = self.requests.get(request_id)
        if request is None:
            return False
        if self._pending is None:
            self._drop(request, now_ns)
        else:
            self._aborting.append(request)
        return True

    def next_step(self, now_ns: int) -> StepResult | None:
        """Begin the next step at `now_ns`; None if there is nothing to do.

        Raises:
            ValueError: the last step has not ended at `now_ns`.
        """
        self.settle(now_ns)
        if self._pending is not None:
            raise ValueError(f"the step until {self._pending.end_ns} ns is not over at {now_ns} ns")
        if not self.requests:
            return None
        last_end_ns = self.step_end_ns
        step = self.scheduler.schedule()
        assert step.planned, "a request that can never run was let in"
        cost = self.config.step_cost
        duration = cost.step_ns(len(step.planned), step.prefill_tokens, step.context_tokens)
        end_ns = now_ns + duration
        for request in step.starved + step.preempted:
            if request.first_ns != NEVER:
                self._late.setdefault(request, last_end_ns)
        for request in step.admitted:
            if request.scheduled_ns == NEVER:
                request.scheduled_ns = now_ns
        self.metrics.preemptions += len(step.preempted)
        self._emit(step.emits, last_end_ns, end_ns)
        finished = self.scheduler.finishing(self.scheduler.steps + 1)
        self.step_end_ns = end_ns
        self._pending = StepResult(
            duration,
            end_ns,
            tuple(step.emits),
            tuple(finished),
            tuple(step.preempted),
            sum(step.planned.values()),
        )
        return self._pending

    def settle(self, now_ns: int) -> None:
        """Let the step that has ended by `now_ns`, if there is one, take effect."""
        pending = self._pending
        if pending is None or pending.end_ns > now_ns:
            return
        self._pending = None
        for request in self.scheduler.finish():
            request.last_ns = request.finished_ns = pending.end_ns
            del self.requests[request.id]
            self.metrics.ended(request, request.output_tokens, "length")
        for request in self._aborting:
            self._drop(request, pending.end_ns)
        self._aborting.clear()

    def snapshot(self, at_ns: int) -> EngineSnapshot:
        """The engine's metrics at `at_ns`, under normalised names."""
        self.settle(at_ns)
        return EngineSnapshot(
            gauges=self.gauges(),
            counters=self.metrics.counters(),
            histograms=self.metrics.histograms(),
            info=cache_config_info(self.config),
        )

    def gauges(self) -> dict[str, float]:
        """The gauges as they stood when the last step ended."""
        scheduler = self.scheduler
        waiting = float(len(scheduler.waiting))
        return {
            "num_requests_running": float(len(scheduler.running)),
            "num_requests_waiting": waiting,
            "num_requests_waiting_by_reason{capacity}": waiting,
            "num_requests_waiting_by_reason{deferred}": 0.0,
            "kv_cache_usage_perc": scheduler.kv.usage,
        }

    def unfinished(self) -> Iterator[tuple[Request, int, int]]:
        """Between two steps: requests with some of their tokens, how many, and when the last one came."""
        for request in self.requests.values():
            if request.first_ns != NEVER:
                last_ns = self._late.get(request, self.step_end_ns)
                yield request, request.made_by(self.scheduler.steps), last_ns

    def take_gaps(self) -> list[Gap]:
        """The gaps between tokens since the last call, in order of their ends."""
        gaps, self._gaps = self._gaps, []
        return gaps

    def _gap(self, ns: int, count: int, at_ns: int) -> None:
        self.metrics.inter_token.observe(ns, count)
        self._gaps.append((ns, count, at_ns))

    def _emit(self, emits: list[Request], last_end_ns: int, end_ns: int) -> None:
        """Count one token for each of `emits`: a first one, or one after a gap."""
        metrics = self.metrics
        plain = prompt_tokens = 0
        for request in emits:
            if request.first_ns == NEVER:
                request.first_ns = end_ns
                self.queued_tokens -= request.prompt_tokens
                prompt_tokens += request.prompt_tokens
                metrics.started(request)
            elif request in self._late:
                self._gap(end_ns - self._late.pop(request), 1, end_ns)
            else:
                plain += 1
        if plain:
            self._gap(end_ns - last_end_ns, plain, end_ns)
        if emits:
            metrics.generated += len(emits)
            metrics.iteration_tokens.observe(len(emits) + prompt_tokens)

    def _drop(self, request: Request, now_ns: int) -> None:
        if self.requests.pop(request.id, None) is None:
            return  # it ended in the step that was running
        self._late.pop(request, None)
        if request.first_ns == NEVER:
            self.queued_tokens -= request.prompt_tokens
        self.scheduler.leave(request)
        request.last_ns = request.finished_ns = now_ns
        self.metrics.ended(request, request.made, "abort")


def cache_config_info(config: EngineConfig) -> dict[str, str]:
    """The labels of `vllm:cache_config_info` that say something here (0.24 and later)."""
    per_request = -(-config.max_model_len // config.block_size)
    return {
        "block_size": str(config.block_size),
        "num_gpu_blocks": str(config.num_gpu_blocks),
        "cache_dtype": "auto",
        "enable_prefix_caching": str(config.enable_prefix_caching),
        "kv_cache_size_tokens": str(config.num_gpu_blocks * config.block_size),
        "kv_cache_max_concurrency": str(config.num_gpu_blocks / per_request),
    }
