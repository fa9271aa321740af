"""What vLLM says in an answer: the parts of its JSON that the books need, and nothing else."""

from typing import Any

import msgspec

# An event is decoded some 80,000 times a second, so these are typed decoders of the fields in use.


class Details(msgspec.Struct, gc=False):
    """Part of `Usage`."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct, gc=False):
    """Token counts by the server; in a chunk (`continuous_usage_stats`) they are totals so far."""

    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: Details | None = None


class Delta(msgspec.Struct, gc=False):
    """What a chat chunk (or message) adds. vLLM calls reasoning `reasoning_content` before 0.12."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[Any] | None = None


class Choice(msgspec.Struct, gc=False):
    """One answer, or its latest piece."""

    index: int = 0
    text: str | None = None
    delta: Delta | None = None
    message: Delta | None = None

    def speaks(self) -> bool:
        """Whether there is any output in it: text, reasoning or a tool call, but not a mere role."""
        if self.text:
            return True
        said = self.delta or self.message
        return said is not None and bool(
            said.content or said.reasoning or said.reasoning_content or said.tool_calls or said.refusal
        )


class Event(msgspec.Struct, gc=False):
    """A chunk of a stream, or a whole answer."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None
    object: str = ""
    message: Any = None

    def failure(self) -> str | None:
        """The server's words where this is an error; both forms that vLLM has used are known."""
        if self.error is not None:
            said = self.error.get("message", self.error) if isinstance(self.error, dict) else self.error
            return str(said)
        return str(self.message) if self.object == "error" else None


decode_event = msgspec.json.Decoder(Event).decode


def words_of(body: bytes) -> str:
    """One line of what an error answer says, cut to what fits a line."""
    try:
        said = decode_event(body).failure()
    except (msgspec.MsgspecError, RecursionError):
        said = None
    if said is None:
        try:
            detail = msgspec.json.decode(body)
            said = str(detail.get("detail", "")) if isinstance(detail, dict) else ""
        except (msgspec.MsgspecError, RecursionError):
            said = body[:200].decode("utf-8", "replace")
    line = " ".join(said.split())
    return line if len(line) <= 160 else line[:159] + "…"
