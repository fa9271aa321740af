"""What one step does."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from knee.engine.request import Request


class Step:
    """What one step does: who takes part with how many tokens, and what that makes."""

    __slots__ = (
        "admitted", "context_tokens", "decodes", "emits", "planned", "preempted", "prefill_tokens", "starved",
    )  # fmt: skip

    def __init__(self) -> None:
        self.decodes = 0  # how many take part of whom nothing else needs to be said
        self.planned: dict[Request, int] = {}
        self.admitted: list[Request] = []
        self.preempted: list[Request] = []
        self.starved: list[Request] = []  # decodes that got no token of the budget
        self.emits: list[Request] = []
        self.prefill_tokens = 0
        self.context_tokens = 0
