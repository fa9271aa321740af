"""The requests of one point as columns, a row each in order of arrival, and what happened to them.

Instants count from the start of the point.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from knee.core.requests import NEVER, Requests
from knee.engine.front_end import FrontEndQueue
from knee.engine.load import REFUSED_PAUSE_NS
from knee.engine.request import Segments

FAR_NS = 1 << 62
Row = tuple[int, int, Segments, int]
"""Prompt, output, shared segments, and its number in the schedule."""


class Columns:
    """What is sent: at the instants of a schedule, or by `clients` of whom each waits for its reply.

    `due` ends with an instant that never comes; the other columns may be longer, by what a closed loop has
    drawn and not sent. A turn of a conversation gets its row when the turn before it has ended.

    Behind a front end `due` is when the engine gets a request, and `came` when the front end did, which is
    known beforehand where nobody waits for a reply and tokens cost the front end nothing.
    """

    def __init__(
        self,
        schedule: Iterator[Requests],
        clients: int | None = None,
        texts: bool = True,
        front: FrontEndQueue | None = None,
    ) -> None:
        """Without `texts`, what prompts share is left out; `front`: for schedules that wait for no reply."""
        self._schedule = schedule
        self._texts = texts
        self._front = front
        self.closed = clients is not None
        self.due = [FAR_NS]
        self.came = self.due if front is None else [FAR_NS]
        self.prompt: list[int] = []
        self.output: list[int] = []
        self.shared: list[Segments] = []
        self.last: list[int] = []  # when each had its last token, if it has ended
        self.refused: dict[int, tuple[str, int]] = {}  # why, and when
        self.drawn_ns = FAR_NS if self.closed else NEVER  # who opens no later than this is among the rows
        self.longest = 0  # tokens of the longest request
        self.told = self.closed  # something is known of when or what but the instants and lengths
        self._numbers: list[int] = []
        self._drawn = 0
        self.followers: dict[int, tuple[int, Row]] = {}  # by the number of the request that each follows
        self.send(0, clients or 0)

    def draw_until(self, until_ns: int) -> None:
        """Have all requests that are due by `until_ns`, as far as that is known."""
        while self.drawn_ns <= until_ns:
            if not self._draw():
                self.drawn_ns = FAR_NS

    def send(self, at_ns: int, n: int) -> None:
        """`n` clients send their next requests."""
        due = self.due
        if len(due) == 1 or due[-2] <= at_ns:
            due[-1:] = [at_ns] * n + [FAR_NS]
            self.fill()
            return
        while len(self.prompt) < len(due) - 1 + n:
            if not self._draw():
                n = len(self.prompt) - len(due) + 1
        for _ in range(n):  # behind it are some that were refused and try again later
            place, row = bisect_right(due, at_ns), len(due) - 1
            due.insert(place, at_ns)
            for numbers in (self.prompt, self.output):
                numbers.insert(place, numbers.pop(row))
            self.shared.insert(place, self.shared.pop(row))

    def fill(self) -> None:
        """Draw what is due in a closed loop; nobody sends what is not there."""
        while len(self.prompt) < len(self.due) - 1:
            if not self._draw():
                del self.due[len(self.prompt) : -1]

    def ended(self, rows: list[int], at_ns: int) -> None:
        """These have ended: their clients send again, their conversations go on."""
        if self.closed:
            self.send(at_ns, len(rows))
        elif self.followers:
            for row in rows:
                pause_ns, turn = self.followers.pop(self._numbers[row], (0, None))
                if turn is not None:
                    self._insert(at_ns + pause_ns, turn)

    def refuse(self, row: int, reason: str, at_ns: int) -> None:
        """This was not taken: its client tries again with its next one, its conversation is over."""
        self.refused[row] = reason, at_ns
        if self.closed:
            self.send(at_ns + REFUSED_PAUSE_NS, 1)
        elif self.followers:
            number = self._numbers[row]
            while number in self.followers:
                number = self.followers.pop(number)[1][3]

    def drop(self, rows: int) -> None:
        """Forget the first `rows` rows; the others move up."""
        for numbers in (self.due, self.prompt, self.output, self.last, self._numbers):
            del numbers[:rows]
        del self.shared[:rows]
        if self._front is not None:
            del self.came[:rows]
        self.refused = {row - rows: why for row, why in self.refused.items() if row >= rows}

    def _draw(self) -> bool:
        """Draw a stretch of the schedule; False if there is none."""
        drawn = next(self._schedule, None)
        if drawn is None:
            return False
        n = len(drawn)
        self.longest = max(self.longest, int((drawn.prompt_tokens + drawn.output_tokens).max()))
        due, prompt, output = (
            drawn.due_ns.tolist(),
            drawn.prompt_tokens.tolist(),
            drawn.output_tokens.tolist(),
        )
        shared = drawn.shared if self._texts and drawn.shared else ((),) * n
        self.told = self.told or drawn.follows is not None or (self._texts and drawn.shared is not None)
        if drawn.follows is None or self.closed:
            self.prompt += prompt
            self.output += output
            self.shared += shared
            self.last += [NEVER] * n
            if not self.closed:
                self.drawn_ns = due[-1]
                if self._front is not None:
                    self.came[-1:] = [*due, FAR_NS]
                    due = [self._front.enter(at_ns)[1] for at_ns in due]
                self.due[-1:] = [*due, FAR_NS]
            return True
        for i, before in enumerate(drawn.follows.tolist()):
            row = (prompt[i], output[i], shared[i], self._drawn + i)
            if before == NEVER:
                self._insert(due[i], row)
                self.drawn_ns = due[i]
            else:
                self.followers[before] = due[i], row
        self._drawn += n
        return True

    def _insert(self, at_ns: int, row: Row) -> None:
        """Give a request its row: by its instant, and by its number among those of that instant."""
        due, numbers = self.due, self._numbers
        place, end = bisect_left(due, at_ns), bisect_right(due, at_ns)
        while place < end and numbers[place] < row[3]:
            place += 1
        due.insert(place, at_ns)
        self.prompt.insert(place, row[0])
        self.output.insert(place, row[1])
        self.shared.insert(place, row[2])
        numbers.insert(place, row[3])
        self.last.append(NEVER)
