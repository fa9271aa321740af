"""The books: what they hold is bounded, and merging loses no gap."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from knee.core.requests import CENSORED, Ints, column
from knee.measure.client import books as module
from knee.measure.client.books import Books, merge_alike


def test_an_entry_is_censored_until_it_is_closed() -> None:
    books = Books()
    assert [books.offer(5, 10, 20), books.offer(6, 11, 21)] == [0, 1]
    observed = books.observed(9)
    assert observed.outcome.tolist() == [CENSORED] * 2
    assert (observed.due_ns.tolist(), observed.asked_tokens.tolist()) == ([5, 6], [20, 21])
    assert observed.sent_ns.tolist() == observed.end_ns.tolist() == [-1, -1]


def test_gaps_come_in_order_of_their_ends() -> None:
    books = Books()
    for at in (30, 10, 20):
        books.gaps([4], [2], [at])
    assert books.observed(0).gaps.at_ns.tolist() == [10, 20, 30]
    assert books.observed(0).gaps.ns.tolist() == [2, 2, 2]


lengths = arrays(np.int64, 200, elements=st.integers(0, 10**10))


@given(ns=lengths, at=lengths, count=arrays(np.int64, 200, elements=st.integers(1, 9)))
def test_merging_keeps_number_and_length(ns: Ints, at: Ints, count: Ints) -> None:
    merged, counts, ends = merge_alike(ns, count, at, 10**9)
    assert counts.sum() == count.sum()
    assert abs(int((merged * counts).sum()) - int((ns * count).sum())) <= counts.sum()
    assert ends.max() == at.max()
    assert len(merged) <= len(ns)


def test_memory_stays_bounded_and_percentiles_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GAPS_KEPT", 4_000)
    drawn = np.random.default_rng(1).lognormal(17, 0.5, 100_000).astype(np.int64)
    books = Books()
    for i, ns in enumerate(drawn.tolist()):
        books.gaps([ns], [1], [i * 1_000_000])
        assert len(books.gap_ns) <= 4_000
    gaps = books.observed(0).gaps
    assert gaps.count.sum() == 100_000
    for share in (50, 95, 99):
        seen = np.percentile(np.repeat(gaps.ns, gaps.count), share)
        assert seen == pytest.approx(np.percentile(drawn, share), rel=0.01)
    assert gaps.chunk_ns is not None
    assert len(gaps.chunk_ns) < 4_000
    assert np.percentile(gaps.chunk_ns, 50) == pytest.approx(np.percentile(drawn, 50), rel=0.1)
    assert column([1]).dtype == np.int64


@given(sizes=st.lists(st.integers(0, 9), max_size=8), stride=st.sampled_from([1, 2, 4]))
def test_every_strideth_chunk_is_kept_however_they_come(sizes: list[int], stride: int) -> None:
    lumped, single = Books(), Books()
    lumped._chunk_stride = single._chunk_stride = stride
    at = 0
    for size in sizes:
        gaps = list(range(at, at + size))
        lumped.gaps(gaps, [1] * size, gaps)
        for gap in gaps:
            single.gaps([gap], [1], [gap])
        at += size
    assert lumped.chunk_ns == single.chunk_ns
    assert lumped.chunk_ns.tolist() == list(range(at))[stride - 1 :: stride]
