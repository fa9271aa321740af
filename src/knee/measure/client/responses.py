"""What `/v1/responses` says: typed events, of which `response.completed` is the last instead of `[DONE]`.

As vLLM 0.32 speaks it (`entrypoints/openai/responses`), after OpenAI's events.
"""

from typing import Any, ClassVar

import msgspec

from knee.measure.client.endpoints import EndpointName
from knee.measure.client.events import Choice, Details, Event, Usage
from knee.measure.client.tally import Tally

ENDS = ("response.completed", "response.incomplete")
"""Both are whole answers; "incomplete" is how OpenAI calls one that reached `max_output_tokens`."""
FAILURES = ("response.failed", "response.cancelled")


class _Usage(msgspec.Struct, gc=False):
    input_tokens: int = 0
    output_tokens: int | None = None
    input_tokens_details: Details | None = None


class _Response(msgspec.Struct, gc=False):
    status: str = ""
    error: Any = None
    usage: _Usage | None = None

    def counted(self) -> Usage | None:
        """Its usage in the words of the other endpoints."""
        found = self.usage
        if found is None:
            return None
        return Usage(found.input_tokens, found.output_tokens, found.input_tokens_details)

    def failure(self) -> Any:
        """What went wrong, if anything did."""
        failed = self.status in ("failed", "cancelled")
        return self.error or (f"the response is {self.status}" if failed else None)


class _Whole(_Response, gc=False):
    output: list[dict[str, Any]] = []

    def speaks(self) -> bool:
        """Whether there is any output in it: text, or an item that is no message (a call, reasoning)."""
        return any(item.get("type") != "message" or _holds_text(item.get("content")) for item in self.output)


def _holds_text(content: Any) -> bool:
    parts = content if isinstance(content, list) else []
    return any(isinstance(part, dict) and part.get("text") for part in parts)


class _Said(msgspec.Struct, gc=False):
    type: str = ""
    delta: Any = None
    response: _Response | None = None
    error: Any = None
    message: Any = None


_decode = msgspec.json.Decoder(_Said).decode
_decode_whole = msgspec.json.Decoder(_Whole).decode


class ResponsesTally(Tally):
    """Reads a stream of `/v1/responses`; every delta (text, reasoning, a call's arguments) is output.

    Chunks tell no token counts; the usage comes with the last event.
    """

    __slots__ = ()
    last_word: ClassVar[str] = "response.completed"

    @staticmethod
    def whole(body: bytes) -> Event:
        """As `Tally.whole`, in the words of the other endpoints."""
        answer = _decode_whole(body)
        return Event([Choice(text="…")] if answer.speaks() else [], answer.counted(), answer.failure())

    def _take(self, times_ns: list[int], texts: list[bytes]) -> None:
        for at_ns, text in zip(times_ns, texts, strict=True):
            if text == b"[DONE]":  # some proxies add it; the answer was whole before
                continue
            said = _decode(text)
            if said.delta and said.type.endswith(".delta"):
                self.instants.append(at_ns)
                self.answers.append(0)
                self.totals.append(-1)
                continue
            response = said.response
            if said.type in ENDS:
                self.done = True
                self.usage = response.counted() if response is not None else None
            failure = said.error or (response.failure() if response is not None else None)
            if said.type in FAILURES or said.type == "error" or failure:
                failed = Event(error=failure, message=said.message or said.type, object="error")
                self._fault("error_event", failed.failure() or said.type)


def tally_of(endpoint: EndpointName) -> type[Tally]:
    """What reads the answers of an endpoint."""
    return ResponsesTally if endpoint == "responses" else Tally
