"""The formats in which traces and data sets come, each read into the same rows.

mooncake      JSON lines: timestamp (ms), input_length, output_length, hash_ids of 512-token blocks
azure         CSV: TIMESTAMP, ContextTokens, GeneratedTokens (Azure LLM inference traces)
burstgpt      CSV: Timestamp (s), …, Request tokens, Response tokens (BurstGPT)
sharegpt      JSON: a list of {"conversations": [{"from", "value"}, …]}; no times, lengths by letters
prompts       JSON lines with a prompt: `vllm bench serve` custom, GuideLLM, AIPerf (single and several turns)
knee          JSON lines: at_s, prompt_tokens, output_tokens, shared [[id, tokens], …]
records       records.jsonl of a run directory, or a gateway's access log
"""

import csv
import io
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from knee.core.errors import InputError

BLOCK_TOKENS = 512
"""Tokens of a block in Mooncake's hash_ids (its README, FAST'25 traces)."""
LETTERS_PER_TOKEN = 4
"""For texts whose tokens nobody counted: English prose has about 4 letters a token in common vocabularies."""
DEFAULT_OUTPUT = 256
"""For prompts that come without an answer's length (`vllm bench serve --custom-output-len` has the same)."""
BYTES_PER_CHUNK = 240
"""Of a streamed completion by vLLM 0.32: a line of JSON around one token."""
MOST_ROWS = 5_000_000


class Row(NamedTuple):
    """One request; `at_s` on the file's own clock."""

    prompt_tokens: int
    output_tokens: int
    at_s: float | None = None
    shared: tuple[tuple[int, int], ...] = ()


class Rows(NamedTuple):
    """What a file held, and what had to be guessed about it."""

    format: str
    rows: list[Row]
    notes: tuple[str, ...] = ()


def read_rows(data: bytes, name: str) -> Rows:
    """The requests in `data`; `name` is what errors call it.

    Raises:
        InputError: no known format, or a line that breaks it; the line is named.
    """
    text = data.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not text:
        raise InputError(f"{name} is empty")
    if text.startswith(b"["):
        return _sharegpt(text, name)
    if text.startswith(b"{"):
        return _json_lines(data, name)
    return _csv(data, name)


def _json_lines(data: bytes, name: str) -> Rows:
    rows: list[Row] = []
    found = ""
    guessed = 0
    for number, line in _lines(data):
        try:
            value = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InputError(f"{name}:{number} is not JSON: {error}") from None
        kind = _kind(value)
        if not kind or (found and kind != found):
            raise InputError(f"{name}:{number} is no request of a known format", _KNOWN)
        found = kind
        try:
            read, guesses = _JSON[kind](value)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise InputError(f"{name}:{number} is no {kind} request: {error!r}", _KNOWN) from None
        rows += read
        guessed += guesses
        if len(rows) > MOST_ROWS:
            raise InputError(f"{name} holds more than {MOST_ROWS:,} requests", "cut it")
    notes = (
        (f"{guessed} lengths were guessed from text, {LETTERS_PER_TOKEN} letters a token",) if guessed else ()
    )
    return Rows(found, rows, notes)


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            yield number, line


def _kind(value: Any) -> str:
    """Which of the JSON-lines formats a line is of; "" for none."""
    if not isinstance(value, dict):
        return ""
    for keys, kind in _MARKS:
        if all(key in value for key in keys):
            return kind
    return ""


def _mooncake(value: dict[str, Any]) -> tuple[list[Row], int]:
    prompt = int(value["input_length"])
    blocks, left = [], prompt
    for block in value.get("hash_ids") or ():
        tokens = min(BLOCK_TOKENS, left)
        if tokens > 0:
            blocks.append((int(block), tokens))
        left -= tokens
    at_s = float(value["timestamp"]) / 1_000 if "timestamp" in value else None
    return [Row(prompt, int(value["output_length"]), at_s, tuple(blocks))], 0


def _ours(value: dict[str, Any]) -> tuple[list[Row], int]:
    shared = tuple((int(segment), int(tokens)) for segment, tokens in value.get("shared") or ())
    at_s = float(value["at_s"]) if value.get("at_s") is not None else None
    return [Row(int(value["prompt_tokens"]), int(value["output_tokens"]), at_s, shared)], 0


def _record(value: dict[str, Any]) -> tuple[list[Row], int]:
    """What was asked, whatever came of it."""
    asked = value.get("asked_tokens") or value.get("output_tokens") or 0
    return [Row(int(value.get("prompt_tokens", 0)), int(asked), value["due_ns"] / 1e9)], 0


def _gateway(value: dict[str, Any]) -> tuple[list[Row], int]:
    if not str(value.get("path", "")).endswith("completions"):
        return [], 0
    output = max(1, round(int(value["bytes_out"]) / BYTES_PER_CHUNK))
    return [Row(max(1, round(int(value["bytes_in"]) / LETTERS_PER_TOKEN)), output, _seconds(value["at"]))], 1


def _prompt(value: dict[str, Any]) -> tuple[list[Row], int]:
    turns = value.get("turns") or [value]
    rows, guessed, at_s = [], 0, None
    if "timestamp" in value:
        at_s = float(value["timestamp"]) / 1_000
    for turn in turns:
        text = turn.get("prompt") or turn.get("text") or turn.get("text_input") or ""
        if isinstance(text, list):
            text = " ".join(str(part) for part in text)
        counted = next((turn[key] for key in _PROMPT_COUNTS if turn.get(key)), None)
        wanted = next((turn[key] for key in _OUTPUT_COUNTS if turn.get(key)), DEFAULT_OUTPUT)
        guessed += counted is None
        rows.append(Row(int(counted) if counted else _by_letters(str(text)), int(wanted), at_s))
    return rows, guessed


def _sharegpt(text: bytes, name: str) -> Rows:
    try:
        items = msgspec.json.decode(text)
        rows = [row for item in items for row in _dialogue(item.get("conversations") or ())]
    except (msgspec.DecodeError, RecursionError, AttributeError, TypeError) as error:
        raise InputError(f"{name} is no ShareGPT list: {error}", _KNOWN) from None
    if not rows:
        raise InputError(f"{name} holds no ShareGPT conversation", _KNOWN)
    return Rows("sharegpt", rows, (f"lengths were guessed from text, {LETTERS_PER_TOKEN} letters a token",))


def _dialogue(said: Iterable[dict[str, str]]) -> Iterator[Row]:
    """The first question and its answer, which is what `vllm bench serve` makes of a conversation."""
    texts = [turn.get("value", "") for turn in said][:2]
    if len(texts) == 2 and all(texts):
        yield Row(_by_letters(texts[0]), _by_letters(texts[1]))


def _csv(data: bytes, name: str) -> Rows:
    rows: list[Row] = []
    kind = ""
    try:
        reader = csv.DictReader(io.StringIO(data.decode("utf-8-sig")))
        heads = set(reader.fieldnames or ())
        known = next((layout for layout in _CSV if set(layout[1:]) <= heads), None)
        if known is None:
            raise InputError(f"{name} is of no known format", _KNOWN)
        kind, at, prompt, output = known
        rows.extend(
            Row(int(float(line[prompt])), int(float(line[output])), _seconds(line[at])) for line in reader
        )
    except UnicodeDecodeError:
        raise InputError(f"{name} is neither text nor a known format", _KNOWN) from None
    except (ValueError, TypeError, OverflowError, csv.Error) as error:
        where = f"{name}:{reader.line_num}"
        raise InputError(f"{where} is no {kind or 'CSV'} request: {error}", _KNOWN) from None
    if not rows:
        raise InputError(f"{name} holds no request")
    return Rows(kind, rows)


def _seconds(text: str) -> float:
    """Seconds, written as a number or as a date with a time (of which seven decimals are common)."""
    try:
        return float(text)
    except ValueError:
        whole, _, fraction = text.partition(".")
        digits = "".join(c for c in fraction if c.isdigit())
        moment = datetime.fromisoformat(whole).replace(tzinfo=UTC)  # only differences count
        return moment.timestamp() + (float(f"0.{digits}") if digits else 0.0)


def _by_letters(text: str) -> int:
    return max(1, round(len(text) / LETTERS_PER_TOKEN))


_KNOWN = "known: Mooncake, Azure, BurstGPT, ShareGPT, prompts of vllm, GuideLLM or AIPerf, and knee's own"
_PROMPT_COUNTS = ("prompt_tokens_count", "prompt_tokens", "input_length", "input_tokens")
_OUTPUT_COUNTS = ("output_tokens_count", "output_tokens", "output_length", "max_tokens", "max_output_tokens")
_MARKS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("due_ns", "outcome"), "records"),
    (("at", "bytes_in", "bytes_out"), "gateway"),
    (("input_length", "output_length"), "mooncake"),
    (("prompt",), "prompts"),
    (("text",), "prompts"),
    (("text_input",), "prompts"),
    (("turns",), "prompts"),
    (("prompt_tokens", "output_tokens"), "knee"),
)
_JSON = {"records": _record, "gateway": _gateway, "mooncake": _mooncake, "prompts": _prompt, "knee": _ours}
_CSV = (
    ("azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    ("burstgpt", "Timestamp", "Request tokens", "Response tokens"),
)
