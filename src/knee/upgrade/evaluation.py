"""The fixed evaluation set: small requests, recorded before an upgrade and compared after it.

A case is asked in up to three modes. `greedy` fixes all of the sampling (temperature 0, no penalties): only
the prompt's rendering and the model's arithmetic can change the text. `seeded` samples at temperature 1 from
a fixed seed: it tells whether a seed still draws the same tokens. `default` fixes the seed and leaves the
sampling to the server, so that a changed default shows.
"""

import hashlib
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import msgspec

from knee.core.errors import InputError

Mode = Literal["greedy", "seeded", "default"]

_PLAIN = {"top_p": 1, "presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1}
_SAMPLING: dict[Mode, dict[str, float]] = {
    "greedy": {"temperature": 0, **_PLAIN},
    "seeded": {"temperature": 1, "top_k": -1, "min_p": 0, **_PLAIN},
    "default": {},
}
MAX_CASES, MAX_BYTES = 2_000, 16 * 1024 * 1024
_HINT = 'a line is {"id": "…", "kind": "chat" or "completion", "text": "…"}'


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request: `text` is the prompt, or what the user says; `system` goes before it in a chat."""

    id: str
    kind: Literal["chat", "completion"]
    text: str
    system: str = ""
    max_tokens: int = 48
    modes: tuple[Mode, ...] = ("greedy",)

    def body(self, model: str, mode: Mode) -> dict[str, Any]:
        """The request's fields, without those that ask for more than text."""
        fields: dict[str, Any] = {"model": model, "max_tokens": self.max_tokens, "seed": 1, **_SAMPLING[mode]}
        if self.kind == "completion":
            return fields | {"prompt": self.text}
        system = [{"role": "system", "content": self.system}] if self.system else []
        return fields | {"messages": [*system, {"role": "user", "content": self.text}]}


class EvaluationSet(msgspec.Struct, frozen=True):
    """Cases in order, and the digest of their text, so that only equal sets are compared."""

    cases: tuple[Case, ...]
    digest: str


def shipped_set() -> EvaluationSet:
    """The set that comes with the tool."""
    return _parse(files("knee.upgrade").joinpath("evaluation.jsonl").read_bytes(), "the shipped set")


def read_set(path: Path) -> EvaluationSet:
    """The set in `path`, one case a line.

    Raises:
        InputError: the file cannot be read, or a line is no case.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"{path} is larger than {MAX_BYTES // 2**20} MiB")
        return _parse(path.read_bytes(), str(path))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", "give a file of cases") from error


def _parse(content: bytes, name: str) -> EvaluationSet:
    cases: dict[str, Case] = {}
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        try:
            case = msgspec.json.decode(line, type=Case)
        except msgspec.MsgspecError as error:
            raise InputError(f"{name}:{number} is not a case: {error}", _HINT) from error
        if case.id in cases:
            raise InputError(f"{name}:{number}: the id {case.id!r} is used twice")
        if not case.text or not case.modes or not 1 <= case.max_tokens <= 4096:
            raise InputError(f"{name}:{number}: text and modes are needed, and 1 to 4096 max_tokens", _HINT)
        cases[case.id] = case
    if not cases or len(cases) > MAX_CASES:
        raise InputError(f"{name} holds {len(cases)} cases, not 1 to {MAX_CASES:,}", _HINT)
    digest = hashlib.sha256(msgspec.json.encode(list(cases.values()))).hexdigest()[:16]
    return EvaluationSet(tuple(cases.values()), digest)
