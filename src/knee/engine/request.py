"""One request inside the engine, and what it has been through."""

from knee.core.requests import NEVER

Segments = tuple[tuple[int, int], ...]


class Request:
    """A request and its state.

    `shared` are the segments `(segment_id, tokens)` that open its prompt; equal leading segments are equal
    text.
    `arrival_ns` is when the front end got it, `queued_ns` when the engine did.

    While it is not decoding, `computed` counts the tokens with KV and `target` those it needs before the next
    token can be sampled (after a preemption: prompt and output so far). While it decodes, `end` says all: it
    ends when the engine has done `end` steps, so that a step in which nothing but decoding happens changes no
    request at all. `serial` orders the running requests.
    """

    __slots__ = (
        "arrival_ns", "cached_tokens", "computed", "end", "finished_ns", "first_ns", "id", "last_ns",
        "lease", "made", "output_tokens", "preemptions", "priority", "prompt_tokens", "queued_ns",
        "scheduled_ns", "serial", "shared", "target",
    )  # fmt: skip

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
        self.queued_ns = arrival_ns
        self.scheduled_ns = NEVER
        self.first_ns = NEVER
        self.last_ns = NEVER
        self.finished_ns = NEVER
        self.computed = 0
        self.target = prompt_tokens
        self.made = 0
        self.end = NEVER
        self.serial = NEVER
        self.preemptions = 0
        self.cached_tokens = NEVER
        self.lease: object = None

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
