"""What the engine counts, under normalised names and with vLLM's bucket bounds (v1/metrics/loggers.py)."""

from collections.abc import Iterable, Sequence
from copy import copy, deepcopy

import numpy as np

from knee.catalog.metrics import bucket_bounds, metric
from knee.core.requests import NEVER, Ints, column
from knee.core.snapshot import Histogram
from knee.core.units import NS_PER_S
from knee.engine.request import Request

FOLD_AT = 1 << 15


class Tally:
    """A histogram that grows: whole numbers (ns or tokens) in, a `Histogram` in the unit of its name out."""

    def __init__(self, bounds: Sequence[float], unit: int = 1) -> None:
        self.bounds = tuple(float(bound) for bound in bounds)
        self.unit = unit
        self._edges = np.array([round(bound * unit) for bound in bounds], dtype=np.int64)
        self.counts = np.zeros(len(bounds) + 1, dtype=np.int64)
        self._sum = 0
        self.values: list[int] = []
        self.weights: list[int] = []

    def __deepcopy__(self, memo: object) -> "Tally":
        twin = copy(self)
        twin.counts = self.counts.copy()
        twin.values, twin.weights = self.values.copy(), self.weights.copy()
        return twin

    def observe(self, value: int, weight: int = 1) -> None:
        """Count `value`, `weight` times."""
        self.values.append(value)
        self.weights.append(weight)
        if len(self.values) >= FOLD_AT:
            self._fold()

    def observe_all(self, values: Ints, weights: Ints | None = None) -> None:
        """Count each of `values` once, or as often as its weight says."""
        slots = np.searchsorted(self._edges, values, side="left")
        if weights is None:
            self.counts += np.bincount(slots, minlength=len(self.counts))
            self._sum += int(values.sum())
        else:
            np.add.at(self.counts, slots, weights)
            self._sum += int((values * weights).sum())

    def histogram(self) -> Histogram:
        """The cumulative histogram so far."""
        self._fold()
        cumulative = np.cumsum(self.counts)
        return Histogram(
            bounds=self.bounds,
            counts=tuple(float(count) for count in cumulative[:-1]),
            count=float(cumulative[-1]),
            sum=self._sum / self.unit,
        )

    def _fold(self) -> None:
        if not self.values:
            return
        self.observe_all(column(self.values), column(self.weights))
        self.values.clear()
        self.weights.clear()


FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
REJECTIONS = ("max_num_queued_reqs", "max_num_queued_tokens")
PER_REQUEST = (
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_max_num_generation_tokens",
    "request_params_max_tokens",
    "request_params_n",
    "request_num_preemptions",
    "request_prefill_kv_computed_tokens",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_inference_time_seconds",
    "request_time_per_output_token_seconds",
)


def _tally(name: str, max_model_len: int) -> Tally:
    known = metric(name)
    assert known is not None, name
    return Tally(bucket_bounds(known, max_model_len), NS_PER_S if name.endswith("_seconds") else 1)


class Metrics:
    """Counters and histograms of one engine."""

    def __init__(self, max_model_len: int) -> None:
        self.preemptions = 0
        self.generated = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.cache_queries = 0
        self.cache_hits = 0
        self.finished = dict.fromkeys(FINISH_REASONS, 0)
        self.rejected = dict.fromkeys(REJECTIONS, 0)
        self.iteration_tokens = _tally("iteration_tokens", max_model_len)
        self.first_token = _tally("time_to_first_token_seconds", max_model_len)
        self.inter_token = _tally("inter_token_latency_seconds", max_model_len)
        self._by_request = {name: _tally(name, max_model_len) for name in PER_REQUEST}
        self.keep_gaps = False
        self._rows: list[tuple[int, ...]] = []
        self._steps: list[tuple[int, int, int, int, int]] = []
        self._gaps: list[Ints] = []

    def copy(self) -> "Metrics":
        """The same so far; from here on each counts for itself."""
        return deepcopy(self)

    def stepped(self, row: tuple[int, int, int, int, int]) -> None:
        """A gap in ns, between how many pairs of tokens, when; tokens of an iteration, and of how many such.

        The first three are kept for `take_gaps` where `keep_gaps` is set.
        """
        self._steps.append(row)
        if len(self._steps) >= FOLD_AT:
            self._fold_steps()

    def take_gaps(self) -> Ints:
        """The gaps between tokens since the last call: a row (ns, between how many pairs, when) for each."""
        self._fold_steps()
        gaps = np.concatenate([column([]).reshape(-1, 3), *self._gaps])
        self._gaps.clear()
        return gaps

    def started(self, request: Request) -> None:
        """A request got its first token."""
        self.first_token.observe(request.first_ns - request.arrival_ns)
        self.prompt_tokens += request.prompt_tokens
        self.cached_tokens += request.cached_tokens

    def ended(self, request: Request, made: int, reason: str) -> None:
        """A request ended after `made` output tokens."""
        self.finished[reason] += 1
        self._rows.append(
            (
                request.arrival_ns, request.queued_ns, request.scheduled_ns, request.first_ns,
                request.last_ns, request.finished_ns, request.prompt_tokens, made, request.output_tokens,
                request.preemptions, max(request.cached_tokens, 0),
            )
        )  # fmt: skip
        if len(self._rows) >= FOLD_AT:
            self._fold()

    def counters(self) -> dict[str, float]:
        """Counters under their normalised names."""
        computed = self.prompt_tokens - self.cached_tokens
        return {
            "num_preemptions": self.preemptions,
            "prompt_tokens": self.prompt_tokens,
            "prompt_tokens_cached": self.cached_tokens,
            "prompt_tokens_by_source{local_compute}": computed,
            "prompt_tokens_by_source{local_cache_hit}": self.cached_tokens,
            "prompt_tokens_by_source{external_kv_transfer}": 0,
            "generation_tokens": self.generated,
            "prefix_cache_queries": self.cache_queries,
            "prefix_cache_hits": self.cache_hits,
            **{f"request_success{{{reason}}}": count for reason, count in self.finished.items()},
            **{f"admission_rejections{{{reason}}}": count for reason, count in self.rejected.items()},
        }

    def histograms(self) -> dict[str, Histogram]:
        """Histograms under their normalised names."""
        self._fold()
        self._fold_steps()
        return {
            "iteration_tokens": self.iteration_tokens.histogram(),
            "time_to_first_token_seconds": self.first_token.histogram(),
            "inter_token_latency_seconds": self.inter_token.histogram(),
            **{name: tally.histogram() for name, tally in self._by_request.items()},
        }

    def _fold(self) -> None:
        if self._rows:
            rows = column(self._rows).T
            self._rows.clear()
            self.ended_all(rows)

    def _fold_steps(self) -> None:
        if self._steps:
            rows = column(self._steps)
            self._steps.clear()
            self.inter_token.observe_all(rows[:, 0], rows[:, 1])
            self.iteration_tokens.observe_all(rows[:, 3], rows[:, 4])
            if self.keep_gaps:
                self._gaps.append(rows[rows[:, 1] > 0, :3])

    def ended_all(self, rows: Iterable[Ints]) -> None:
        """Count requests that ended; their columns are the rows of `rows`.

        When each arrived, was queued, was scheduled, had its first and its last token, and ended; its prompt,
        the tokens made and asked for, its preemptions, and the tokens found in the cache.
        """
        arrival, queued, scheduled, first, last, finished, prompt, made, asked, preempted, cached = rows
        ran, spoke = scheduled != NEVER, first != NEVER
        decode = np.where(spoke, last - first, 0)
        seen = {
            "request_prompt_tokens": prompt,
            "request_generation_tokens": made,
            "request_max_num_generation_tokens": made,
            "request_params_max_tokens": asked,
            "request_num_preemptions": preempted,
            "request_prefill_kv_computed_tokens": prompt - cached,
            "e2e_request_latency_seconds": finished - arrival,
            "request_queue_time_seconds": (scheduled - queued)[ran],
            "request_prefill_time_seconds": (first - scheduled)[spoke],
            "request_decode_time_seconds": decode,
            "request_inference_time_seconds": np.where(spoke, last - scheduled, 0),
            "request_time_per_output_token_seconds": np.where(made > 1, decode // np.maximum(made - 1, 1), 0),
        }
        for name, values in seen.items():
            self._by_request[name].observe_all(values)
        self._by_request["request_params_n"].observe_all(column([1]), column([len(made)]))
