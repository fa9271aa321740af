"""Our parser against prometheus-client's on every recorded page, and against hostile text."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from knee.core.errors import InputError
from knee.metrics.exposition import MAX_PAGE_CHARS, parse_exposition

SHARED = Path(__file__).parents[2].parent / "shared"
PAGES = sorted(
    [
        *SHARED.glob("captures/metrics-*.txt"),
        *SHARED.glob("captures/poll-*/*.prom"),
        *SHARED.glob("examples/*.prom"),
    ]
)


def body(path: Path) -> str:
    """The page without an example's header (up to `#---`) and without a recorded HTTP head."""
    text = path.read_text().split("#---\n", 1)[-1]
    return text.partition("\n\n")[2] if text.startswith("HTTP/") else text


def oracle(text: str) -> list[tuple[str, tuple[tuple[str, str], ...], float]]:
    return sorted(
        (sample.name.removesuffix("_total"), tuple(sorted(sample.labels.items())), float(sample.value))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    )


def ours(text: str) -> list[tuple[str, tuple[tuple[str, str], ...], float]]:
    return sorted(
        (name.removesuffix("_total"), tuple(sorted(labels.items())), value)
        for name, labels, value in parse_exposition(text).samples
    )


def same(left: list[tuple[str, tuple[tuple[str, str], ...], float]], right: object) -> bool:
    return repr(left) == repr(right)  # repr, because NaN differs from itself


@pytest.mark.skipif(not PAGES, reason="needs ../shared")
@pytest.mark.parametrize("path", PAGES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_agrees_with_prometheus_client_on_recorded_pages(path: Path) -> None:
    text = body(path)
    page = parse_exposition(text)
    assert page.n_unreadable == 0
    assert len(page.samples) >= 3
    assert same(ours(text), oracle(text))


names = st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,12}", fullmatch=True)
label_names = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True).filter(
    lambda n: not n.startswith("__")
)
label_values = st.text(
    st.characters(codec="utf-8", exclude_characters="\r\x1c\x1d\x1e\x85\u2028\u2029"), max_size=20
)
values = st.one_of(st.floats(), st.integers(-(10**15), 10**15))


def write(name: str, labels: dict[str, str], value: float, stamp: int | None, spaces: bool) -> str:
    def escape(text: str) -> str:
        return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')

    gap = "  " if spaces else ""
    inside = f",{gap}".join(f'{key}="{escape(text)}"' for key, text in labels.items())
    head = f"{name}{{{inside}}}" if labels else name
    return f"{head}{gap} {value!r}" + (f" {stamp}" if stamp is not None else "")


@given(
    st.lists(
        st.tuples(
            names,
            st.dictionaries(label_names, label_values, max_size=4),
            values,
            st.none() | st.integers(0, 10**13),
            st.booleans(),
        ),
        max_size=8,
    )
)
def test_reads_back_what_the_format_can_say(
    series: list[tuple[str, dict[str, str], float, int | None, bool]],
) -> None:
    text = "\n".join(write(*one) for one in series)
    page = parse_exposition(text)
    assert page.n_unreadable == 0
    expected = [(name, labels, float(value)) for name, labels, value, *_ in series]
    assert repr([(name, dict(labels), value) for name, labels, value in page.samples]) == repr(expected)


hostile = st.one_of(
    st.text(max_size=200),
    st.lists(
        st.sampled_from(
            [*'a{}"\\=, \t\n#1-e\x00ü\r', "vllm:x", "# TYPE ", "1.5", "NaN", "+Inf", "1_0", "le", "# {"]
        ),
        max_size=60,
    ).map("".join),
)


@given(hostile)
def test_hostile_text_never_raises_and_every_line_is_accounted_for(text: str) -> None:
    page = parse_exposition(text)
    candidates = [line for line in text.split("\n") if line.strip() and not line.lstrip().startswith("#")]
    assert len(page.samples) + page.n_unreadable == len(candidates)
    assert all(isinstance(value, float) for _, _, value in page.samples)


@given(hostile)
def test_what_both_parsers_read_they_read_alike(text: str) -> None:
    """Line by line, because prometheus-client gives up on a whole page."""
    for line in text.split("\n"):
        try:
            expected = oracle(line)
        except (ValueError, IndexError, TypeError, OverflowError):
            continue
        if any("__name__" in dict(labels) for _, labels, _ in expected):
            continue
        page = parse_exposition(line)
        if page.samples:
            assert same(ours(line), expected)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a 1", ("a", {}, 1.0)),
        ("a{} 1", ("a", {}, 1.0)),
        ('a{b="c",} 1', ("a", {"b": "c"}, 1.0)),
        ('a { b = "c" } 1', ("a", {"b": "c"}, 1.0)),
        ('a{b="}"} 1', ("a", {"b": "}"}, 1.0)),
        ('a{b="c d"}\t1 1700000000000', ("a", {"b": "c d"}, 1.0)),
        ('a_bucket{le="+Inf"} 7 # {trace="x"} 0.3', ("a_bucket", {"le": "+Inf"}, 7.0)),
        ('a{b="\\\\\\"\\n"} +Inf', ("a", {"b": '\\"\n'}, math.inf)),
        ("a 1\r", ("a", {}, 1.0)),
    ],
)
def test_forms_a_server_may_use(line: str, expected: tuple[str, dict[str, str], float]) -> None:
    assert parse_exposition(line).samples == [expected]


@pytest.mark.parametrize(
    "line", ["a", "a{ 1", 'a{b="c} 1', 'a{b="1",b="2"} 1', "1a 1", "a 1_000", "a x", "a{b=c} 1", "<html> 1"]
)
def test_what_is_no_sample_is_counted(line: str) -> None:
    page = parse_exposition(f"{line}\nfine 2")
    assert page.samples == [("fine", {}, 2.0)]
    assert page.unreadable == (line,)


def test_a_page_of_absurd_size_is_refused() -> None:
    with pytest.raises(InputError, match="16,777,216"):
        parse_exposition("a" * (MAX_PAGE_CHARS + 1))


def test_long_lines_take_linear_time() -> None:
    for line in ("a{" + "}" * 60_000, "a{" + '"' * 60_000, 'a{b="' + "\\" * 60_000, "a " * 30_000):
        assert parse_exposition(line).n_unreadable == 1
