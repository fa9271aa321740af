from typing import Any

import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from knee.deploy.commented import Because, document, plain

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
)
whys = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=30)
trees = st.recursive(
    st.one_of(scalars, st.builds(Because, scalars, whys)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(min_size=1, max_size=8), inner, max_size=4),
        st.builds(Because, st.dictionaries(st.text(min_size=1, max_size=8), inner, max_size=3), whys),
    ),
    max_leaves=20,
)


@settings(deadline=None)
@given(st.dictionaries(st.text(min_size=1, max_size=8), trees, min_size=1, max_size=5))
@example(
    {"a": [[{"b": 1}], [], {}], "c": "x: y # z", "d": "a\nb\n", "e": "\n", "f": " a\n", "g": "1e3", "h": "--"}
)
@example({"no": "no", "0": "0x1f", "~": "~", "=": "=", "<<": "<<", "t": "2026-01-01", "d": "1:30", "e": "-1"})
@example({"k": Because([Because(1, "one"), Because({"x": 2}, "two")], "list")})
@example({"a": [Because([1], "x")], "b": "\x7f\u2028é\x85"})
def test_what_is_written_reads_back(value: dict[str, Any]) -> None:
    assert yaml.safe_load(document(value)) == plain(value)


@settings(deadline=None)
@given(whys)
def test_the_reason_stands_beside_its_value(why: str) -> None:
    text = document({"spec": {"seconds": Because(15, why)}})
    assert why in text
    assert yaml.safe_load(text) == {"spec": {"seconds": 15}}


def test_a_long_reason_stands_above() -> None:
    text = document({"spec": {"seconds": Because(15, "word " * 30)}})
    above, value = text.splitlines()[-2:]
    assert above.startswith("  # word")
    assert value == "  seconds: 15"
