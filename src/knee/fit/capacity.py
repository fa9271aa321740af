"""The capacity rule: KV tokens / p95 tokens per request >= max_num_seqs, with a margin.

What is admitted beyond it fits only while outputs are short; once they grow the scheduler preempts.
"""

import math
from typing import Literal

import msgspec

from knee.catalog.version import parse_version
from knee.core.errors import UsageError
from knee.fit.startup import EngineKv, StartupReport

MARGIN = 0.1
Verdict = Literal["fits", "no margin", "too many", "unknown"]
_CONCURRENCY_IS_TRUTH_BEFORE = "0.21.0"
_ROUNDING = 0.02
_LEAST_DEFAULT = 128
"""No release defaults to fewer sequences, on any device."""


class Capacity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one engine can hold, in requests; `requests` is at `tokens_per_request` and without margin.

    `recommended` leaves `margin` (a share of the cache) free. `verdict` compares `max_num_seqs`, None where
    it is not known.
    """

    kv_tokens: int
    tokens_per_request: int
    basis: str
    requests: int
    recommended: int
    margin: float
    max_num_seqs: int | None
    verdict: Verdict
    notes: tuple[str, ...] = ()


def usable_tokens(engine: EngineKv, version: str = "") -> tuple[int | None, str]:
    """The tokens that the engine can hold, and a note where they are not the printed ones.

    Before 0.21.0 the printed tokens understate models with several kinds of layers: there the concurrency is
    right, and tokens are concurrency x max_model_len (vllm issue 40691). Newer versions print that product.
    """
    tokens, times, length = engine.kv_tokens, engine.concurrency, engine.max_model_len
    if tokens is None:
        return (int(times * length), "") if times and length else (None, "")
    if not times or not length or _prints_product(version):
        return tokens, ""
    effective = int(times * length)
    if effective > tokens * (1 + _ROUNDING) + length * 0.01:
        note = (
            f"the log prints {tokens:,} tokens, but a concurrency of {times:g} at {length:,} tokens means "
            f"{effective:,}: layers of several kinds (sliding window, linear); the concurrency is right, and "
            "requests shorter than a sliding window take more a token than that"
        )
        return effective, note
    return tokens, ""


def _prints_product(version: str) -> bool:
    try:
        return bool(version) and parse_version(version).reaches(_CONCURRENCY_IS_TRUTH_BEFORE)
    except UsageError:
        return False


def check_rule(tokens_per_request: float, margin: float) -> None:
    """See that a length is one and a margin a share.

    Raises:
        UsageError: `tokens_per_request` is not positive and finite, or `margin` not in [0, 1).
    """
    if not 0 < tokens_per_request < math.inf:
        raise UsageError(
            f"tokens per request are positive: {tokens_per_request:g}", "prompt plus output, as --p95-tokens"
        )
    if not 0 <= margin < 1:
        raise UsageError(f"a margin lies between 0 and 1: {margin:g}", "0.1 leaves a tenth of the cache free")


def apply_rule(
    kv_tokens: int,
    tokens_per_request: float,
    max_num_seqs: int | None,
    *,
    basis: str = "p95",
    margin: float = MARGIN,
    notes: tuple[str, ...] = (),
) -> Capacity:
    """The rule for one engine with a cache of `kv_tokens` tokens.

    Raises:
        UsageError: as `check_rule`.
    """
    check_rule(tokens_per_request, margin)
    each = math.ceil(tokens_per_request)
    requests = kv_tokens // each
    recommended = int(kv_tokens * (1 - margin)) // each
    return Capacity(
        kv_tokens=kv_tokens,
        tokens_per_request=each,
        basis=basis,
        requests=requests,
        recommended=recommended,
        margin=margin,
        max_num_seqs=max_num_seqs,
        verdict=_verdict(max_num_seqs, requests, recommended),
        notes=notes,
    )


def _verdict(max_num_seqs: int | None, requests: int, recommended: int) -> Verdict:
    if requests < 1:
        return "too many"
    if max_num_seqs is None:
        return "too many" if requests < _LEAST_DEFAULT else "unknown"
    if max_num_seqs <= recommended:
        return "fits"
    return "no margin" if max_num_seqs <= requests else "too many"


def by_count(item: Capacity, requests: int) -> Capacity:
    """The same rule where `requests` are known to fit by other means."""
    recommended = int(requests * (1 - item.margin))
    verdict = _verdict(item.max_num_seqs, requests, recommended)
    return msgspec.structs.replace(item, requests=requests, recommended=recommended, verdict=verdict)


def smallest(report: StartupReport) -> tuple[EngineKv, int, str] | None:
    """The engine with the smallest cache, its usable tokens and a note; None where no capacity is known."""
    sized = [
        (engine, tokens, note)
        for engine in report.engines
        for tokens, note in (usable_tokens(engine, report.version),)
        if tokens is not None
    ]
    return min(sized, key=lambda item: item[1], default=None)


def capacity_of(
    report: StartupReport,
    tokens_per_request: float | None = None,
    *,
    max_num_seqs: int | None = None,
    margin: float = MARGIN,
    basis: str = "p95",
) -> Capacity | None:
    """The rule for the engine that binds; None where the report holds no capacity.

    Without `tokens_per_request` every request is taken to be `max_model_len` long, the worst case.
    `max_num_seqs` overrides the log's.
    """
    found = smallest(report)
    if found is None:
        return None
    engine, tokens, note = found
    length = engine.max_model_len or report.max_model_len
    notes = [note] if note else []
    if tokens_per_request is None:
        if length is None:
            return None
        tokens_per_request, basis = length, "max_model_len"
    elif length is not None and tokens_per_request > length:
        notes.append(
            f"{tokens_per_request:,.0f} tokens are more than max_model_len {length:,}: those are refused"
        )
    if length is not None and tokens < length:
        notes.append(
            f"a request of max_model_len {length:,} does not fit in {tokens:,} tokens: it waits forever"
        )
    if len(report.engines) > 1:
        notes.append(
            f"{len(report.engines)} engines; max_num_seqs holds for each, the smallest ({engine.name}) binds"
        )
    cap = max_num_seqs if max_num_seqs is not None else report.max_num_seqs
    return apply_rule(tokens, tokens_per_request, cap, basis=basis, margin=margin, notes=tuple(notes))
