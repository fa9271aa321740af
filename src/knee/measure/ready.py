"""Requests made ready: the schedule's columns as bytes that only wait to be sent."""

from collections.abc import Callable, Iterator
from itertools import count

import msgspec

from knee.core.requests import NEVER
from knee.measure.endpoints import Form
from knee.measure.prompts import Prompts
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


def make_ready(offer: Offer, prompts: Prompts, form: Form, head: Callable[[int], bytes]) -> Iterator[Due]:
    """The requests of `offer`, as bytes, in order and without end."""
    rate = offer.rate if offer.max_concurrency is None else 1.0
    numbers = count()
    for part in schedule(offer.workload, rate, offer.seed):
        n = len(part)
        columns = zip(
            part.due_ns.tolist(),
            part.prompt_tokens.tolist(),
            part.output_tokens.tolist(),
            part.shared or ((),) * n,
            part.follows.tolist() if part.follows is not None else [NEVER] * n,
            strict=True,
        )
        for due_ns, prompt_tokens, output_tokens, shared, follows in columns:
            text, held = prompts.text(prompt_tokens, shared)
            body = form.fill(text, output_tokens)
            yield Due(due_ns, head(len(body)) + body, held, output_tokens, next(numbers), follows)
