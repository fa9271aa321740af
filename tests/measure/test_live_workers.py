"""Several processes share one schedule; their merged books are those of one."""

import itertools
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.measure.test_live_load import inside, interrupt_after, mixed, offer
from tests.scripted_server import Scripted, scripted, steady

from knee.core.requests import CENSORED, FAILED, OK, REJECTED, RequestRecord
from knee.core.run import read_lines
from knee.core.units import NS_PER_S
from knee.http1.origin import parse_origin
from knee.measure.client.books import Books
from knee.measure.client.connection import Connection
from knee.measure.client.endpoints import Ask, form, head_of
from knee.measure.client.live import LiveTarget, connect
from knee.measure.client.prompts import Prompts, plain_vocabulary
from knee.measure.client.ready import Part, make_ready
from knee.measure.target import Offer
from knee.workload.spec import Conversations, Lengths, Prefixes


def target(server: Scripted, workers: int, run: Path | None = None) -> LiveTarget:
    return connect(Connection(url=server.url), run, workers)


def ready(asked: Offer, index: int, parts: int, n: int) -> list[Any]:
    ask = Ask(model="m")
    head = head_of(parse_origin("http://x"), ask, {})
    prompts = Prompts(plain_vocabulary(), shared_entropy=9)
    return list(itertools.islice(make_ready(asked, prompts, form(ask), head, Part(index, parts)), n))


@given(parts=st.integers(1, 7), talk=st.booleans())
@settings(max_examples=6, deadline=None)
def test_parts_make_up_the_whole_schedule(parts: int, talk: bool) -> None:
    asked = offer(rate=20)
    if talk:
        turns = Conversations(turns=Lengths(kind="uniform", low=1, high=4), think_s=1)
        asked = msgspec.structs.replace(
            asked, workload=msgspec.structs.replace(asked.workload, conversations=turns)
        )
    whole = ready(asked, 0, 1, 300)
    shares = [ready(asked, index, parts, 300) for index in range(parts)]
    merged = sorted((due for share in shares for due in share), key=lambda due: due.number)[: len(whole)]
    keys = [(d.number, d.due_ns, d.prompt_tokens, d.output_tokens, d.follows) for d in merged]
    assert keys == [(d.number, d.due_ns, d.prompt_tokens, d.output_tokens, d.follows) for d in whole]
    for share in shares:  # a conversation is never torn apart
        numbers = {due.number for due in share}
        assert all(due.follows in numbers for due in share if due.follows >= 0)


def test_shared_text_is_shared_between_workers_and_fresh_text_is_not() -> None:
    asked = offer(rate=20)
    workload = msgspec.structs.replace(
        asked.workload, prompt_tokens=Lengths(mean=90), prefixes=Prefixes(tokens=40, groups=1)
    )
    asked = msgspec.structs.replace(asked, workload=workload)
    texts = [
        due.request.split(b'"prompt":"')[1].split(b" ") for i in range(2) for due in ready(asked, i, 2, 5)
    ]
    assert len({tuple(words[:40]) for words in texts}) == 1
    assert len({tuple(words[40:56]) for words in texts}) == 10


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_clients_of_a_closed_loop_are_shared_out(parts: int) -> None:
    assert sum(Part(i, parts).clients(7) for i in range(parts)) == 7


def test_two_workers_send_one_schedule_and_keep_one_set_of_books(tmp_path: Path) -> None:
    asked = offer(rate=80, window_s=1.0)
    with scripted(mixed) as server:
        got = target(server, 2, tmp_path).measure(asked)
        alone = target(server, 1).measure(asked)
    one, two = alone.observed, got.observed
    n = int(inside(one, asked).sum())
    assert n == inside(two, asked).sum() > 60
    assert (np.diff(two.due_ns) >= 0).all()
    assert (one.due_ns[:n] == two.due_ns[:n]).all()
    assert (one.asked_tokens[:n] == two.asked_tokens[:n]).all()
    assert sum(two.causes.values()) == int(np.isin(two.outcome, [FAILED, REJECTED]).sum())
    assert set(two.causes) - {"cut", "reset"} == {"error_event", "no_done", "http_503"}
    records = list(read_lines(tmp_path / "records.jsonl", RequestRecord))
    assert len(records) == len(two)
    for part in (0, 1):  # past the window one may be told to stop before the other
        share = sorted(record.index for record in records if record.index % 2 == part)
        assert share == list(range(part, 2 * len(share), 2))
    assert sum(len(record.gap_ns) for record in records) == len(two.gaps.ns)
    assert got.health is not None
    assert got.health.workers == 2
    assert got.health.prompt_error_share is not None
    assert got.health.prompt_error_share > 0  # the script's failing streams claim another length
    assert got.health.cpu_share is not None
    assert any("Retry-After 2" in note for note in got.health.notes)


def test_ctrl_c_reaches_all_workers() -> None:
    with scripted(steady(0.01, 0.002)) as server:
        live = target(server, 2)
        # The whole group gets it on a terminal; workers leave it to the crew.
        threading.Thread(target=interrupt_after, args=(server, 40)).start()
        got = live.measure(offer(rate=40, window_s=60))
    assert got.stopped == "interrupted"
    assert len(got.observed) > 20
    assert (got.observed.outcome == CENSORED).sum() < 10


def test_a_closed_loop_over_two_workers() -> None:
    with scripted(steady(0.02, 0.002)) as server:
        got = target(server, 2).measure(offer(rate=0, max_concurrency=5, window_s=0.6))
    assert (got.observed.outcome == OK).sum() > 30


def test_a_server_lost_to_all_workers() -> None:
    with scripted(steady(0.01, 0.002)) as server:
        live = target(server, 2)
    got = live.measure(offer(rate=60, window_s=30))
    assert got.stopped == "target lost"
    assert set(got.observed.causes) == {"refused"}
    assert got.observed.end_of_load_ns < 6 * NS_PER_S


@given(rows=st.lists(st.lists(st.integers(0, 2**40), min_size=10, max_size=10), max_size=9))
def test_rows_survive_the_way(rows: list[list[int]]) -> None:
    rows = [[*row[:5], row[5] % 4, *row[6:]] for row in rows]
    one, other = Books(), Books()
    one.add_rows(np.array(rows, dtype=np.int64).reshape(-1, 10))
    other.add_rows(one.rows(range(len(rows))))
    for name in ("due_ns", "outcome", "first_tokens"):
        assert getattr(one, name) == getattr(other, name)
