"""The flags of `vllm serve` in a command line, however it is wrapped."""

import re
import shlex

import msgspec

SHORT = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-q": "--quantization",
    "-asc": "--api-server-count",
}
"""vLLM's short forms (vllm/engine/arg_utils.py)."""

_FLAG = re.compile(r"--?[A-Za-z][\w.-]*")
_SERVE = re.compile(r"(?:^|[\s/\"'])vllm[\"']?\s*,?\s*[\"']?serve\b|vllm\.entrypoints\.\S*api_server")


class Given(msgspec.Struct, frozen=True):
    """One flag as it was given: `name` in vLLM's spelling with dashes, `value` None for a bare flag."""

    name: str
    value: str | None


def is_serve(text: str) -> bool:
    """Whether a command starts vLLM's server."""
    return bool(_SERVE.search(text))


def split(text: str) -> list[str]:
    """The words of a shell command; of one that the shell would refuse, what white space separates."""
    joined = re.sub(r"\\\s*\n", " ", text)
    try:
        return shlex.split(joined, comments=True)
    except ValueError:
        return joined.split()


def flags_in(words: list[str]) -> list[Given]:
    """The flags among `words`, in order. `--a=b`, `--a b`, underscores and short forms are understood."""
    found: list[Given] = []
    for index, word in enumerate(words):
        if not _FLAG.fullmatch(word.split("=", 1)[0]):
            continue
        name, _, value = word.partition("=")
        following = words[index + 1] if index + 1 < len(words) else None
        is_value = following is not None and not _FLAG.fullmatch(following.split("=", 1)[0])
        found.append(Given(spelled(name), value if "=" in word else following if is_value else None))
    return found


def spelled(name: str) -> str:
    """A flag's name as vLLM's documentation writes it."""
    if name in SHORT:
        return SHORT[name]
    return "--" + name.lstrip("-").replace("_", "-") if name.startswith("--") else name
