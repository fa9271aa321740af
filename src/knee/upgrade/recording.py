"""What a server answered to the evaluation set, twice in a row."""

from pathlib import Path

import msgspec

from knee import __version__
from knee.core.errors import InputError
from knee.core.run import write_atomically
from knee.upgrade.evaluation import Mode

RECORDING_SCHEMA = 1
RUNS = 2
_MAX_BYTES = 256 * 1024 * 1024


class Said(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One answer. `tokens` are its pieces as the server reported them; () where it did not.

    `logprobs[i]` is the log probability of token i, and `margins[i]` the difference between those of the two
    best tokens there (0 is a tie), in nats, where the server told them. `prompt_ids` are the token ids of the
    rendered prompt, `prompt_tokens` their number. `error` is what came instead of an answer.
    """

    text: str = ""
    tokens: tuple[str, ...] = ()
    logprobs: tuple[float, ...] = ()
    margins: tuple[float, ...] = ()
    prompt_ids: tuple[int, ...] = ()
    prompt_tokens: int | None = None
    finish_reason: str = ""
    error: str = ""


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """One case in one mode, asked `RUNS` times."""

    case: str
    kind: str
    mode: Mode
    runs: tuple[Said, ...]


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """All probes of one server; `digest` is that of the evaluation set."""

    schema: int = RECORDING_SCHEMA
    tool_version: str = __version__
    version: str
    model: str
    digest: str
    probes: tuple[Probe, ...]
    notes: tuple[str, ...] = ()


def write_recording(path: Path, recording: Recording) -> None:
    """Write `recording` to `path`, whole or not at all.

    Raises:
        InputError: the file cannot be written.
    """
    try:
        write_atomically(path, recording)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error


def read_recording(path: Path) -> Recording:
    """The recording in `path`.

    Raises:
        InputError: the file cannot be read, or is no recording of this schema.
    """
    hint = "knee upgrade outputs record URL --out FILE makes one"
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise InputError(f"{path} is too large to be a recording")
        found = msgspec.json.decode(path.read_bytes(), type=Recording)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", hint) from error
    except msgspec.MsgspecError as error:
        raise InputError(f"{path} is not a recording: {error}", hint) from error
    if found.schema != RECORDING_SCHEMA:
        raise InputError(f"{path} has schema {found.schema}, not {RECORDING_SCHEMA}")
    return found
