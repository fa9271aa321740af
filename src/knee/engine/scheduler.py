"""Who runs in the next step: vLLM V1's scheduler (v1/core/sched/scheduler.py, 0.19 to 0.33).

Running requests first, in the order in which they were admitted: a decode takes one token, a prefill what
the token budget and `long_prefill_token_threshold` leave. Who needs a KV block when none is free takes it
from the last running request, which starts over later (recompute). Then, unless someone was preempted,
waiting requests join while tokens, seats and blocks last; the first that does not fit stops the rest.
"""

import heapq

from knee.core.requests import NEVER
from knee.engine.config import EngineConfig
from knee.engine.kv import KvCache
from knee.engine.request import Request
from knee.engine.waiting import waiting


class Step:
    """What one step does: who takes part with how many tokens, and what that makes."""

    __slots__ = ("admitted", "context_tokens", "emits", "planned", "preempted", "prefill_tokens", "starved")

    def __init__(self) -> None:
        self.planned: dict[Request, int] = {}
        self.admitted: list[Request] = []
        self.preempted: list[Request] = []
        self.starved: list[Request] = []  # decodes that got no token of the budget
        self.emits: list[Request] = []
        self.prefill_tokens = 0
        self.context_tokens = 0


class Scheduler:
    """The requests of one engine and the rules by which they run.

    `steps` counts the steps done. `running` is keyed by serial number, in the order of admission; `ends`
    holds, by the number of steps after which they end, those that decode, `ending` those numbers as a heap.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.kv = KvCache(config)
        self.waiting = waiting(config.scheduling_policy)
        self.running: dict[int, Request] = {}
        self.steps = 0
        self.ends: dict[int, list[Request]] = {}
        self.ending: list[int] = []
        self._serial = 0

    def schedule(self) -> Step:
        """Plan the next step, take the blocks it needs, and move on the prefills that are in it."""
        step = Step()
        budget = self._schedule_running(step)
        if not step.preempted:
            self._schedule_waiting(step, budget)
        self._advance(step)
        return step

    def finish(self) -> list[Request]:
        """The step is over: the requests that ended with it leave, in the order of admission."""
        self.steps += 1
        done = self.finishing(self.steps)
        self.ends.pop(self.steps, None)
        while self.ending and self.ending[0] <= self.steps:
            heapq.heappop(self.ending)
        for request in done:
            self.leave(request)
        return done

    def finishing(self, steps: int) -> list[Request]:
        """Who ends when `steps` steps are done, in the order of admission."""
        return sorted(self.ends.get(steps, ()), key=lambda request: request.serial)

    def leave(self, request: Request) -> None:
        """A request ends, wherever it is: its seat and its blocks are free again."""
        if self.running.pop(request.serial, None) is None:
            self.waiting.remove(request)
            return
        self.kv.release(request, request.computed_by(self.steps))
        self._stop_decoding(request)

    def _schedule_running(self, step: Step) -> int:
        budget = self.config.max_num_batched_tokens
        order = list(self.running.values())
        index = 0
        while index < len(order) and budget > 0:
            request = order[index]
            before = request.computed_by(self.steps)
            tokens = self._chunk(1 if request.decoding else request.target - before, budget)
            while not self.kv.grow(before, before + tokens):
                victim = self._victim(order)
                at = order.index(victim)
                del order[at]
                if at < index:  # by priority it may be one that was planned already
                    index -= 1
                    budget += step.planned[victim]
                self._preempt(victim, step)
                if victim is request:
                    break
            if request.serial == NEVER:
                break
            step.planned[request] = tokens
            budget -= tokens
            index += 1
        for request in order[index:]:
            if request.decoding:
                self._starve(request)
                step.starved.append(request)
        return budget

    def _schedule_waiting(self, step: Step, budget: int) -> None:
        while budget > 0 and self.waiting and len(self.running) < self.config.max_num_seqs:
            request = self.waiting.head()
            cached = self.kv.cached(request)
            tokens = self._chunk(request.target - cached, budget)
            if not self.kv.admit(request, cached + tokens, alone=not self.running):
                break
            self.waiting.pop()
            request.computed = cached
            if request.cached_tokens == NEVER:
                request.cached_tokens = cached
            request.serial = self._serial
            self._serial += 1
            self.running[request.serial] = request
            step.admitted.append(request)
            step.planned[request] = tokens
            budget -= tokens

    def _chunk(self, tokens: int, budget: int) -> int:
        limit = self.config.long_prefill_token_threshold
        return min(tokens, budget, limit or tokens)

    def _victim(self, order: list[Request]) -> Request:
        if self.config.scheduling_policy == "fcfs":
            return order[-1]
        return max(order, key=lambda request: (request.priority, request.arrival_ns))

    def _preempt(self, request: Request, step: Step) -> None:
        self.kv.release(request, request.computed_by(self.steps) + step.planned.pop(request, 0), again=True)
        request.made = request.made_by(self.steps)
        self._stop_decoding(request)
        del self.running[request.serial]
        request.serial = NEVER
        request.computed = 0
        request.target = request.prompt_tokens + request.made
        request.preemptions += 1
        self.waiting.put_back(request)
        step.preempted.append(request)

    def _advance(self, step: Step) -> None:
        for request, tokens in step.planned.items():
            if request.decoding:
                step.context_tokens += request.computed_by(self.steps) + 1
                step.emits.append(request)
                continue
            request.computed += tokens
            step.context_tokens += request.computed
            step.prefill_tokens += tokens
            if request.computed == request.target:
                self._decode_until(request, self.steps + request.output_tokens - request.made)
                step.emits.append(request)

    def _decode_until(self, request: Request, end: int) -> None:
        request.end = end
        if end not in self.ends:
            self.ends[end] = []
            heapq.heappush(self.ending, end)
        self.ends[end].append(request)

    def _stop_decoding(self, request: Request) -> None:
        if request.end != NEVER:
            if request.end in self.ends:
                self.ends[request.end].remove(request)
            request.made = request.made_by(self.steps)
            request.end = NEVER

    def _starve(self, request: Request) -> None:
        self.ends[request.end].remove(request)
        self._decode_until(request, request.end + 1)
