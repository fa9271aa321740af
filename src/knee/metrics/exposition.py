"""The Prometheus text format, read fast enough to scrape in the middle of a send loop.

Format: Prometheus "Exposition formats", text version 0.0.4; an exemplar or `# EOF` of OpenMetrics is passed
over. The usual parser (prometheus-client) takes several milliseconds for a vLLM page; here a line costs one
`rpartition`, one `float` and one look-up, because what stands before the value is the same in every scrape.
"""

import re
from functools import lru_cache

import msgspec

from knee.core.errors import InputError

Labels = dict[str, str]
Sample = tuple[str, Labels, float]
"""Name, labels (shared between pages: read only), value."""

MAX_PAGE_CHARS = 16 * 1024 * 1024
MAX_LINE_CHARS = 64 * 1024
MAX_SAMPLES = 200_000
MAX_UNREADABLE_KEPT = 5

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_QUOTED = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_HEAD = re.compile(rf"({_NAME})[ \t]*(?:\{{(.*)\}})?[ \t]*")
_LABEL = re.compile(rf"[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*({_QUOTED})[ \t]*(?:,|$)")
_LINE = re.compile(
    rf"({_NAME}[ \t]*(?:\{{(?:[^\"}}]|{_QUOTED})*\}})?)[ \t]*([^ \t]+)"
    r"(?:[ \t]+-?[0-9]+(?:\.[0-9]+)?)?(?:[ \t]+#[ \t].*)?"  # a time stamp, an exemplar
)
_ESCAPE = re.compile(r'\\([\\n"])')


class Page(msgspec.Struct, frozen=True):
    """What a page says.

    `types` maps a metric's name as its TYPE line states it to `counter`, `gauge`, `histogram`, `summary` or
    `untyped`. `unreadable` holds the first few lines that are no samples, `n_unreadable` counts them all.
    """

    samples: list[Sample]
    types: dict[str, str]
    unreadable: tuple[str, ...] = ()
    n_unreadable: int = 0


def parse_exposition(text: str) -> Page:
    """Every sample and type of `text`; a line that cannot be read is counted and never stops the rest.

    Raises:
        InputError: the page is larger than any server's (16 MiB of text, 200,000 samples).
    """
    if len(text) > MAX_PAGE_CHARS:
        raise InputError(f"a metrics page of {len(text):,} characters; at most {MAX_PAGE_CHARS:,} are read")
    samples: list[Sample] = []
    types: dict[str, str] = {}
    unreadable: list[str] = []
    n_unreadable = 0
    for line in text.split("\n"):
        if line[:1] == "#":
            if line.startswith("# TYPE "):
                _note_type(line, types)
            continue
        sample = _sample(line)
        if sample is not None:
            samples.append(sample)
        elif line.strip() and not line.lstrip().startswith("#"):
            n_unreadable += 1
            if len(unreadable) < MAX_UNREADABLE_KEPT:
                unreadable.append(line[:120])
    if len(samples) > MAX_SAMPLES:
        raise InputError(f"a metrics page of {len(samples):,} samples; at most {MAX_SAMPLES:,} are read")
    return Page(samples, types, tuple(unreadable), n_unreadable)


def _sample(line: str) -> Sample | None:
    start, _, value = line.rpartition(" ")
    found = _head(start)
    if found is None or "_" in value:  # Python reads 1_000, the format does not
        return _unusual_sample(line)
    try:
        return found[0], found[1], float(value)
    except ValueError:
        return _unusual_sample(line)


def _note_type(line: str, types: dict[str, str]) -> None:
    parts = line.split()
    if len(parts) == 4 and len(types) < MAX_SAMPLES:
        types[parts[2]] = parts[3]


@lru_cache(maxsize=16_384)
def _head(text: str) -> tuple[str, Labels] | None:
    """Name and labels of what stands before the value; None where it is not exactly that."""
    found = _HEAD.fullmatch(text) if text and len(text) <= MAX_LINE_CHARS else None
    if found is None:
        return None
    name, body = found.groups()
    if not body:
        return name, {}
    plain = _plain_labels(body)
    if plain is not None:
        return name, plain
    labels: Labels = {}
    at = 0
    while at < len(body):
        label = _LABEL.match(body, at)
        if label is None:
            return (name, labels) if not body[at:].strip() else None
        key, value = label.groups()
        if key in labels:
            return None
        value = value[1:-1]
        labels[key] = _ESCAPE.sub(_unescape, value) if "\\" in value else value
        at = label.end()
    return name, labels


def _plain_labels(body: str) -> Labels | None:
    """Labels as servers write them, without blanks and escapes; None where it is not exactly that."""
    if "\\" in body or body[-1] != '"':
        return None
    labels: Labels = {}
    parts = body[:-1].split('",')
    for part in parts:
        key, begins, value = part.partition('="')
        if not begins or '"' in value or not key.isidentifier() or not key.isascii():
            return None
        labels[key] = value
    return labels if len(labels) == len(parts) else None


def _unescape(found: re.Match[str]) -> str:
    return "\n" if found.group(1) == "n" else found.group(1)


def _unusual_sample(line: str) -> Sample | None:
    """A sample with a time stamp, an exemplar, tabs or spaces where the quick way does not expect them."""
    line = line.strip()
    found = _LINE.fullmatch(line) if line and len(line) <= MAX_LINE_CHARS else None
    head = _head(found.group(1)) if found else None
    if found is None or head is None or "_" in found.group(2):
        return None
    try:
        return head[0], head[1], float(found.group(2))
    except ValueError:
        return None
