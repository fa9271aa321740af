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
from knee.engine.step import Step
from knee.engine.waiting import waiting


class Scheduler:
    """The requests of one engine and the rules by which they run.

    `steps` counts the steps done. `running` is keyed by serial number, in the order of admission; `ends`
    holds, by the number of steps after which they end, those that decode, `ending` those numbers as a heap.

    Of those that decode, `decode_context` is the sum of tokens with KV, less one a step for each, and
    `residues[r]` is how many need a new block in every step whose number is r modulo the block size. So what
    a stretch of steps takes in which nothing else happens follows without a look at each of them.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.kv = KvCache(config)
        self.waiting = waiting(config.scheduling_policy)
        self.running: dict[int, Request] = {}
        self.steps = 0
        self.ends: dict[int, list[Request]] = {}
        self.ending: list[int] = []
        self.prefilling: dict[int, Request] = {}
        self.decode_context = 0
        self.residues = [0] * config.block_size
        self.blocked: Request | None = None  # the head of the queue, if blocks are what it lacks
        self.incoming: list[Request] = []
        self.leaving: list[tuple[Request, int]] = []
        self._serial = 0

    def add(self, request: Request, busy: bool) -> None:
        """Queue a request. With async scheduling, the next step of a `busy` engine is planned without it."""
        if busy and self.config.async_scheduling:
            self.incoming.append(request)
        else:
            self.waiting.add(request)

    def plan(self, quiet: Step | None = None) -> Step:
        """Plan the next step, unless `quiet` has planned it already.

        With async scheduling it was planned when the last one began: without the requests that came since,
        and with the seats and blocks of those that ended since still taken (vLLM 0.14 and later, by default).
        """
        step = quiet or self.schedule()
        if self.incoming or self.leaving:
            self.catch_up()
            if not step.planned and not step.decodes:
                preempted = step.preempted
                step = self.schedule()
                step.preempted = preempted + step.preempted
        return step

    def catch_up(self) -> None:
        """With async scheduling: let those who came and ended while a step was planned ahead come and go."""
        for request, tokens in self.leaving:
            self.kv.release(request, tokens)
        for request in self.incoming:
            self.waiting.add(request)
        self.leaving.clear()
        self.incoming.clear()
        self.blocked = None

    def schedule(self) -> Step:
        """Plan the next step, take the blocks it needs, and move on the prefills that are in it."""
        step = Step()
        while True:
            lost = len(step.preempted)
            budget = self._schedule_running(step)
            lost = len(step.preempted) - lost
            if step.planned or not lost or not self.running:
                break  # by priority, the first may lose its blocks before any is planned: a step of nothing
        if not lost or not step.planned:
            self.admit(step, budget)
        self.advance(step)
        return step

    def finish(self) -> list[Request]:
        """The step is over: the requests that ended with it leave, in the order of admission."""
        self.steps += 1
        if not self.ending or self.ending[0] > self.steps:
            return []
        heapq.heappop(self.ending)
        done = self.ends.pop(self.steps)
        if len(done) > 1:
            done.sort(key=_by_serial)
        for request in done:
            if self.config.async_scheduling:
                del self.running[request.serial]
                self.leaving.append((request, request.computed_by(self.steps)))
                self._stop_decoding(request)
            else:
                self.leave(request)
        return done

    def finishing(self, steps: int) -> list[Request]:
        """Who ends when `steps` steps are done, in the order of admission."""
        return sorted(self.ends.get(steps, ()), key=_by_serial)

    def leave(self, request: Request) -> None:
        """A request ends, wherever it is: its seat and its blocks are free again."""
        self.blocked = None
        if self.running.pop(request.serial, None) is None:
            (self.incoming if request in self.incoming else self.waiting).remove(request)
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
            while not self.kv.grow(request, before, before + tokens):
                victim = self._victim(order)
                at = order.index(victim)
                del order[at]
                if at < index:  # by priority it may be one that was planned already
                    index -= 1
                    budget += step.planned[victim]
                self.preempt(victim, step)
                if victim is request:
                    break
            if request.serial == NEVER:
                break
            step.planned[request] = tokens
            budget -= tokens
            index += 1
        for request in order[index:]:
            if request.decoding and step.planned:
                self._starve(request)
                step.starved.append(request)
        return budget

    def admit(self, step: Step, budget: int) -> None:
        """Let waiting requests join the step while `budget` tokens, seats and blocks last."""
        seats = self.config.max_num_seqs - len(self.leaving)
        while budget > 0 and self.waiting and len(self.running) < seats:
            request = self.waiting.head()
            limit = self.config.long_prefill_token_threshold or budget
            tokens = self.kv.admit(request, min(budget, limit), alone=not self.running and not self.leaving)
            if not tokens:
                self.blocked = request
                break
            self.waiting.pop()
            if request.cached_tokens == NEVER:
                request.cached_tokens = request.computed
            request.serial = self._serial
            self._serial += 1
            self.running[request.serial] = self.prefilling[request.serial] = request
            step.admitted.append(request)
            step.planned[request] = tokens
            budget -= tokens

    def _chunk(self, tokens: int, budget: int) -> int:
        limit = self.config.long_prefill_token_threshold
        return min(tokens, budget, limit or tokens)

    def _victim(self, order: list[Request]) -> Request:
        if self.config.scheduling_policy == "fcfs":
            return order[-1]
        return max(order, key=lambda request: request.rank)

    def preempt(self, request: Request, step: Step) -> None:
        """Take a running request's seat and blocks; it starts over when it is its turn again."""
        self.kv.release(request, request.computed_by(self.steps) + step.planned.pop(request, 0), again=True)
        self._stop_decoding(request)
        del self.running[request.serial]
        self.blocked = None
        request.serial = NEVER
        request.computed = 0
        request.target = request.prompt_tokens + request.made
        request.preemptions += 1
        self.waiting.put_back(request)
        step.preempted.append(request)

    def advance(self, step: Step) -> None:
        """Move on the prefills of a step, and note who gets a token."""
        for request, tokens in step.planned.items():
            if request.decoding:
                step.context_tokens += request.computed_by(self.steps) + 1
                step.emits.append(request)
                continue
            request.computed += tokens
            step.context_tokens += request.computed
            step.prefill_tokens += tokens
            if request.computed == request.target:
                del self.prefilling[request.serial]
                self._decode_until(request, self.steps + request.output_tokens - request.made)
                step.emits.append(request)

    def _decode_until(self, request: Request, end: int) -> None:
        request.end = end
        if end not in self.ends:
            self.ends[end] = []
            heapq.heappush(self.ending, end)
        self.ends[end].append(request)
        offset = request.prompt_tokens + request.output_tokens - 1 - end
        self.decode_context += offset
        self.residues[-offset % self.config.block_size] += 1

    def _stop_decoding(self, request: Request) -> None:
        """Take a request out of those that decode, or prefill."""
        if request.end == NEVER:
            self.prefilling.pop(request.serial, None)
            return
        if request.end in self.ends:
            self.ends[request.end].remove(request)
        offset = request.prompt_tokens + request.output_tokens - 1 - request.end
        self.decode_context -= offset
        self.residues[-offset % self.config.block_size] -= 1
        request.made = request.made_by(self.steps)
        request.end = NEVER

    def _starve(self, request: Request) -> None:
        end = request.end
        made = request.made
        self._stop_decoding(request)
        request.made = made
        self._decode_until(request, end + 1)


def _by_serial(request: Request) -> int:
    return request.serial
