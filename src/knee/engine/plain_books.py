"""What a plain point has seen, made from its columns when somebody asks."""

import numpy as np

from knee.core.requests import CENSORED, NEVER, OK, Gaps, Ints, Observed, column
from knee.engine.metrics import Metrics
from knee.engine.plain import ROW_BITS, ROW_MASK, Plain


def observed(plain: Plain) -> Observed:
    """All there is to see now."""
    n = plain.offered
    due, prompt, asked = (part[:n] for part in plain.columns())
    last = column(plain.last[:n])
    _, first = _begun_and_first(plain, n)
    made = np.where(last == NEVER, 0, asked)
    end = last.copy()
    rows, tokens = _decoding(plain)
    made[rows] = tokens
    last[rows] = plain.now_ns
    return Observed(
        due_ns=due,
        sent_ns=due.copy(),
        first_ns=first,
        last_ns=last,
        end_ns=end,
        outcome=np.where(end == NEVER, CENSORED, OK).astype(np.int8),
        prompt_tokens=prompt,
        asked_tokens=asked,
        output_tokens=made,
        first_tokens=(first != NEVER).astype(np.int64),
        gaps=_gaps(plain),
        end_of_load_ns=plain.now_ns,
    )


def gauges(plain: Plain) -> dict[str, float]:
    """The gauges as they stood when the last step ended."""
    size = plain.config.block_size
    rows, tokens = _decoding(plain)
    _, prompt, _ = plain.columns()
    held = int((-((1 - prompt[rows] - tokens) // size)).sum())
    if plain.left:
        held += -((plain.left - plain.prompt[plain.begun - 1]) // size)
    total = plain.config.num_gpu_blocks - 1
    waiting = float(plain.offered - plain.begun)
    return {
        "num_requests_running": float(len(rows) + bool(plain.left)),
        "num_requests_waiting": waiting,
        "num_requests_waiting_by_reason{capacity}": waiting,
        "num_requests_waiting_by_reason{deferred}": 0.0,
        "kv_cache_usage_perc": 1 - (total - held) / total,
    }


def count(plain: Plain, metrics: Metrics, over: bool) -> None:
    """Add what has happened to `metrics`; `over`: what is unfinished is aborted now."""
    due, prompt, asked = plain.columns()
    n = plain.offered
    scheduled, first = _begun_and_first(plain, n)
    spoken = first != NEVER
    mixed, quiet = plain.told()
    took, decodes, at = mixed[:, 0], mixed[:, 1], mixed[:, 2]
    metrics.inter_token.observe_all(took, decodes)
    metrics.inter_token.observe_all(quiet[:, 0], quiet[:, 1] * quiet[:, 2])
    tokens = decodes.copy()
    np.add.at(tokens, np.searchsorted(at, first[spoken]), 1 + prompt[:n][spoken])
    metrics.iteration_tokens.observe_all(tokens[tokens > 0])
    metrics.iteration_tokens.observe_all(quiet[:, 1], quiet[:, 2])
    metrics.first_token.observe_all((first - due[:n])[spoken])
    metrics.prompt_tokens += int(prompt[:n][spoken].sum())
    metrics.generated += int(decodes.sum() + (quiet[:, 1] * quiet[:, 2]).sum() + spoken.sum())
    if plain.config.enable_prefix_caching:
        metrics.cache_queries += int(prompt[: plain.begun].sum())
    last = column(plain.last[:n])
    made = np.where(last == NEVER, 0, asked[:n])
    rows, so_far = _decoding(plain)
    made[rows] = so_far
    none = np.zeros(n, dtype=np.int64)
    for reason, chosen in (("length", last != NEVER), ("abort", (last == NEVER) & over)):
        end = np.where(last == NEVER, plain.now_ns, last)
        table = (due[:n], due[:n], scheduled, first, end, end, prompt[:n], made, asked[:n], none, none)
        metrics.finished[reason] += int(chosen.sum())
        metrics.ended_all(np.stack(table)[:, chosen])


def unfinished(plain: Plain, from_ns: int, until_ns: int) -> int:
    """How many requests due in [from_ns, until_ns) go on."""
    due = plain.columns()[0]
    low, high = np.searchsorted(due[: plain.offered], (from_ns, until_ns))
    return plain.last[low:high].count(NEVER)


def _decoding(plain: Plain) -> tuple[Ints, Ints]:
    """The rows that decode, and how many tokens each has made."""
    heap = sorted(plain.decodes)[
        :-1
    ]  # after some 8 million steps its numbers are wider than a column's 64 bits
    rows = column([entry & ROW_MASK for entry in heap])
    ends = column([entry >> ROW_BITS for entry in heap])
    return rows, plain.columns()[2][rows] - (ends - plain.steps)


def _begun_and_first(plain: Plain, n: int) -> tuple[Ints, Ints]:
    """When each of the first `n` requests was scheduled, and when it had its first token."""
    mixed, _ = plain.told()
    took, _, at, begun, left = mixed.T
    scheduled, first = np.full((2, n), NEVER, dtype=np.int64)
    scheduled[: plain.begun] = np.repeat(at - took, np.diff(begun, prepend=0))
    computed = begun - (left > 0)
    first[: plain.begun - (plain.left > 0)] = np.repeat(at, np.diff(computed, prepend=0))
    return scheduled, first


def _gaps(plain: Plain) -> Gaps:
    """Two entries for a stretch of several steps: only its last step may end past a boundary."""
    mixed, quiet = plain.told()
    took, decodes, steps, at = quiet.T
    ns = np.concatenate((mixed[:, 0], took, took))
    counts = np.concatenate((mixed[:, 1], decodes * (steps - 1), decodes))
    ends = np.concatenate((mixed[:, 2], at - took, at))
    order = np.argsort(ends, kind="stable")
    order = order[counts[order] > 0]
    return Gaps(ns=ns[order], count=counts[order], at_ns=ends[order])
