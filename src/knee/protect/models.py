"""`/v1/models` for all replicas at once: a replica that is down hides no model of another."""

import asyncio
from typing import Any

import msgspec

from knee.core.errors import KneeError
from knee.http1.client import Answer, fetch_async
from knee.http1.exchange import JSON, Request, Response
from knee.http1.reader import Refusal
from knee.protect.answers import UPSTREAM, answer, no_replica
from knee.protect.config import GatewayConfig
from knee.protect.upstream import Upstream

LIST_S = 5.0


async def list_models(
    request: Request, response: Response, ready: list[Upstream], config: GatewayConfig
) -> None:
    """Answer with the models of all `ready` replicas that answer, each model once.

    Where none lists any, the first replica's own answer goes back: a missing key is the client's to see.
    """
    if not ready:
        answer(response, no_replica(config))
        return
    key = request.header(b"authorization")
    headers = {"authorization": key} if key is not None else {}
    answers = await asyncio.gather(*(_ask(upstream, headers) for upstream in ready))
    heard = [found for found in answers if found is not None]
    models: dict[str, Any] = {}
    for found in heard:
        for model in _models(found):
            models.setdefault(str(model["id"]), model)
    if models:
        listed = msgspec.json.encode({"object": "list", "data": list(models.values())})
        response.send(200, (JSON,), listed)
    elif heard:
        response.send(heard[0].status, (JSON,), heard[0].body)
    else:
        answer(response, Refusal(502, "No server behind this gateway listed its models.", UPSTREAM))


async def _ask(upstream: Upstream, headers: dict[str, str]) -> Answer | None:
    try:
        return await fetch_async(f"{upstream.name}/v1/models", headers=headers, timeout_s=LIST_S)
    except KneeError:
        return None


def _models(found: Answer) -> list[dict[str, Any]]:
    if found.status != 200:
        return []
    try:
        listed = msgspec.json.decode(found.body, type=dict[str, Any]).get("data")
    except msgspec.MsgspecError:
        return []
    return (
        [model for model in listed if isinstance(model, dict) and "id" in model]
        if isinstance(listed, list)
        else []
    )
