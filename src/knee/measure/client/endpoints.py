"""What is asked of a server: the JSON around a prompt, for each way to ask for tokens."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from knee.core.errors import UsageError
from knee.http1.client import request_head
from knee.http1.origin import Origin

EndpointName = Literal["completions", "chat", "responses"]

PATHS: dict[EndpointName, str] = {
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
}
_AROUND: dict[EndpointName, tuple[bytes, bytes]] = {
    "completions": (b'"prompt":"', b'","max_tokens":'),
    "chat": (b'"messages":[{"role":"user","content":"', b'"}],"max_tokens":'),
    "responses": (b'"input":"', b'","max_output_tokens":'),
}
"""What comes before a prompt, and between it and the length of its answer."""
_OURS = {
    "model",
    "prompt",
    "messages",
    "input",
    "max_tokens",
    "max_output_tokens",
    "stream",
    "stream_options",
    "n",
}


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """How requests are made, the same for all of a point.

    `body` are further fields of the request, `n` the answers asked for per prompt. `continuous_usage` asks
    for token counts in every chunk. With `ignore_eos` the answer has the length asked for.
    """

    model: str
    endpoint: EndpointName = "completions"
    stream: bool = True
    continuous_usage: bool = True
    ignore_eos: bool = True
    n: int = 1
    body: dict[str, Any] = {}


class Form(msgspec.Struct, frozen=True):
    """A request body but for its prompt and its length: what comes before, between and after them."""

    before: bytes
    between: bytes
    after: bytes

    def fill(self, prompt: str, output_tokens: int) -> bytes:
        """The body. `prompt` must hold nothing that JSON escapes: it is put in as it is."""
        return b"%b%b%b%d%b" % (self.before, prompt.encode(), self.between, output_tokens, self.after)


def head_of(origin: Origin, ask: Ask, headers: Mapping[str, str]) -> Callable[[int], bytes]:
    """What makes the head of a request from the length of its body."""
    accept = {"accept": "text/event-stream" if ask.stream else "application/json"}
    whole = request_head(origin, PATHS[ask.endpoint], {**accept, **headers}, 0)
    before, after = whole.split(b"content-length: 0", 1)
    return lambda length: b"%bcontent-length: %d%b" % (before, length, after)


def form(ask: Ask) -> Form:
    """The body of every request that `ask` describes.

    Raises:
        UsageError: a further field would replace one that the measurement depends on.
    """
    taken = _OURS & set(ask.body)
    if taken:
        raise UsageError(f"the body field {min(taken)!r} is set by other options")
    opening = b'{"model":%b,' % msgspec.json.encode(ask.model)
    before, between = _AROUND[ask.endpoint]
    return Form(opening + before, between, b"," + msgspec.json.encode(_options(ask) | ask.body)[1:])


def _options(ask: Ask) -> dict[str, Any]:
    options: dict[str, Any] = {"temperature": 0, "stream": ask.stream}
    if ask.ignore_eos:
        options["ignore_eos"] = True
    if ask.endpoint == "responses":
        if ask.n > 1:
            raise UsageError(f"--n {ask.n} with /v1/responses", "it gives one answer a prompt")
        return options | {"store": False}  # else a server keeps every answer for a later question
    if ask.n > 1:
        # Answers that are all alike would be cached as one; a temperature above 0 makes them differ.
        options |= {"n": ask.n, "temperature": 1}
    if ask.stream:
        options["stream_options"] = {"include_usage": True}
        if ask.continuous_usage:
            options["stream_options"]["continuous_usage_stats"] = True
    return options
