"""The body of a completion or chat request → what is asked, or vLLM's error for it."""

from typing import Any

import msgspec

from knee.mock.config import MockConfig
from knee.mock.fields import Fields, boolean, bounded, integer, parse_body, stop_strings
from knee.mock.refusal import bad_request, invalid, not_a_model
from knee.mock.tokens import pieces, text_of

MAX_PROMPTS = 256
MAX_CHOICES = 128
COMPLETION_TOKENS = 16
"""`max_tokens` of a completion that gives none (the OpenAI API's default, which vLLM keeps)."""


class Prompt(msgspec.Struct, frozen=True):
    """A prompt: its text, and its tokens as text or as the ids that the client sent."""

    text: str
    tokens: list[str] | list[int]

    def __len__(self) -> int:
        return len(self.tokens)


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asks for. Each of `prompts` gets `n` answers of at most `max_tokens[i]` tokens."""

    chat: bool
    prompts: tuple[Prompt, ...]
    max_tokens: tuple[int, ...]
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    stop: tuple[str, ...] = ()
    seed: int | None = None
    ignore_eos: bool = False
    echo: bool = False
    priority: int = 0
    cache_salt: str = ""
    request_id: str = ""

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens as `usage` counts them."""
        return sum(len(prompt) for prompt in self.prompts)


def parse_ask(body: bytes, chat: bool, config: MockConfig) -> Ask:
    """What `body` asks for.

    Raises:
        Refused: it cannot be asked of this server.
    """
    fields = parse_body(body)
    check_model(fields, config)
    stream = boolean(fields, "stream")
    options = fields.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise invalid(
            "model_attributes_type", ("stream_options",), "Input should be a valid dictionary", options
        )
    if options and not stream:
        raise bad_request("Stream options can only be defined when `stream=True`.", "stream_options")
    usage = boolean(options or {}, "include_usage")
    prompts = (chat_prompt(fields),) if chat else _prompts(fields)
    n = bounded(fields, "n", 1, 1, MAX_CHOICES)
    priority = integer(fields, "priority") or 0
    if priority and config.engine.scheduling_policy != "priority":
        raise bad_request(f"Got priority {priority} but Priority scheduling is not enabled.")
    return Ask(
        chat=chat,
        prompts=prompts,
        max_tokens=tuple(_max_tokens(fields, chat, len(prompt), config) for prompt in prompts),
        n=n,
        stream=stream,
        include_usage=usage,
        continuous_usage=usage and boolean(options or {}, "continuous_usage_stats"),
        stop=stop_strings(fields),
        seed=integer(fields, "seed"),
        ignore_eos=boolean(fields, "ignore_eos"),
        echo=boolean(fields, "echo"),
        priority=priority,
        cache_salt=str(fields.get("cache_salt") or ""),
        request_id=str(fields.get("request_id") or ""),
    )


def check_model(fields: Fields, config: MockConfig) -> None:
    """Refuse a model that is not served; no model at all is the one that is.

    Raises:
        Refused: as it says.
    """
    model = fields.get("model")
    if model is not None and not isinstance(model, str):
        raise invalid("string_type", ("model",), "Input should be a valid string", model)
    if model and model != config.model:
        raise not_a_model(model, config.model)


def chat_prompt(fields: Fields) -> Prompt:
    """The messages of a chat in a template of the plain kind: `role: text`, a line each.

    Raises:
        Refused: there are none, or they are not text.
    """
    messages = fields.get("messages")
    if messages is None:
        raise invalid("missing", ("messages",), "Field required", fields)
    if not isinstance(messages, list):
        raise invalid("list_type", ("messages",), "Input should be a valid list", messages)
    lines = []
    for at, message in enumerate(messages):
        if not isinstance(message, dict):
            raise invalid("dict_type", ("messages", at), "Input should be a valid dictionary", message)
        if "role" not in message:
            raise invalid("missing", ("messages", at, "role"), "Field required", message)
        lines.append(f"{message['role']}: {_content(message.get('content'))}\n")
    text = "".join(lines) + "assistant:"
    return Prompt(text, pieces(text))


def _content(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = []
    for part in content if isinstance(content, list) else []:
        kind = part.get("type", "text") if isinstance(part, dict) else "text"
        if kind != "text":
            raise bad_request("At most 0 image(s) may be provided in one prompt.")
        parts.append(part if isinstance(part, str) else str(part.get("text", "")))
    return "\n".join(parts)


def _prompts(fields: Fields) -> tuple[Prompt, ...]:
    given = fields.get("prompt")
    if given is None or given in ("", []):
        raise bad_request("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    several = given if isinstance(given, list) and not _are_ids(given) else [given]
    if len(several) > MAX_PROMPTS:
        raise bad_request(f"more than {MAX_PROMPTS} prompts in one request", "prompt")
    prompts = []
    for item in several:
        if isinstance(item, str) and item:
            prompts.append(Prompt(item, pieces(item)))
        elif isinstance(item, list) and item and _are_ids(item):
            prompts.append(Prompt(text_of(item[:64]), item))  # enough text to fix the answer
        else:
            raise invalid("string_type", ("prompt", "str"), "Input should be a valid string", item)
    return tuple(prompts)


def _are_ids(given: list[Any]) -> bool:
    return all(isinstance(item, int) and not isinstance(item, bool) for item in given)


def _max_tokens(fields: Fields, chat: bool, prompt_tokens: int, config: MockConfig) -> int:
    limit = config.engine.max_model_len
    asked = integer(fields, "max_completion_tokens") if chat else None
    if asked is None:
        asked = integer(fields, "max_tokens")
    if asked is not None and asked < 1:
        raise bad_request(f"max_tokens must be at least 1, got {asked}.", "max_tokens", asked)
    if asked is not None and asked > limit:
        raise bad_request(
            f"max_tokens={asked} cannot be greater than max_model_len={limit}. "
            "Please request fewer output tokens.",
            "max_tokens",
            asked,
        )
    context = f"This model's maximum context length is {limit} tokens. However, "
    if prompt_tokens > limit:
        raise bad_request(
            f"{context}your prompt contains {prompt_tokens} input tokens, which exceeds this limit even "
            "without any output tokens. Please reduce the length of the input prompt.",
            "input_tokens",
            prompt_tokens,
        )
    wanted = asked if asked is not None else (max(1, limit - prompt_tokens) if chat else COMPLETION_TOKENS)
    total = prompt_tokens + wanted
    if total > limit:
        raise bad_request(
            f"{context}you requested {wanted} output tokens and your prompt contains at least "
            f"{prompt_tokens} input tokens, for a total of at least {total} tokens. Please reduce the length "
            "of the input prompt or the number of requested output tokens.",
            "input_tokens",
            prompt_tokens,
        )
    return wanted
