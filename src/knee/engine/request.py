"""One request inside the engine, and what it has been through."""

from __future__ import annotations

from typing import TYPE_CHECKING

from knee.core.requests import NEVER

if TYPE_CHECKING:
    from knee.engine.prefix_cache import Lease, Node

Segments = tuple[tuple[int, int], ...]
Rank = tuple[int, int, int]
"""Priority (the lower first), arrival in ns, and the order in which the engine took it: no two are alike."""


class Request:
    """A request and its state.

    `shared` are the segments `(segment_id, tokens)` that open its prompt; equal leading segments are equal
    text.
    `arrival_ns` is when the front end got it, `queued_ns` when the engine did. Where it `follows` another (by
    that one's number), its arrival counts from the other's end until that is known.

    While it is not decoding, `computed` counts the tokens with KV and `target` those it needs before the next
    token can be sampled (after a preemption: prompt and output so far). While it decodes, `end` says all: it
    ends when the engine has done `end` steps, so that a step in which nothing but decoding happens changes no
    request at all. `serial` orders the running requests.
    """

    queued_ns = NEVER
    scheduled_ns = NEVER
    first_ns = NEVER
    last_ns = NEVER
    finished_ns = NEVER
    computed = 0
    made = 0
    end = NEVER
    serial = NEVER
    preemptions = 0
    cached_tokens = NEVER
    rank: Rank = (0, 0, 0)
    follows = NEVER
    lease: Lease | None = None  # what it holds of the prefix cache while it runs
    own: Node | None = None  # what it left in the prefix cache when it was preempted

    def __init__(
        self,
        id: str | int,  # noqa: A002 - it is what vLLM calls it
        prompt_tokens: int,
        output_tokens: int,
        *,
        arrival_ns: int = 0,
        shared: Segments = (),
        priority: int = 0,
    ) -> None:
        self.id = id
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.arrival_ns = arrival_ns
        self.shared = shared
        self.priority = priority
        self.target = prompt_tokens

    def __repr__(self) -> str:
        return f"Request({self.id!r}, {self.prompt_tokens} in, {self.output_tokens} out)"

    @property
    def decoding(self) -> bool:
        """Whether it is past its prefill and running."""
        return self.end != NEVER

    def made_by(self, steps: int) -> int:
        """Output tokens made when the engine has done `steps` steps."""
        return self.made if self.end == NEVER else self.output_tokens - (self.end - steps)

    def computed_by(self, steps: int) -> int:
        """Tokens with KV when the engine has done `steps` steps; the last token made has none yet."""
        if self.end == NEVER:
            return self.computed
        return self.prompt_tokens + self.output_tokens - 1 - (self.end - steps)
