"""The load itself: requests out when they are due, answers into the books, until the point is over."""

import asyncio
from array import array
from collections import deque
from collections.abc import Callable, Iterator

from knee.core.clock import Clock
from knee.core.requests import FAILED, NEVER, OK, OUTCOMES, Ints, Observed, RequestRecord, column
from knee.core.units import NS_PER_MS, NS_PER_S
from knee.http1.pool import Pool
from knee.measure.client.books import Books
from knee.measure.client.endpoints import Ask
from knee.measure.client.exchange import StreamExchange
from knee.measure.client.health import health_of
from knee.measure.client.pacing import Waker
from knee.measure.client.ready import WHOLE, Due, Part
from knee.measure.client.responses import tally_of
from knee.measure.target import ClientHealth, Offer, Stop

AHEAD = 64
"""Requests made ready before they are due, so that nothing but the write happens at the instant."""
IN_ONE_GO = 8
"""Requests made ready at once: together they cost half of what they cost one by one."""
AT_ONCE = 64
"""Requests sent in one go before answers are read again, when many are due together."""
BEAT_NS = 20 * NS_PER_MS
LOST = ("refused", "reset", "cut", "unreachable", "timeout_connect", "unknown_host")
"""Causes that mean, when nothing else happens any more, that the server is gone."""
LOST_IN_A_ROW = 20
LOST_FOR_NS = 2 * NS_PER_S
AFTER_FAILURE_S = 0.1
"""In a closed loop, how long a client waits after a failure: a server that refuses is not hammered."""


class Load:
    """One point's load, run inside an event loop: `await run()`; look at `books` at any time.

    With `record`, every finished request is kept for `take_finished` as well. With `part`, it belongs to a
    crew: what ended is kept for `take_closed`, and it goes on until it is stopped from outside.
    """

    def __init__(
        self,
        offer: Offer,
        requests: Iterator[Due],
        pool: Pool,
        clock: Clock,
        start_ns: int,
        *,
        ask: Ask,
        record: bool = False,
        part: Part | None = None,
    ) -> None:
        self._offer = offer
        self._requests = requests
        self._pool = pool
        self._clock = clock
        self.start_ns = start_ns
        self._stream = ask.stream
        self._answers = ask.n
        self._tally = tally_of(ask.endpoint)
        self._record = record
        clients = offer.max_concurrency
        self._clients = None if clients is None else (part or WHOLE).clients(clients)
        self._alone = part is None
        self._window_end_ns = offer.warmup_ns + offer.window_ns
        self._ready: deque[Due] = deque()
        self._under_way: dict[int, StreamExchange] = {}
        self._followers: dict[int, Due] = {}
        """Requests that wait for another's end, by that one's number."""
        self._numbers: dict[int, int] = {}
        """The numbers of requests under way that others may follow, by their index in the books."""
        self._finished: list[RequestRecord] = []
        self._closed: list[int] = []
        self._unsent: list[int] = []
        self._measured_open = 0
        self._over = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._waker = Waker(clock, self._send_due)
        self._beat = Waker(clock, self._on_beat)
        self._beat_due_ns = 0
        self._bad_in_a_row = 0
        self._bad_since_ns = 0
        self.books = Books()
        self.stopped: Stop = ""
        self.end_of_load_ns = NEVER
        self.loop_lag_ns = array("q")
        """How late the event loop noticed a timer, every 20 ms."""
        self.dispatch_lag_ns = array("q")
        """How late each request was started; the time to open a connection is not in it."""

    @property
    def in_flight(self) -> int:
        """Requests under way."""
        return len(self._under_way)

    async def run(self) -> None:
        """Offer the load until the point is over, then close the books: what is under way is censored."""
        try:
            await asyncio.sleep(max(0.0, -self._now_ns() / NS_PER_S))
            self._on_beat()
            if self._clients is None:
                self._send_due()
            for _ in range(self._clients or 0):
                self._loop.call_soon(self._send_next)
            await self._over.wait()
        finally:
            self.end_of_load_ns = self._now_ns()
            self._waker.close()
            self._beat.close()
            self._pool.close()
            self._enter_unsent()

    def stop(self, why: Stop) -> None:
        """End the point early."""
        if not self._over.is_set():
            self.stopped = why
            self._over.set()

    def freeze(self) -> Callable[[], Observed]:
        """The books up to now, with what has come so far for requests under way; see `Books.freeze`."""
        for exchange in self._under_way.values():
            exchange.look()
        return self.books.freeze(self._now_ns() if self.end_of_load_ns == NEVER else self.end_of_load_ns)

    def take_closed(self) -> Ints:
        """The entries of requests that ended since the last call; only a part of a crew keeps them."""
        closed, self._closed = self._closed, []
        return self.books.rows(closed)

    def still_open(self) -> Ints:
        """The entries of requests under way, and of those that could not be sent."""
        for exchange in self._under_way.values():
            exchange.look()
        return self.books.rows([*self._under_way, *self._unsent])

    def health(self) -> ClientHealth:
        """How the client fared: lags, the share of cached prompt tokens, what servers said with failures."""
        return health_of(self.books, [column(self.loop_lag_ns)], [column(self.dispatch_lag_ns)])

    def take_finished(self) -> list[RequestRecord]:
        """The requests that finished since this was last called, their point left at 0."""
        taken, self._finished = self._finished, []
        return taken

    def _now_ns(self) -> int:
        return self._clock.monotonic_ns() - self.start_ns

    def _send_due(self) -> None:
        if self._over.is_set():
            return
        now_ns = self._now_ns()
        for _ in range(AT_ONCE):
            due = self._next()
            if due.due_ns > now_ns:
                break
            self._ready.popleft()
            self._send(due, due.due_ns)
        if len(self._ready) <= AHEAD - IN_ONE_GO:
            self._loop.call_soon(self._refill)
        self._waker.arm(self.start_ns + self._next().due_ns)

    def _next(self) -> Due:
        if not self._ready:
            self._make_one_ready()
        return self._ready[0]

    def _make_one_ready(self) -> None:
        """Draw up to the next request that waits for no other."""
        while True:
            due = next(self._requests)
            if due.follows == NEVER:
                self._ready.append(due)
                return
            self._followers[due.follows] = due

    def _refill(self) -> None:
        if self._over.is_set():
            return
        before_ns = self._now_ns() + NS_PER_MS // 5
        while len(self._ready) < AHEAD and self._ready[0].due_ns > before_ns:
            self._make_one_ready()

    def _send_next(self) -> None:
        """The next request of a closed loop is due as soon as the last one ended."""
        if not self._over.is_set():
            self._send(next(self._requests), self._now_ns())

    def _send_follower(self, due: Due, ended_ns: int) -> None:
        """The next turn of a conversation, after its pause."""
        if not self._over.is_set():
            self._send(due, ended_ns + due.due_ns)

    def _send(self, due: Due, due_ns: int) -> None:
        index = self.books.offer(due_ns, due.prompt_tokens, due.output_tokens * self._answers)
        if self._offer.warmup_ns <= due_ns < self._window_end_ns:
            self._measured_open += 1
        self.dispatch_lag_ns.append(self._now_ns() - due_ns)
        exchange = StreamExchange(
            self.books, index, self.start_ns, self._stream, self._on_end, tally=self._tally
        )
        self._under_way[index] = exchange
        self._numbers[index] = due.number
        self._pool.start(exchange, due.request)

    def _on_end(self, exchange: StreamExchange) -> None:
        del self._under_way[exchange.index]
        number = self._numbers.pop(exchange.index)
        follower = self._followers.pop(number, None)
        if self._record:
            self._finished.append(record_of(self.books, exchange, number))
        if not self._alone:
            self._closed.append(exchange.index)
        due_ns = self.books.due_ns[exchange.index]
        if self._offer.warmup_ns <= due_ns < self._window_end_ns:
            self._measured_open -= 1
        if self._over.is_set():
            return
        self._watch_for_loss(exchange)
        if follower is not None and self.books.outcome[exchange.index] == OK:
            self._loop.call_later(follower.due_ns / NS_PER_S, self._send_follower, follower, self._now_ns())
        while follower is not None and self.books.outcome[exchange.index] != OK:
            follower = self._followers.pop(follower.number, None)  # the conversation ends here
        if self._alone and self.all_measured_ended():
            self._over.set()
        elif self._clients is not None:
            if self.books.outcome[exchange.index] == OK:
                self._loop.call_soon(self._send_next)
            else:
                self._loop.call_later(AFTER_FAILURE_S, self._send_next)

    def _watch_for_loss(self, exchange: StreamExchange) -> None:
        if self.books.outcome[exchange.index] != FAILED or exchange.cause not in LOST:
            self._bad_in_a_row = 0
            return
        now_ns = self._now_ns()
        if self._bad_in_a_row == 0:
            self._bad_since_ns = now_ns
        self._bad_in_a_row += 1
        if self._bad_in_a_row >= LOST_IN_A_ROW and now_ns - self._bad_since_ns >= LOST_FOR_NS:
            self.stop("target lost")

    def _on_beat(self) -> None:
        now_ns = self._clock.monotonic_ns()
        if self._beat_due_ns:
            self.loop_lag_ns.append(now_ns - self._beat_due_ns)
        self._beat_due_ns = now_ns + BEAT_NS
        self._beat.arm(self._beat_due_ns)
        since_ns = now_ns - self.start_ns - self._window_end_ns
        if since_ns >= self._offer.drain_ns or (self._alone and self.all_measured_ended()):
            self._over.set()

    def all_measured_ended(self) -> bool:
        """Whether every request due in the measured window has ended, and no more can come.

        One part of a load goes on all the same, until it is told that the others are as far.
        """
        if self._measured_open or self._now_ns() < self._window_end_ns:
            return False
        return self._clients is not None or self._next().due_ns >= self._window_end_ns

    def _enter_unsent(self) -> None:
        """What was due in the window and could not even be sent stands in the books as censored."""
        if self._clients is not None:
            return
        until_ns = min(self.end_of_load_ns, self._window_end_ns)
        while self._next().due_ns < until_ns:
            due = self._ready.popleft()
            asked = due.output_tokens * self._answers
            self._unsent.append(self.books.offer(due.due_ns, due.prompt_tokens, asked))


def record_of(books: Books, exchange: StreamExchange, number: int) -> RequestRecord:
    """The line of `records.jsonl` for one finished request, `number` in the schedule, its point left at 0."""
    index = exchange.index
    return RequestRecord(
        point=0,
        index=number,
        due_ns=books.due_ns[index],
        outcome=OUTCOMES[books.outcome[index]],
        sent_ns=books.sent_ns[index],
        first_ns=books.first_ns[index],
        last_ns=books.last_ns[index],
        end_ns=books.end_ns[index],
        prompt_tokens=books.prompt_tokens[index],
        asked_tokens=books.asked_tokens[index],
        output_tokens=books.output_tokens[index],
        first_tokens=books.first_tokens[index],
        cause=exchange.cause,
        gap_ns=tuple(exchange.gap_ns),
        gap_tokens=tuple(exchange.gap_tokens),
    )
