"""The command line of `vllm serve` that brings back the server that was measured."""

import ast
from typing import Any

import msgspec

from knee.core.errors import UsageError
from knee.core.lock import Lock
from knee.deploy.startup import Startup

_MODEL = ("model-tag", "model")
_OURS = (*_MODEL, "host", "port", "uds", "shutdown-timeout", "max-num-queued-reqs")
"""What the deployment sets itself."""
_SECRET = ("api-key", "hf-token", "ssl-keyfile")


def serve_arguments(lock: Lock) -> list[str]:
    """The model and the measured flags, without those that the deployment sets itself, and without secrets.

    A server that was started from a path serves under the name that clients used. Values that read true or
    false become bare flags, Python literals what a command line takes; empty ones and None are left out.
    """
    flags = _by_dashes(lock.flags)
    model = next((flags[name] for name in _MODEL if flags.get(name)), lock.model)
    given = [model]
    if lock.model and model != lock.model and "served-model-name" not in flags:
        given += ["--served-model-name", lock.model]
    for name, value in sorted(flags.items()):
        if name not in _OURS and name not in _SECRET and value not in ("", "None"):
            given += _flag(name, value)
    return given


def _flag(name: str, value: str) -> list[str]:
    if value.lower() in ("true", "false"):
        return [f"--{name}" if value.lower() == "true" else f"--no-{name}"]
    literal = _literal(value)
    if isinstance(literal, dict):
        return [f"--{name}", msgspec.json.encode(literal).decode()]
    if isinstance(literal, list | tuple):
        return [f"--{name}", *(str(item) for item in literal)] if literal else []
    return [f"--{name}", value]


def _literal(value: str) -> Any:
    if not value.startswith(("{", "[", "(")):
        return None
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return None  # JSON, or something that only vLLM reads: passed on as it is


def gpus_of(lock: Lock) -> int:
    """Accelerators of one replica: tensor x pipeline x data parallel; 0 on the CPU.

    Raises:
        UsageError: a size is no whole number.
    """
    if "cpu" in lock.gpu.lower():
        return 0
    flags = _by_dashes(lock.flags)
    found = 1
    for kind in ("tensor", "pipeline", "data"):
        size = flags.get(f"{kind}-parallel-size") or "1"
        if not size.isdecimal():
            raise UsageError(f"{kind}_parallel_size is a whole number: {size!r}")
        found *= int(size)
    return found


def public_flags(flags: dict[str, str]) -> dict[str, str]:
    """`flags` without those that hold secrets."""
    return {name: value for name, value in flags.items() if name.lstrip("-").replace("_", "-") not in _SECRET}


def told_by_log(lock: Lock, startup: Startup) -> Lock:
    """`lock` with what only the server's log knows: its flags, version and model where the run has none."""
    return msgspec.structs.replace(
        lock,
        flags=lock.flags or startup.flags,
        vllm_version=lock.vllm_version or startup.version,
        model=lock.model or startup.model,
        startup_s=startup.total_s,
    )


def _by_dashes(flags: dict[str, str]) -> dict[str, str]:
    return {name.lstrip("-").replace("_", "-"): value for name, value in flags.items()}
