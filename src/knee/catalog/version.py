"""vLLM's version numbers, ordered."""

import re
from dataclasses import dataclass, field
from functools import lru_cache

from knee.core.errors import UsageError

_VERSION = re.compile(
    r"v?(?P<release>\d+(?:\.\d+)*)"
    r"(?:[-_.]?(?P<pre>a|b|rc|alpha|beta)[-_.]?(?P<pre_number>\d*))?"
    r"(?:[-_.]?post(?P<post>\d*))?"
    r"(?:[-_.]?dev(?P<dev>\d*))?"
    r"(?:\+(?P<local>[\w.]+))?"
)
_FINAL, _POST = 4, 5
_PRE = {"a": 1, "alpha": 1, "b": 2, "beta": 2, "rc": 3}


@dataclass(frozen=True, order=True)
class Version:
    """A version number as PEP 440 orders it: development builds and candidates before their release.

    `release` is without trailing zeros, so that 0.9 equals 0.9.0; `stage` orders what carries the same
    release number. `text` is what was read and does not take part in comparisons.
    """

    release: tuple[int, ...]
    stage: tuple[int, int, int] = (_FINAL, 0, 0)
    text: str = field(default="", compare=False)

    def __str__(self) -> str:
        return self.text

    @property
    def is_development(self) -> bool:
        """Whether this is a build from source or a candidate, which may be anywhere between two releases."""
        return self.stage < (_FINAL, 0, 0)

    def reaches(self, since: "Version | str") -> bool:
        """Whether a server of this version has what came with `since`.

        A development build or candidate counts as the release it leads to, which its source is nearest to.
        """
        return self.release >= parse_version(since).release


@lru_cache(maxsize=512)
def parse_version(text: "str | Version") -> Version:
    """The version in `text`: `0.32.0`, `v0.32.0+cpu`, `0.9.0.1`, `0.6.3.post1`, `0.17.0rc1.dev149+g40077ea`.

    Raises:
        UsageError: the text is not a version number.
    """
    if isinstance(text, Version):
        return text
    found = _VERSION.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"not a version of vLLM: {text!r}", "write it like 0.32.0")
    release = [int(part) for part in found["release"].split(".")]
    while len(release) > 1 and release[-1] == 0:
        release.pop()
    if found["post"] is not None:
        stage = (_POST, int(found["post"] or 0), 0)
    elif found["pre"] is not None:
        stage = (_PRE[found["pre"]], int(found["pre_number"] or 0), 1 if found["dev"] is None else 0)
    else:
        stage = (_FINAL, 0, 0) if found["dev"] is None else (0, int(found["dev"] or 0), 0)
    return Version(tuple(release), stage, text.strip())
