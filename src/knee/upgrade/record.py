"""Ask a server the evaluation set, twice: the second time is the A/A run that says how far it repeats itself.

One request at a time, so that the batch is always the same; what still differs between the two runs is the
server's own noise.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from knee.core.errors import TargetError
from knee.http1.client import BlockingClient
from knee.measure.client.endpoints import PATHS, EndpointName
from knee.measure.client.events import words_of
from knee.measure.client.preflight import look_at, refusal
from knee.upgrade.evaluation import Case, EvaluationSet, Mode
from knee.upgrade.recording import RUNS, Probe, Recording, Said

_MORE: dict[str, dict[str, Any]] = {
    "completion": {"logprobs": 2, "return_token_ids": True},
    "chat": {"logprobs": True, "top_logprobs": 2, "return_token_ids": True},
}
"""Fields that make the server tell its tokens: log probabilities of the two best, and ids (from 0.10.2)."""


def record(
    client: BlockingClient,
    asked: EvaluationSet,
    model: str = "",
    progress: Callable[[str], None] | None = None,
) -> Recording:
    """The answers of the server behind `client`.

    Raises:
        TargetError: the server cannot be used, or answers no case.
    """
    served = look_at(client, model)
    told = progress or (lambda _: None)
    more = dict(_MORE)
    notes = list(served.notes)
    probes = [(case, mode) for case in asked.cases for mode in case.modes]
    said: list[list[Said]] = [[] for _ in probes]
    for run in range(RUNS):
        told(f"run {run + 1} of {RUNS}: {len(probes)} requests")
        for index, (case, mode) in enumerate(probes):
            said[index].append(_ask(client, case, mode, served.model, more))
    errors = [answer.error for answers in said for answer in answers if answer.error]
    if len(errors) == RUNS * len(probes):
        raise TargetError(f"{client.origin} answers no case of the set: {errors[0]}")
    if errors:
        notes.append(f"{len(errors)} of {RUNS * len(probes)} requests were refused, first: {errors[0]}")
    if not any(answer.tokens for answers in said for answer in answers):
        notes.append("the server does not tell its tokens; words are compared")
    return Recording(
        version=served.version,
        model=served.model,
        digest=asked.digest,
        probes=tuple(
            Probe(case=case.id, kind=case.kind, mode=mode, runs=tuple(answers))
            for (case, mode), answers in zip(probes, said, strict=True)
        ),
        notes=tuple(notes),
    )


def _ask(client: BlockingClient, case: Case, mode: Mode, model: str, more: dict[str, dict[str, Any]]) -> Said:
    """One answer; a server that does not take the further fields is asked without them from then on."""
    endpoint: EndpointName = "chat" if case.kind == "chat" else "completions"
    body = case.body(model, mode)
    for extra in [more[case.kind], {}] if more[case.kind] else [{}]:
        answer = client.request(PATHS[endpoint], body | extra)
        if answer.status == 200:
            more[case.kind] = extra
            return _read(answer.json(), case.kind)
        if answer.status not in (400, 422):
            raise refusal(answer, str(client.origin))
    return Said(error=f"{answer.status}: {words_of(answer.body)[:200]}")


class _Choice(msgspec.Struct):
    text: str | None = None
    message: dict[str, Any] | None = None
    logprobs: dict[str, Any] | None = None
    finish_reason: str | None = None
    prompt_token_ids: list[int] | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice]
    usage: dict[str, Any] | None = None
    prompt_token_ids: list[int] | None = None


def _read(document: Any, kind: str) -> Said:
    """What an answer says. `prompt_token_ids` stand in the choice of a completion, outside that of a chat."""
    try:
        answer = msgspec.convert(document, _Answer)
        choice = answer.choices[0]
    except (msgspec.ValidationError, IndexError) as error:
        raise TargetError(f"an answer without choices: {error}", "is it a vLLM server?") from error
    text = (choice.message or {}).get("content") if kind == "chat" else choice.text
    tokens, logprobs, margins = _tokens(choice.logprobs or {}, kind)
    return Said(
        text=str(text or ""),
        tokens=tokens,
        logprobs=logprobs,
        margins=margins,
        prompt_ids=tuple(choice.prompt_token_ids or answer.prompt_token_ids or ()),
        prompt_tokens=(answer.usage or {}).get("prompt_tokens"),
        finish_reason=choice.finish_reason or "",
    )


Numbers = tuple[float, ...]


def _tokens(logprobs: dict[str, Any], kind: str) -> tuple[tuple[str, ...], Numbers, Numbers]:
    """Tokens, their log probabilities and margins, from the two forms of `logprobs` in the OpenAI API."""
    if kind == "chat":
        content = logprobs.get("content") or []
        tokens = tuple(str(item.get("token")) for item in content)
        chosen = [item.get("logprob") for item in content]
        ranked = [[top.get("logprob") for top in item.get("top_logprobs") or []] for item in content]
    else:
        tokens = tuple(str(token) for token in logprobs.get("tokens") or ())
        chosen = list(logprobs.get("token_logprobs") or ())
        ranked = [list((tops or {}).values()) for tops in logprobs.get("top_logprobs") or ()]
    best = [sorted(_numbers(values), reverse=True) for values in ranked]
    margins = tuple(round(values[0] - values[1], 4) for values in best if len(values) > 1)
    known = tuple(round(value, 4) for value in _numbers(chosen))
    return tokens, known if len(known) == len(tokens) else (), margins if len(margins) == len(tokens) else ()


def _numbers(values: list[Any]) -> list[float]:
    return [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
