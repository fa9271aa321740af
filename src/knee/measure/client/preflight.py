"""What a server is, before load goes to it; each way in which it cannot be used is one clear line."""

import msgspec

from knee.core.errors import TargetError
from knee.http1.client import Answer, BlockingClient
from knee.http1.origin import split_url
from knee.measure.client.endpoints import PATHS, Ask, form
from knee.measure.client.events import words_of
from knee.measure.client.prompts import Count, Vocabulary, calibrate, plain_vocabulary
from knee.measure.client.responses import tally_of


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """A server that answered as vLLM does. `notes` are remarks that a report should carry."""

    model: str
    models: tuple[str, ...]
    version: str = ""
    max_model_len: int | None = None
    notes: tuple[str, ...] = ()


class _Model(msgspec.Struct):
    id: str
    parent: str | None = None
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _Version(msgspec.Struct):
    version: str = ""


class _Counted(msgspec.Struct):
    count: int


def look_at(client: BlockingClient, model: str = "") -> Served:
    """Which model the server behind `client` serves, and its version.

    Raises:
        TargetError: unreachable, not such a server, still loading, refusing the key, or without that model.
    """
    at = str(client.origin)
    answer = client.request("/v1/models")
    if answer.status != 200:
        raise refusal(answer, at)
    try:
        models = msgspec.json.decode(answer.body, type=_Models).data
    except (msgspec.MsgspecError, RecursionError):
        raise TargetError(
            f"{at} answers, but not as a vLLM server: /v1/models holds no list of models",
            "give the address that serves /v1/completions",
        ) from None
    if not models:
        raise TargetError(f"{at} serves no model", "is it still loading?")
    names = tuple(found.id for found in models)
    chosen = next((m for m in models if m.id == model), None)
    if model and chosen is None:
        raise TargetError(f"{at} does not serve the model {model!r}", f"it serves: {', '.join(names[:8])}")
    base = chosen or next((m for m in models if m.parent is None), models[0])
    notes = [] if model or len(models) == 1 else [f"several models are served; {base.id} was chosen"]
    version = _version(client)
    if not version:
        notes.append("the server does not tell its version")
    return Served(
        model=base.id,
        models=names,
        version=version,
        max_model_len=base.max_model_len,
        notes=tuple(notes),
    )


def refusal(answer: Answer, at: str) -> TargetError:
    """The error for an answer that is not 200."""
    said = words_of(answer.body)
    tail = f": {said}" if said else ""
    path = split_url(answer.url)[1]
    answered = f"{at} answers {answer.status} to {path}{tail}"
    what, hint = {
        401: (f"{at} asks for another key", "give it with --api-key-file, or in VLLM_API_KEY"),
        403: (f"{at} forbids {path} to this key", "ask who runs the server"),
        404: (
            f"{at} has no {path}: not a vLLM server, or another base path{tail}",
            "give the address without /v1, as in http://127.0.0.1:8000",
        ),
        503: (f"{at} is not ready{tail}", "it is loading, draining or full; look at its log, try again"),
    }.get(answer.status, (answered, "look at the server's log" if answer.status >= 500 else "is it vLLM?"))
    if 300 <= answer.status < 400:
        what, hint = f"{at} redirects to {answer.header('location')}", "give that address instead"
    return TargetError(what, hint)


def try_out(client: BlockingClient, ask: Ask) -> Ask:
    """Ask for one token as the load will, and return `ask` with what this server does not know left out.

    Raises:
        TargetError: the server does not generate: loading, wrong endpoint, or a request it does not take.
    """
    for attempt in (ask, msgspec.structs.replace(ask, continuous_usage=False)):
        body = form(attempt).fill("hello", 1)
        answer = client.request(PATHS[ask.endpoint], body)
        if answer.status == 200:
            return attempt
        if answer.status not in (400, 422):
            raise refusal(answer, str(client.origin))
    raise TargetError(
        f"{client.origin} does not take the request: {words_of(answer.body)}",
        "check --model, --body and --endpoint",
    )


def learn_vocabulary(client: BlockingClient, ask: Ask) -> tuple[Vocabulary, str]:
    """How to make prompts of a known length for this server, and a remark where that is uncertain ("" else).

    Counts with `/tokenize` where there is one, else by the `usage` of answers of one token.
    """
    for count in (_by_tokenize(client, ask), _by_usage(client, ask)):
        try:
            vocabulary = calibrate(count)
        except TargetError:
            continue
        if vocabulary.exact:
            return vocabulary, ""
        return vocabulary, "prompt lengths are approximate: too few words are one token for this server"
    return (
        plain_vocabulary(),
        "prompt lengths are a guess: the server counts neither in /tokenize nor in usage",
    )


def _by_tokenize(client: BlockingClient, ask: Ask) -> Count:
    def count(text: str) -> int:
        if ask.endpoint != "completions":
            asked = {"messages": [{"role": "user", "content": text}], "add_generation_prompt": True}
        else:
            asked = {"prompt": text}
        answer = client.request("/tokenize", {"model": ask.model, **asked})
        if answer.status != 200:
            raise refusal(answer, str(client.origin))
        try:
            return msgspec.json.decode(answer.body, type=_Counted).count
        except (msgspec.MsgspecError, RecursionError) as error:
            raise TargetError(f"{client.origin}/tokenize gives no count") from error

    return count


def _by_usage(client: BlockingClient, ask: Ask) -> Count:
    whole = form(msgspec.structs.replace(ask, stream=False, n=1))

    def count(text: str) -> int:
        answer = client.request(PATHS[ask.endpoint], whole.fill(text, 1))
        if answer.status != 200:
            raise refusal(answer, str(client.origin))
        try:
            usage = tally_of(ask.endpoint).whole(answer.body).usage
        except (msgspec.MsgspecError, RecursionError):
            usage = None
        if usage is None or usage.prompt_tokens < 1:
            raise TargetError(f"{client.origin} gives no usage")
        return usage.prompt_tokens

    return count


def _version(client: BlockingClient) -> str:
    answer = client.request("/version")
    try:
        return msgspec.json.decode(answer.body, type=_Version).version if answer.status == 200 else ""
    except (msgspec.MsgspecError, RecursionError):
        return ""
