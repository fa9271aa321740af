"""Flags that a version of vLLM does not take, and bounds that contradict each other."""

import difflib
from collections.abc import Mapping

from knee.catalog.flags import all_flags, flag, flag_status
from knee.core.errors import UsageError
from knee.tune.config import Bounds, Flags

OURS = ("host", "port", "api_key", "model", "uds")
"""Flags that the launcher sets itself, or that hold a secret."""

SEQS, TOKENS = "max_num_seqs", "max_num_batched_tokens"


def plain(name: str) -> str:
    """A flag's name with underscores, however it was written."""
    return name.lstrip("-").replace("-", "_")


def check_flags(flags: Flags, version: str) -> None:
    """Look every flag up in the catalog, for `version` where that is known.

    Raises:
        UsageError: a flag is not one, is the launcher's business, or this version does not take it.
    """
    for name in flags:
        _check_name(name, version)
    contradiction = contradicts(flags)
    if contradiction:
        raise UsageError(contradiction, "vLLM refuses this: every running sequence needs a token a step")


def check_moves(moves: Mapping[str, Bounds], flags: Flags, version: str) -> None:
    """Check the flags that may move, and their bounds.

    Raises:
        UsageError: there are none, a flag is unknown or without effect, or bounds leave nothing to try.
    """
    if not moves:
        raise UsageError("no flag may move", "name some, as in [moves.max_num_seqs] low = 8, high = 512")
    for name, bounds in moves.items():
        _check_name(name, version, moves=True)
        _check_bounds(name, bounds)
        if name in flags and not bounds.admits(flags[name]):
            raise UsageError(f"{name} starts at {flags[name]}, outside of its own bounds in moves.{name}")
    most = moves[TOKENS].high if TOKENS in moves else _number(flags.get(TOKENS))
    least = moves[SEQS].low if SEQS in moves else _number(flags.get(SEQS))
    if most is not None and least is not None and most < least:
        raise UsageError(
            f"{TOKENS} is at most {most} and {SEQS} at least {least}",
            "vLLM refuses this: every running sequence needs a token a step",
        )


def contradicts(flags: Mapping[str, str]) -> str:
    """Why no server starts with these flags, "" where nothing is known against them."""
    tokens, seqs = _number(flags.get(TOKENS)), _number(flags.get(SEQS))
    if tokens is not None and seqs is not None and tokens < seqs:
        return f"{TOKENS} {tokens} is below {SEQS} {seqs}"
    return ""


def _check_name(name: str, version: str, moves: bool = False) -> None:
    dashed = "--" + name.replace("_", "-")
    if name in OURS:
        raise UsageError(
            f"{dashed} is not for [flags] or [moves]", "it belongs to [server] or the environment"
        )
    found = flag(name)
    if found is None:
        near = difflib.get_close_matches(dashed, [item.name for item in all_flags()], n=1)
        raise UsageError(f"vLLM has no flag {dashed}", f"did you mean {near[0]}?" if near else "")
    if not version:
        return
    status = flag_status(found, version)
    said = {
        "removed": f"vLLM {version} no longer has {dashed}, removed in {found.removed}",
        "not yet": f"vLLM {version} does not have {dashed} yet; it came with {found.since}",
    }
    if moves:
        said["no effect"] = f"{dashed} has no effect in vLLM {version}"
    if status in said:
        raise UsageError(said[status], f"use {found.replaced_by}" if found.replaced_by else "leave it out")


def _check_bounds(name: str, bounds: Bounds) -> None:
    where = f"moves.{name}"
    if bounds.values:
        if bounds.low is not None or bounds.high is not None:
            raise UsageError(f"{where} has values and bounds", "leave one of the two out")
        if len(set(bounds.values)) < 2:
            raise UsageError(f"{where} has one value", "with one value nothing can move")
        return
    if bounds.low is None or bounds.high is None:
        raise UsageError(f"{where} needs low and high, or values")
    if not 0 < bounds.low < bounds.high:
        raise UsageError(f"{where} goes from {bounds.low} to {bounds.high}", "0 < low < high")


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
