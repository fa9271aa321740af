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
from knee.engine.quiet import decode_growth
from knee.engine.request import Request
from knee.engine.scheduler import Scheduler
from knee.engine.step import Step


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


NOTHING_LEFT = Step()
"""A step whose tokens have been counted; who ends with it has not."""


class Engine:
    """The engine: requests in, steps out, metrics at any instant. Instants never run backwards."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config.checked()
        self.scheduler = Scheduler(self.config)
        self.metrics = Metrics(config.max_model_len)
        self.requests: dict[str | int, Request] = {}
        self.queued_tokens = 0  # prompt tokens of requests without a first token
        self.step_end_ns = 0
        self.uneven = False  # the last step left out decodes: their next gaps are longer than the others'
        self._taken = 0
        self._pending: Step | None = None
        self._began_ns = 0  # when the step before the pending one ended
        self._late: dict[Request, int] = {}  # when a decode that missed a step had its last token
        self._aborting: list[Request] = []

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
        request.rank = (request.priority, request.arrival_ns, self._taken)
        self._taken += 1
        self.scheduler.add(request, busy=bool(self.requests))
        self.requests[request.id] = request
        self.queued_tokens += request.prompt_tokens
        return ""

    def abort(self, request_id: str | int, now_ns: int) -> bool:
        """End a request early; False if there is none of that id. In mid-step it ends with the step."""
        self.settle(now_ns)
        request = self.requests.get(request_id)
        if request is None:
            return False
        if self._pending is None:
            self._drop(request, now_ns)
            if not self.requests:
                self.scheduler.catch_up()
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
            raise ValueError(f"the step until {self.step_end_ns} ns is not over at {now_ns} ns")
        if not self.requests:
            return None
        step = self.scheduler.plan()
        assert step.planned, "a request that can never run was let in"
        end_ns = self.begin(step, now_ns)
        return StepResult(
            duration_ns=end_ns - now_ns,
            end_ns=end_ns,
            emitted=tuple(step.emits),
            finished=tuple(self.scheduler.finishing(self.scheduler.steps + 1)),
            preempted=tuple(step.preempted),
            scheduled_tokens=sum(step.planned.values()),
        )

    def begin(self, step: Step, now_ns: int) -> int:
        """Let a planned step run from `now_ns`; when it ends. It takes effect when that is settled."""
        assert self._pending is None
        metrics = self.metrics
        for request in step.starved + step.preempted:
            if request.first_ns != NEVER:
                self._late.setdefault(request, self.step_end_ns)
        for request in step.admitted:
            if request.scheduled_ns == NEVER:
                request.scheduled_ns = now_ns
                if self.config.enable_prefix_caching:
                    metrics.cache_queries += request.target
                    metrics.cache_hits += request.cached_tokens
        metrics.preemptions += len(step.preempted)
        self.uneven = bool(step.starved)
        seqs = step.decodes + len(step.planned)
        self._pending = step
        self._began_ns = self.step_end_ns
        self.step_end_ns = now_ns + self.config.step_cost.step_ns(
            seqs, step.prefill_tokens, step.context_tokens
        )
        return self.step_end_ns

    def decode(self, steps: int, now_ns: int) -> int:
        """Let `steps` steps run from `now_ns` in which nothing but decoding happens; when the last one ends.

        The caller knows that there are blocks for them, and that no request ends before the last one.
        """
        scheduler, cost = self.scheduler, self.config.step_cost
        decodes = len(scheduler.running)
        context = scheduler.decode_context + decodes * (scheduler.steps + 1)
        first_ns, longer_ns = cost.step_ns(decodes, 0, context), cost.per_context_token_ns * decodes
        scheduler.kv.take(decode_growth(scheduler, steps))
        scheduler.steps += steps - 1  # the last one is finished when it is settled
        end_ns = now_ns
        if longer_ns:
            for i in range(steps):
                end_ns += first_ns + i * longer_ns
                self.metrics.stepped((first_ns + i * longer_ns, decodes, end_ns, decodes, 1))
        else:
            end_ns += steps * first_ns
            if steps > 1:  # only the last one may end past the instant that somebody waits for
                before = steps - 1
                self.metrics.stepped((first_ns, decodes * before, end_ns - first_ns, decodes, before))
            self.metrics.stepped((first_ns, decodes, end_ns, decodes, 1))
        self.metrics.generated += decodes * steps
        self._pending = NOTHING_LEFT
        self.step_end_ns = end_ns
        return end_ns

    def settle(self, now_ns: int) -> list[Request]:
        """Let the step that has ended by `now_ns`, if there is one, take effect: the requests that end."""
        step = self._pending
        if step is None or self.step_end_ns > now_ns:
            return []
        self._pending = None
        end_ns = self.step_end_ns
        if step is not NOTHING_LEFT:
            self._emit(step, end_ns)
        done = self.scheduler.finish()
        for request in done:
            request.last_ns = request.finished_ns = end_ns
            del self.requests[request.id]
            self.metrics.ended(request, request.output_tokens, "length")
        for request in self._aborting:
            self._drop(request, end_ns)
        self._aborting.clear()
        if not self.requests:
            self.scheduler.catch_up()
        return done

    def snapshot(self, at_ns: int) -> EngineSnapshot:
        """The engine's metrics at `at_ns`, under normalised names."""
        self.settle(at_ns)
        return self.snapshot_of(self.gauges())

    def snapshot_of(self, gauges: dict[str, float]) -> EngineSnapshot:
        """The engine's metrics, with these gauges."""
        return EngineSnapshot(
            gauges=gauges,
            counters=self.metrics.counters(),
            histograms=self.metrics.histograms(),
            info=cache_config_info(self.config),
        )

    def gauges(self) -> dict[str, float]:
        """The gauges as they stood when the last step ended."""
        scheduler = self.scheduler
        waiting = len(scheduler.waiting) + len(scheduler.incoming)
        return gauges_of(len(scheduler.running), waiting, scheduler.kv.usage)

    def unfinished(self) -> Iterator[tuple[Request, int, int, int]]:
        """Between steps, requests with some of their tokens: when the first came, how many, when the last."""
        for request in self.requests.values():
            if request.first_ns != NEVER:
                last_ns = self._late.get(request, self.step_end_ns)
                yield request, request.first_ns, request.made_by(self.scheduler.steps), last_ns

    def _emit(self, step: Step, end_ns: int) -> None:
        """Count a token for each request that gets one: its first, or one after a gap."""
        metrics = self.metrics
        plain, prompt_tokens = step.decodes, 0
        for request in step.emits:
            if request.first_ns == NEVER:
                request.first_ns = end_ns
                self.queued_tokens -= request.prompt_tokens
                prompt_tokens += request.prompt_tokens
                metrics.started(request)
            elif request in self._late:
                metrics.stepped((end_ns - self._late.pop(request), 1, end_ns, 0, 0))
            else:
                plain += 1
        tokens = step.decodes + len(step.emits)
        if tokens:
            metrics.generated += tokens
            metrics.stepped((end_ns - self._began_ns, plain, end_ns, tokens + prompt_tokens, 1))

    def _drop(self, request: Request, now_ns: int) -> None:
        if self.requests.pop(request.id, None) is None:
            return  # it ended in the step that was running
        self._late.pop(request, None)
        if request.first_ns == NEVER:
            self.queued_tokens -= request.prompt_tokens
        self.scheduler.leave(request)
        request.last_ns = request.finished_ns = now_ns
        self.metrics.ended(request, request.made, "abort")


def gauges_of(running: int, waiting: int, usage: float) -> dict[str, float]:
    """The gauges under their normalised names."""
    return {
        "num_requests_running": float(running),
        "num_requests_waiting": float(waiting),
        "num_requests_waiting_by_reason{capacity}": float(waiting),
        "num_requests_waiting_by_reason{deferred}": 0.0,
        "kv_cache_usage_perc": usage,
    }


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
