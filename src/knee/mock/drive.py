"""The engine in real time: its virtual clock is the machine's, and what a step makes appears when it ends.

Steps follow each other by absolute deadlines: a step that is delivered late does not make the next one late.
"""

import asyncio
import itertools
from collections import Counter
from typing import Protocol

import msgspec

from knee.core.clock import Clock
from knee.core.snapshot import EngineSnapshot
from knee.engine.engine import Engine, StepResult
from knee.engine.prefix_cache import PrefixCache
from knee.engine.request import Request
from knee.measure.client.pacing import Waker
from knee.mock.config import sped_up

STEPS_AT_ONCE = 64
"""How many steps that are overdue are delivered before other work gets its turn."""


ENDINGS = ("stop", "length", "abort")
WAITING = ("num_requests_waiting", "num_requests_waiting_by_reason{capacity}")


class Listener(Protocol):
    """Hears of one request's tokens.

    `made` is what it has been given, `complete` whether that is all, `finish_reason` why it will end.
    """

    made: int
    complete: bool

    @property
    def finish_reason(self) -> str:
        """`stop` or `length`."""
        ...

    def flush(self) -> None:
        """`made` or `complete` have changed."""
        ...


class Drive:
    """Runs `engine` on the clock. All instants are nanoseconds since its creation."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self.engine = engine
        self.unservable = 0
        self.dead = False
        self._clock = clock
        self._config = engine.config
        self._origin_ns = clock.monotonic_ns()
        self._alarm = Waker(clock, self._ring)
        self._pending: StepResult | None = None
        self._listeners: dict[str | int, Listener] = {}
        self._finished: Counter[str] = Counter()
        self._numbers = itertools.count()
        self._not_before_ns = 0
        self._stalled = self._rousing = False

    def now_ns(self) -> int:
        """Nanoseconds since the drive was made."""
        return self._clock.monotonic_ns() - self._origin_ns

    @property
    def in_flight(self) -> int:
        """Requests that have not ended."""
        return len(self._listeners)

    def submit(self, request: Request, listener: Listener) -> str:
        """Give `request` a number as its id and hand it to the engine; "" or the reason of a refusal.

        An `unservable` request is taken and never gets a token, as in vLLM.
        """
        self._catch_up()
        request.id = number = next(self._numbers)
        now_ns = self._engine_now_ns()
        reason = self.engine.add(request, now_ns)
        if reason == "unservable":
            self.unservable += 1
        elif reason:
            return reason
        self._listeners[number] = listener
        if self._pending is None and not self._rousing:
            self._rousing = True  # what else has arrived by now joins the first step
            asyncio.get_running_loop().call_soon(self._rouse)
        return ""

    def has_room_for(self, n: int) -> bool:
        """Whether `n` more requests stay within `max_num_queued_reqs`; counts a rejection if not.

        vLLM looks at all `n` answers to a prompt before it takes the first (v1/engine/async_llm.py,
        check_admission, 0.29 and later).
        """
        self._catch_up()
        limit = self._config.max_num_queued_reqs
        if limit is None or len(self.engine.requests) + n <= limit:
            return True
        self.engine.metrics.rejected["max_num_queued_reqs"] += 1
        return False

    def abort(self, request: Request) -> None:
        """The client of `request` has gone away, or needs no more."""
        if self._listeners.pop(request.id, None) is None or self.dead:
            return
        self._catch_up()
        if not self.engine.abort(request.id, self._engine_now_ns()):
            self.unservable -= 1

    def snapshot(self) -> EngineSnapshot:
        """The engine's metrics now.

        The engine does not know why an answer ends, and vLLM does not count clients that went away as aborts
        (recorded from 0.32.0). Requests that can never run wait.
        """
        self._catch_up()
        snapshot = self.engine.snapshot(self._engine_now_ns())
        ended = {f"request_success{{{reason}}}": float(self._finished[reason]) for reason in ENDINGS}
        waiting = {name: snapshot.gauges[name] + self.unservable for name in WAITING}
        return msgspec.structs.replace(
            snapshot, gauges={**snapshot.gauges, **waiting}, counters={**snapshot.counters, **ended}
        )

    def slow_down(self, factor: float) -> None:
        """Let every further step take `factor` times its cost (1 is as configured)."""
        self.engine.config = sped_up(self._config, 1 / factor)

    def stall(self, stalled: bool) -> None:
        """Let no step end, or go on."""
        if self._stalled and not stalled:
            self._not_before_ns = self.now_ns()
        self._stalled = stalled
        if not stalled:
            if self._pending is None:
                self._begin(self._not_before_ns)
            self._catch_up()

    def forget_prefixes(self) -> bool:
        """Empty the prefix cache; False, and nothing done, while requests hold blocks (as in vLLM)."""
        kv = self.engine.scheduler.kv
        if kv.free != kv.total:
            return False
        if kv.cache is not None:
            kv.cache = PrefixCache(kv.total, kv.block_size)
        return True

    def kill(self) -> None:
        """The engine dies: no step ends any more, and nobody hears of it from here."""
        self.dead = True
        self._pending = None
        self._listeners.clear()
        self._alarm.close()

    def _engine_now_ns(self) -> int:
        """Now; but not past the end of a step that could not be delivered yet."""
        now_ns = self.now_ns()
        return now_ns if self._pending is None or self._stalled else min(now_ns, self._pending.end_ns)

    def _ring(self) -> None:
        self._catch_up()
        if not self._alarm.exact and self._pending is not None and not self._stalled:  # it may ring early
            self._alarm.arm(self._origin_ns + self._pending.end_ns)

    def _rouse(self) -> None:
        """Begin the first step after a pause."""
        self._rousing = False
        if self._pending is None and not self._stalled and not self.dead:
            self._begin(self.now_ns())

    def _catch_up(self) -> None:
        """Deliver every step that has ended by now."""
        if self._stalled or self._pending is None:
            return
        now_ns = self.now_ns()
        touched: dict[Listener, None] = {}
        for _ in range(STEPS_AT_ONCE):
            step = self._pending
            if step is None or step.end_ns > now_ns:
                break
            self.engine.settle(step.end_ns)
            for request in step.emitted:
                listener = self._listeners.get(request.id)
                if listener is not None:
                    listener.made += 1
                    touched[listener] = None
            for request in step.finished:
                listener = self._listeners.pop(request.id, None)
                if listener is not None:
                    listener.complete = True
                    self._finished[listener.finish_reason] += 1
            self._begin(max(step.end_ns, self._not_before_ns))
        for listener in touched:
            listener.flush()

    def _begin(self, at_ns: int) -> None:
        self._pending = self.engine.next_step(at_ns)
        if self._pending is not None:
            self._alarm.arm(self._origin_ns + self._pending.end_ns)
