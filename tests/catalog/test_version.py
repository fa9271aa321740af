import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version as Oracle

from knee.catalog.version import parse_version
from knee.core.errors import UsageError

_RELEASE = st.lists(st.integers(0, 40), min_size=1, max_size=4).map(lambda parts: ".".join(map(str, parts)))
_SUFFIX = st.sampled_from(
    ["", "rc1", "rc2", "a1", "b3", ".dev5", "rc1.dev149", ".post1", "rc1.dev149+g40077ea3d.d20260308", "+cpu"]
)
_VERSIONS = st.builds("{}{}".format, _RELEASE, _SUFFIX)


@given(_VERSIONS, _VERSIONS)
def test_versions_are_ordered_as_pep_440_orders_them(one: str, other: str) -> None:
    ours = (parse_version(one) > parse_version(other), parse_version(one) == parse_version(other))
    theirs = [Oracle(text.split("+")[0]) for text in (one, other)]
    assert ours == (theirs[0] > theirs[1], theirs[0] == theirs[1])


def test_what_servers_report_is_read() -> None:
    written = ["0.6.3.post1", "0.9.0.1", "0.17.0rc1.dev149+g40077ea3d.d20260308", "v0.17.0", "0.32.0+cpu"]
    assert [parse_version(text) for text in written] == sorted(parse_version(text) for text in written)
    assert parse_version("0.9.0.1") > parse_version("0.9.0")
    assert parse_version("0.9") == parse_version("0.9.0")


def test_a_development_build_counts_as_the_release_it_leads_to() -> None:
    build = parse_version("0.17.0rc1.dev149+g40077ea3d")
    assert build < parse_version("0.17.0")
    assert build.is_development
    assert build.reaches("0.17.0")
    assert not build.reaches("0.18.0")
    assert not parse_version("0.17.1").is_development


@pytest.mark.parametrize("text", ["", "dev", "latest", "0.32.x", "1.2.3-4", "0.32.0 (abc)"])
def test_what_is_no_version_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(UsageError, match=r"not a version of vLLM.*write it like 0\.32\.0"):
        parse_version(text)
