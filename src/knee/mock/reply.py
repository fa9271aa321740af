"""An answer on its way: chunks of a stream as tokens come, or one JSON document at the end.

Fields, their order and their spelling are those recorded from vLLM 0.32.0.
"""

import asyncio
from typing import TYPE_CHECKING

import msgspec

from knee.engine.request import Request
from knee.http1.exchange import JSON, Response
from knee.mock.ask import Ask
from knee.mock.document import whole_answer
from knee.mock.refusal import Refused
from knee.mock.text import Answer, Voice

if TYPE_CHECKING:
    from knee.mock.frontend import FrontEndQueue

EVENT_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")
VARY = (b"vary", b"Origin")
DONE = b"data: [DONE]\n\n"


class Style(msgspec.Struct, frozen=True, kw_only=True):
    """What all answers of a server share."""

    model: str
    voice: Voice
    fingerprint: str
    stream_interval: int = 1
    per_request_metrics: bool = False
    cut_after: int | None = None


class Choice:
    """One answer of a reply, and what of it has been sent. A `Listener` of the drive.

    `made` and `complete` are the engine's; `ready` and `ended` say the same of what has passed the front end.
    """

    __slots__ = (
        "answer", "complete", "ended", "index", "made", "queued", "ready", "reply", "request", "sent",
        "shown",
    )  # fmt: skip

    def __init__(self, reply: "Reply", index: int, answer: Answer, request: Request) -> None:
        self.reply = reply
        self.index = index
        self.answer = answer
        self.request = request
        self.made = self.queued = self.ready = self.sent = self.shown = 0
        self.complete = self.ended = False

    @property
    def finish_reason(self) -> str:
        """`stop` or `length`."""
        return self.answer.finish_reason

    def flush(self) -> None:
        """Hand what is new to the front end, which shows it when its turn has come."""
        front = self.reply.front
        if front is None:
            self.show(self.made, self.complete)
            return
        new, self.queued = self.made - self.queued, self.made
        made, complete = self.made, self.complete
        front.emit(self.reply.front_server, new, lambda: self.show(made, complete))

    def show(self, ready: int, ended: bool) -> None:
        """Send what is ready, unless the client is slow or `stream_interval` asks for more at once."""
        self.ready, self.ended = ready, ended
        reply = self.reply
        if reply.done.done():
            return
        if not reply.ask.stream:
            if ended:
                reply.choice_done()
            return
        due = ready - self.sent >= reply.style.stream_interval or (ready > 0 and self.sent == 0)
        if ended or (due and reply.response.writable):
            reply.send_chunk(self)

    def take_text(self) -> str:
        """The visible text of the tokens that were not sent yet; they now are."""
        text = self.reply.style.voice.say(self.answer.start, self.sent, self.ready)
        if self.answer.visible is not None:
            text = text[: max(0, self.answer.visible - self.shown)]
        if self.sent == 0 and self.reply.ask.echo:
            prompt = self.reply.ask.prompts[self.index // self.reply.ask.n]
            text = prompt.text + text
        self.shown += len(text)
        self.sent = self.ready
        return text


class Reply:
    """The answer to one request; `done` resolves when it has been sent whole."""

    def __init__(self, ask: Ask, response: Response, style: Style, *, ident: str, created: int) -> None:
        self.ask = ask
        self.response = response
        self.style = style
        self.choices: list[Choice] = []
        self.front: FrontEndQueue | None = None
        self.front_server = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ident = ident
        self.created = created
        self._left = 0
        self._headers: tuple[tuple[bytes, bytes], ...] = (VARY,)
        kind = "chat.completion.chunk" if ask.chat else "text_completion"
        self._open = (
            f'data: {{"id":{_json(ident)},"object":"{kind}","created":{created},'
            f'"model":{_json(style.model)},"choices":['
        )
        self.prompt_tokens = ask.prompt_tokens

    def add(self, choice: Choice) -> None:
        """One more answer that is waited for."""
        self.choices.append(choice)
        self._left += 1

    def begin(self, extra_headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        """The engine has taken the request: a stream's head goes out now."""
        self._headers = (VARY, *extra_headers)
        if self.ask.stream:
            self.response.start(200, (EVENT_STREAM, *self._headers))

    def choice_done(self) -> None:
        """One answer has all its tokens."""
        self._left -= 1
        if self._left == 0 and not self.done.done():
            if self.ask.stream:
                self._end_stream()
            else:
                self.response.send(200, (JSON, *self._headers), msgspec.json.encode(whole_answer(self)))
            self.done.set_result(None)

    def fail(self, refused: Refused) -> None:
        """The engine cannot go on: an error event and the end of the stream, or an error document."""
        if self.done.done():
            return
        if not self.response.started:
            self.response.send(refused.status, (JSON, *self._headers), refused.body())
        else:
            error = {"message": refused.message, "type": refused.kind, "param": None, "code": refused.status}
            text = ", ".join(f'"{key}": {_json(value)}' for key, value in error.items())
            self.response.write(f'data: {{"error": {{{text}}}}}\n\n'.encode() + DONE)
            self.response.end()
        self.done.set_result(None)

    # --- a stream

    def send_chunk(self, choice: Choice) -> None:
        """The event for the tokens of `choice` that became ready since the last one."""
        first = choice.sent == 0
        if first and self.ask.chat:
            self._send_role(choice)
        ended = choice.ended
        reason, stopped = ("null", "null")
        if ended:
            reason, stopped = _json(choice.answer.finish_reason), _json(choice.answer.stop_reason)
        text = _json(choice.take_text())
        if self.ask.chat:
            stop = f',"stop_reason":{stopped}' if ended else ""
            body = (
                f'{{"index":{choice.index},"delta":{{"content":{text}}},"logprobs":null,'
                f'"finish_reason":{reason}{stop},"token_ids":null}}]'
            )
        else:
            body = (
                f'{{"index":{choice.index},"text":{text},"logprobs":null,"finish_reason":{reason},'
                f'"stop_reason":{stopped},"prompt_token_ids":null,"token_ids":null}}]'
            )
        if self.ask.continuous_usage:
            body += f',"usage":{self._usage_text(choice.sent)}'
        if ended and not self.ask.include_usage and self._left == 1:
            body += f',"system_fingerprint":"{self.style.fingerprint}"'
        self.response.write(f"{self._open}{body}}}\n\n".encode())
        cut = self.style.cut_after
        if cut is not None and choice.sent >= cut:
            self.response.cut()
            if not self.done.done():
                self.done.set_result(None)
        elif ended:
            self.choice_done()

    def _send_role(self, choice: Choice) -> None:
        usage = f',"usage":{self._usage_text(0)}' if self.ask.continuous_usage else ""
        self.response.write(
            f'{self._open}{{"index":{choice.index},"delta":{{"role":"assistant","content":""}},"logprobs":null,'
            f'"finish_reason":null}}],"prompt_token_ids":null,"prompt_text":null{usage}}}\n\n'.encode()
        )

    def _end_stream(self) -> None:
        if self.ask.include_usage:
            made = sum(choice.made for choice in self.choices)
            self.response.write(
                f'{self._open}],"usage":{self._usage_text(made)},'
                f'"system_fingerprint":"{self.style.fingerprint}"}}\n\n'.encode()
            )
        self.response.write(DONE)
        self.response.end()

    def _usage_text(self, made: int) -> str:
        prompt = self.prompt_tokens
        return f'{{"prompt_tokens":{prompt},"total_tokens":{prompt + made},"completion_tokens":{made}}}'


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
