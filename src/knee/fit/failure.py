"""Why a server did not start, and the remedy with its numbers."""

import math
import re

from knee.catalog.flags import flag, flag_status
from knee.catalog.version import parse_version
from knee.core.errors import UsageError
from knee.fit.startup import Failure, Memory

Groups = dict[str, str | None]

_BLOCK = 16
_STEP = 0.01
_SHORT = 400


def context_too_long(cause: str, groups: Groups, memory: Memory) -> Failure:
    """The cache holds less than one request of `max_model_len` tokens (V1, in memory)."""
    asked = int(groups["max_model_len"] or 0)
    need, available = float(groups["need"] or 0), float(groups["avail"] or 0)
    estimate = groups.get("est")
    largest, estimated = int(estimate) if estimate else None, False
    if largest is None and available > 0 and need > 0:
        largest, estimated = math.floor(asked * available / need / _BLOCK) * _BLOCK, True
    utilization = _utilization_for(memory, need - available)
    if largest is None:
        advice = "no context fits: give the cache more memory"
    elif estimated:
        advice = (
            f"at most --max-model-len {largest}, a linear estimate ({asked:,} x {available:g} / {need:g}) "
            "since the log gives none; an upper guess where some layers need memory of their own"
        )
    else:
        advice = f"--max-model-len {largest} is the largest context that fits"
    more = (
        f", or --gpu-memory-utilization {utilization:g} to keep {asked:,}"
        if utilization is not None and utilization <= 1
        else f", or {need - available:.2f} GiB more KV memory a GPU to keep {asked:,}"
    )
    return Failure(
        kind="context_too_long",
        cause=shorten(cause),
        remedy=advice + more,
        flag=f"--max-model-len {largest}" if largest else "",
        largest_context=largest,
        estimated=estimated,
        min_utilization=utilization,
        need_gib=need,
        available_gib=available,
    )


def context_too_long_v0(cause: str, groups: Groups, memory: Memory) -> Failure:
    """The cache holds fewer tokens than `max_model_len` (V0, in tokens)."""
    del memory
    asked, tokens = int(groups["max_model_len"] or 0), int(groups["tokens"] or 0)
    return Failure(
        kind="context_too_long",
        cause=shorten(cause),
        remedy=f"--max-model-len {tokens} is the largest context that fits; for {asked - tokens:,} tokens "
        "more raise --gpu-memory-utilization",
        flag=f"--max-model-len {tokens}",
        largest_context=tokens,
    )


def no_cache_memory(cause: str, groups: Groups, memory: Memory) -> Failure:
    """Weights, activations and graphs leave nothing for the cache."""
    del groups
    missing = -memory.kv_gib if memory.kv_gib is not None else None
    utilization = _utilization_for(memory, missing) if missing is not None else None
    if utilization is not None and utilization <= 1:
        remedy = f"--gpu-memory-utilization must be above {utilization:g} before any block fits"
    elif utilization is not None:
        remedy = "no utilization is enough: more GPUs (--tensor-parallel-size), or quantized weights"
    elif missing is not None:
        remedy = (
            f"{missing:.2f} GiB are missing before any block fits: raise --gpu-memory-utilization by more "
            f"than {missing:.2f} / the GPU's total GiB (not in the log), add GPUs, or quantize"
        )
    else:
        remedy = (
            "raise --gpu-memory-utilization, add GPUs (--tensor-parallel-size) or quantize; by how much the "
            "log does not say"
        )
    return Failure(
        kind="no_cache_memory",
        cause=shorten(cause),
        remedy=remedy,
        flag=f"--gpu-memory-utilization {utilization:g}" if utilization and utilization <= 1 else "",
        min_utilization=utilization,
        available_gib=memory.kv_gib,
    )


def other_processes(cause: str, groups: Groups, memory: Memory) -> Failure:
    """Somebody else holds memory of the device."""
    del memory
    free, total, wanted = (float(groups[key] or 0) for key in ("free", "total", "want"))
    highest = math.floor(free / total / _STEP) * _STEP
    return Failure(
        kind="other_processes",
        cause=shorten(cause),
        remedy=f"{total - free:.2f} of {total:g} GiB are held by other processes ({wanted:g} GiB were asked "
        f"for): end them, or set --gpu-memory-utilization {highest:.2f} at most ({free:g} / {total:g})",
        flag=f"--gpu-memory-utilization {highest:.2f}",
        max_utilization=round(highest, 2),
        available_gib=free,
        need_gib=wanted,
    )


def sampler_out_of_memory(cause: str, groups: Groups, memory: Memory) -> Failure:
    """The sampler's (or pooler's) warm-up with max_num_seqs requests did not fit."""
    del memory
    count = f" below {groups['n']}" if groups.get("n") else ""
    return Failure(
        kind="sampler_out_of_memory",
        cause=shorten(cause),
        remedy=f"lower --max-num-seqs{count} (256 is enough for most), or --gpu-memory-utilization by 0.02",
    )


def mamba_blocks(cause: str, groups: Groups, memory: Memory) -> Failure:
    """Every running request needs a Mamba block of its own."""
    del memory
    return Failure(
        kind="mamba_blocks",
        cause=shorten(cause),
        remedy=f"--max-num-seqs {groups['blocks']} is the most there are blocks for",
        flag=f"--max-num-seqs {groups['blocks']}",
    )


def out_of_memory(cause: str, stage: str, memory: Memory) -> Failure:
    """PyTorch found no memory; `stage` is where: `loading`, `profiling` or `graph capture`."""
    used = f" (now {memory.utilization:g})" if memory.utilization is not None else ""
    if stage == "graph capture":
        return Failure(
            kind="graph_capture_out_of_memory",
            cause=shorten(cause),
            remedy="the cache was sized before the graphs were captured: lower --gpu-memory-utilization"
            f"{used} by 0.01 to 0.03, lower --max-cudagraph-capture-size, or --enforce-eager",
        )
    if stage == "profiling":
        return Failure(
            kind="profiling_out_of_memory",
            cause=shorten(cause),
            remedy="a full batch does not fit beside the weights: lower --max-num-batched-tokens, then "
            "--max-num-seqs",
        )
    return Failure(
        kind="loading_out_of_memory",
        cause=shorten(cause),
        remedy="the weights do not fit: more GPUs (--tensor-parallel-size), quantized weights, or a GPU that "
        "nobody else uses",
    )


def bad_argument(cause: str, groups: Groups, version: str) -> Failure:
    """The command line was refused; the catalog says whether the flag is gone or not there yet."""
    remedies = []
    for word in re.findall(r"--[a-z][a-z0-9-]*", groups.get("unknown") or ""):
        known = flag(word)
        if known is None:
            remedies.append(f"{word} is no flag that the catalog knows: check its spelling")
        elif known.removed:
            instead = f"; use {known.replaced_by}" if known.replaced_by else ""
            remedies.append(f"{word} was removed in {known.removed}{instead}")
        elif version and _status(known.name, version) == "not yet":
            remedies.append(f"{word} came with {known.since}")
        else:
            remedies.append(f"{word} came with {known.since} and may be newer than this server")
    return Failure(
        kind="bad_argument",
        cause=shorten(cause),
        remedy="; ".join(remedies) or "correct the command line",
    )


def killed(cause: str) -> Failure:
    """The process was ended from outside while it loaded."""
    return Failure(
        kind="killed",
        cause=shorten(cause),
        remedy="ended from outside while loading: under Kubernetes raise the startup probe's "
        "failureThreshold to two to three times the measured start; after exit code 137 the memory limit",
    )


def other(cause: str) -> Failure:
    """Anything else; the first exception further up is the cause."""
    return Failure(kind="other", cause=shorten(cause), remedy="see the traceback above this line in the log")


def shorten(text: str) -> str:
    """The sentence without the prefix of its line, cut to a readable length."""
    found = re.search(r"(?:[A-Za-z_.]+(?:Error|Exception|Interrupt)): .*", text, re.DOTALL)
    plain = re.sub(r"\s+", " ", found.group() if found else text).strip()
    return plain if len(plain) <= _SHORT else plain[: _SHORT - 1] + "…"


def _utilization_for(memory: Memory, missing_gib: float) -> float | None:
    """The smallest utilization, in hundredths, that gives `missing_gib` more; above 1 where none does."""
    if memory.total_gib is None or memory.utilization is None:
        return None
    return round(math.ceil((memory.utilization + missing_gib / memory.total_gib) / _STEP - 1e-9) * _STEP, 2)


def _status(name: str, version: str) -> str:
    found = flag(name)
    try:
        return flag_status(found, parse_version(version)) if found else "unknown"
    except UsageError:
        return "unknown"
