"""Errors that a simulated server answers with, in vLLM's wording."""

from http import HTTPStatus
from typing import Any

from knee.http1.exchange import error_body

BUSY = {
    "max_num_queued_reqs": "The engine is currently busy and cannot accept new requests.",
    "max_num_queued_tokens": "The engine has reached its prefill token backlog limit.",
}
ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
DRAINING = "cannot schedule new futures after shutdown"


class Refused(Exception):  # noqa: N818 - it names what happened to the request
    """A request that is answered with an error."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param

    def body(self) -> bytes:
        """The JSON body of the answer."""
        return error_body(self.status, self.message, self.kind, self.param)


def bad_request(message: str, parameter: str | None = None, value: object = None) -> Refused:
    """400 as vLLM's VLLMValidationError (vllm/exceptions.py) shows it."""
    extras = [f"parameter={parameter}"] if parameter is not None else []
    extras += [f"value={value}"] if value is not None else []
    text = f"{message} ({', '.join(extras)})" if extras else message
    return Refused(400, text, "BadRequestError", parameter)


def invalid(kind: str, loc: tuple[str | int, ...], message: str, given: Any, context: str = "") -> Refused:
    """400 as vLLM shows an error that pydantic found in the body (recorded from 0.32.0)."""
    place = ".".join(str(part) for part in ("body", *loc))
    detail: dict[str, object] = {"type": kind, "loc": place, "msg": message, "input": _shown(given)}
    if context:
        detail["ctx"] = {"error": context}
    param = place if loc and isinstance(loc[0], int) else (str(loc[0]) if loc else None)
    return Refused(400, f"1 validation error:\n  {detail}", HTTPStatus.BAD_REQUEST.phrase, param)


def not_a_model(name: str, served: str) -> Refused:
    """404 for a model that is not served."""
    message = f"The model `{name}` does not exist. Valid aliases: {served}."
    return Refused(404, message, "NotFoundError", "model")


def busy(reason: str) -> Refused:
    """503 at a queue limit; vLLM sets no Retry-After."""
    message = f"{BUSY[reason]} Please try again later or on a different instance."
    return Refused(503, message, HTTPStatus.SERVICE_UNAVAILABLE.phrase)


def internal(message: str) -> Refused:
    """500."""
    return Refused(500, message, "InternalServerError")


def _shown(given: Any) -> Any:
    if isinstance(given, dict):
        return f"<dict of {len(given)} items>"
    if isinstance(given, list):
        return f"<list of {len(given)} items>"
    return given if not isinstance(given, str) or len(given) <= 100 else given[:100] + "..."
