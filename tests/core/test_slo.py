import contextlib
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knee.core.errors import UsageError
from knee.core.slo import LATENCIES, SHARES, Objective, Slo, parse_slo


def test_reads_what_people_write() -> None:
    assert parse_slo("ttft p95 < 1s, itl p99 < 60ms, errors<1%, goodput > 0.9") == Slo(
        (
            Objective(metric="ttft", quantile=0.95, bound=1000.0),
            Objective(metric="itl", quantile=0.99, bound=60.0),
            Objective(metric="errors", bound=0.01),
            Objective(metric="goodput", bound=0.9),
        )
    )


def test_a_latency_without_a_percentile_means_p95() -> None:
    assert parse_slo("e2e < 2m").objectives == (Objective(metric="e2e", quantile=0.95, bound=120_000.0),)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " , ",
        "ttft",
        "ttft < 1",
        "ttft p95 < fast",
        "ttft p0 < 1s",
        "ttft p95 > 1s",
        "ttft p95 < 0s",
        "errors p95 < 1%",
        "errors < 150%",
        "errors < few%",
        "errors > 1%",
        "goodput < 90%",
        "speed < 1s",
        "ttft p95 < 1s, ttft p95 < 2s",
    ],
)
def test_says_what_it_cannot_read(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_slo(text)
    assert raised.value.hint


objectives = st.one_of(
    st.builds(
        Objective,
        metric=st.sampled_from(LATENCIES),
        quantile=st.sampled_from([0.5, 0.9, 0.95, 0.99, 0.999]),
        bound=st.integers(1, 10_000_000).map(lambda tenths: tenths / 10),
    ),
    st.builds(Objective, metric=st.sampled_from(SHARES), bound=st.sampled_from([0.0, 0.01, 0.05, 0.9, 1.0])),
)


@given(st.lists(objectives, min_size=1, max_size=5, unique_by=lambda o: (o.metric, o.quantile)))
def test_what_is_printed_reads_back(stated: list[Objective]) -> None:
    again = parse_slo(str(Slo(tuple(stated)))).objectives
    for read, meant in zip(again, stated, strict=True):
        assert (read.metric, read.quantile) == (meant.metric, meant.quantile)
        assert read.bound == pytest.approx(meant.bound, rel=1e-5)


@given(st.text(alphabet=string.printable, max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(UsageError):
        parse_slo(text)
