"""A workload as data: written to a run directory, read back, and the same load again from the same seed."""

from typing import Literal

import msgspec

LENGTHS_HELP = "a number, uniform:LOW-HIGH, lognormal:MEAN:CV[:LOW-HIGH], or a list 100,200,300"
BURST_HELP = "SIZE/PERIOD, as in 50/10s"
STAGES_HELP = "DURATION:FROM-TO or DURATION:SHARE, shares of the rate, as in 30s:0.1-1,60s:1"
"""How `workload.parse` reads what people write."""


class Lengths(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A distribution of token counts.

    `fixed`: always `mean`. `uniform`: whole numbers from `low` to `high`. `lognormal`: mean `mean` and
    coefficient of variation `cv`, cut to [`low`, `high`]. `empirical`: drawn from `values`, with `weights`
    where given.
    """

    kind: Literal["fixed", "uniform", "lognormal", "empirical"] = "fixed"
    mean: float = 0.0
    cv: float = 0.0
    low: int = 1
    high: int = 1_000_000
    values: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()

    @property
    def sure_to_reach(self) -> int:
        """The longest length that is sure to come: of a distribution with a tail, its mean."""
        match self.kind:
            case "uniform":
                return self.high
            case "empirical":
                return max(self.values, default=1)
            case _:
                return round(self.mean)


class Stage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """For `seconds` the rate goes straight from `start` to `end`, both as shares of the rate asked."""

    seconds: float
    start: float = 1.0
    end: float = 1.0


class Arrivals(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An arrival process, scaled by the rate it is asked for.

    `poisson`, `gamma` (shape `burstiness`, 1 = Poisson, smaller = burstier, as in vLLM's own benchmark) or
    `constant` gaps; on top of it, `burst_size` requests at once every `burst_every_s` seconds. `stages` bend
    the rate over time; after the last one its `end` goes on.
    """

    kind: Literal["poisson", "gamma", "constant"] = "poisson"
    burstiness: float = 1.0
    burst_size: int = 0
    burst_every_s: float = 0.0
    stages: tuple[Stage, ...] = ()


class Prefixes(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts open with one of `groups` shared texts of `tokens` tokens, each as likely.

    A prompt drawn shorter than that is the shared text and one token more.
    """

    tokens: int
    groups: int = 1


class Conversations(msgspec.Struct, frozen=True, kw_only=True):
    """Requests come in conversations of `turns` requests, with a pause between an answer and the next turn.

    The pause is exponential with a mean of `think_s` seconds. Each turn's prompt holds the whole conversation
    so far and `prompt_tokens` more. The place of earlier answers is taken by text of the length that was
    asked for, so their tokens are prefilled, not cached.
    The rate is that of requests: conversations begin at rate / mean turns.
    """

    turns: Lengths
    think_s: float


class Replay(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The requests of a trace file at its own instants, stretched so that their mean rate is the one asked.

    After its end the trace begins again. `sha256` is that of the file, so that the same load can be told from
    another.
    """

    path: str
    sha256: str = ""


class Workload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Arrivals and lengths of the requests that are offered.

    `pairs` of (prompt, output) tokens, drawn together with the given weights, replace the two lengths;
    `replay` replaces them and the arrivals. `prefixes` and `conversations` exclude each other and `replay`.
    """

    prompt_tokens: Lengths
    output_tokens: Lengths
    arrivals: Arrivals = Arrivals()
    pairs: tuple[tuple[int, int], ...] = ()
    pair_weights: tuple[float, ...] = ()
    prefixes: Prefixes | None = None
    conversations: Conversations | None = None
    replay: Replay | None = None

    @property
    def shares_text(self) -> bool:
        """Whether prompts share text by design, so that a prefix cache may hit."""
        return self.prefixes is not None or self.conversations is not None or self.replay is not None
