"""Requests made ready: the schedule's columns as bytes that only wait to be sent."""

from collections.abc import Callable, Iterator
from itertools import count

import msgspec

from knee.core.requests import NEVER
from knee.measure.client.endpoints import Form
from knee.measure.client.prompts import Prompts
from knee.measure.target import Offer
from knee.workload.schedule import schedule


class Due(msgspec.Struct, frozen=True):
    """A request made ready. `due_ns` counts from the start of the point.

    `number` is its place in the schedule. Where it `follows` another (that one's number, else NEVER), its
    `due_ns` counts from the end of that one.
    """

    due_ns: int
    request: bytes
    prompt_tokens: int
    output_tokens: int
    number: int = 0
    follows: int = NEVER


class Part(msgspec.Struct, frozen=True):
    """One of `count` equal shares of the load: every `count`-th request from number `index` on."""

    index: int = 0
    count: int = 1

    def clients(self, max_concurrency: int) -> int:
        """This part's share of the clients of a closed loop."""
        return max_concurrency // self.count + (self.index < max_concurrency % self.count)


WHOLE = Part()


def make_ready(
    offer: Offer, prompts: Prompts, form: Form, head: Callable[[int], bytes], part: Part = WHOLE
) -> Iterator[Due]:
    """The requests of `offer` that are in `part`, as bytes, in order and without end.

    A conversation is in one part as a whole.
    """
    rate = offer.rate if offer.max_concurrency is None else 1.0
    numbers = count()
    mine = False
    for stretch in schedule(offer.workload, rate, offer.seed):
        n = len(stretch)
        columns = zip(
            stretch.due_ns.tolist(),
            stretch.prompt_tokens.tolist(),
            stretch.output_tokens.tolist(),
            stretch.shared or ((),) * n,
            stretch.follows.tolist() if stretch.follows is not None else [NEVER] * n,
            numbers,  # last, so that the end of the others does not use one up
            strict=False,
        )
        for due_ns, prompt_tokens, output_tokens, shared, follows, number in columns:
            if follows == NEVER:
                mine = number % part.count == part.index
            if not mine:
                continue
            text, held = prompts.text(prompt_tokens, shared)
            body = form.fill(text, output_tokens)
            yield Due(due_ns, head(len(body)) + body, held, output_tokens, number, follows)
