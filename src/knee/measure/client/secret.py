"""A bearer key that cannot be shown by accident."""

import os
from pathlib import Path

from knee.core.errors import InputError, UsageError

KEY_VARIABLE = "VLLM_API_KEY"
"""Where vLLM itself reads the key that it asks for (`vllm serve --api-key`)."""


class Secret:
    """Text that prints, logs and encodes as a placeholder; `reveal` is the only way to it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return "<secret>"

    __str__ = __repr__

    def reveal(self) -> str:
        """The text itself, for the one place that sends it."""
        return self._text


def read_key(file: Path | None, variable: str = KEY_VARIABLE) -> Secret | None:
    """The key in `file`, or else in the environment variable; None where there is neither.

    Raises:
        InputError: the file cannot be read.
        UsageError: what is there cannot be a key: empty, or with blanks or line breaks inside.
    """
    if file is None:
        text, where = os.environ.get(variable, ""), f"the environment variable {variable}"
        if not text:
            return None
    else:
        try:
            text, where = file.read_text(), str(file)
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"cannot read the key file {file}", getattr(error, "strerror", "") or ""
            ) from error
    text = text.strip()
    if not text or not text.isascii() or any(c.isspace() or not c.isprintable() for c in text):
        raise UsageError(f"no bearer key in {where}", "it holds one word of printable characters")
    return Secret(text)
