"""What a server tells about itself beside its metrics: version, flags, whether its engine is alive."""

from typing import Any

import msgspec

from knee.catalog.load import releases
from knee.catalog.version import parse_version
from knee.core.errors import TargetError, UsageError
from knee.http1.client import Client

_SCHEDULER = (
    "max_num_seqs",
    "max_num_active_seqs",
    "max_num_batched_tokens",
    "max_num_scheduled_tokens",
    "long_prefill_token_threshold",
    "max_num_queued_reqs",
    "max_num_queued_tokens",
)


class About(msgspec.Struct, frozen=True, kw_only=True):
    """`flags` are vLLM's, as far as the server tells; `dead` says that /health answered 503."""

    version: str = ""
    flags: dict[str, str] = {}
    dead: bool = False


async def ask(client: Client) -> About:
    """What the server behind `client` tells; what it does not tell is left out, never an error.

    /v1/models gives max_model_len; /server_info, which is there with VLLM_SERVER_DEV_MODE=1, the scheduler's
    flags (vllm/entrypoints/serve/instrumentator/server_info.py, 0.32).
    """
    flags: dict[str, str] = {}
    models = await _json(client, "/v1/models")
    listed = models.get("data") if isinstance(models, dict) else None
    if isinstance(listed, list) and listed and isinstance(listed[0], dict):
        _note(flags, listed[0], ("max_model_len",))
    info = await _json(client, "/server_info?config_format=json")
    config = info.get("vllm_config") if isinstance(info, dict) else None
    scheduler = config.get("scheduler_config") if isinstance(config, dict) else None
    if isinstance(scheduler, dict):
        _note(flags, scheduler, _SCHEDULER)
    version = await _json(client, "/version")
    stated = version.get("version") if isinstance(version, dict) else None
    return About(
        version=stated if isinstance(stated, str) else "",
        flags=flags,
        dead=await _status(client, "/health") == 503,
    )


def remark_on(version: str) -> str:
    """A remark where `version` is newer than every release the catalogue knows, or is none; "" otherwise."""
    if not version:
        return ""
    newest = releases().inspected[-1]
    try:
        newer = parse_version(version).release > parse_version(newest).release
    except UsageError:
        return f"the server's version {version[:40]!r} is none of vLLM's"
    return (
        f"vLLM {version} is newer than {newest}, the newest known here: names may have changed"
        if newer
        else ""
    )


def _note(flags: dict[str, str], stated: dict[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        value = stated.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            flags[name] = str(value)


async def _json(client: Client, path: str) -> Any:
    try:
        answer = await client.request(path)
        return answer.json() if answer.status == 200 else None
    except TargetError:
        return None


async def _status(client: Client, path: str) -> int:
    try:
        return (await client.request(path)).status
    except TargetError:
        return 0
