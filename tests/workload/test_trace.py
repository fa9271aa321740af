"""Every format of traces, in small and from the public ones, and exact replay."""

import contextlib
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knee.core.errors import InputError, UsageError
from knee.workload.formats import Row, read_rows
from knee.workload.schedule import schedule
from knee.workload.spec import Lengths, Replay, Workload
from knee.workload.trace import read_trace, trace_of

TRACES = Path(__file__).parents[2].parent / "shared" / "traces"


def lines(*values: object) -> bytes:
    return b"\n".join(json.dumps(value).encode() for value in values) + b"\n"


BURSTGPT = (
    b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    b"5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,230,1317,Conversation log\n"
)
SHAREGPT = (
    b'[{"id": "a", "conversations": [{"from": "human", "value": "12345678"}, '
    b'{"from": "gpt", "value": "1234"}, {"from": "human", "value": "more"}]}, {"conversations": []}]'
)


@pytest.mark.parametrize(
    ("data", "kind", "rows"),
    [
        (
            lines({"timestamp": 1500, "input_length": 700, "output_length": 9, "hash_ids": [3, 8]}),
            "mooncake",
            [Row(700, 9, 1.5, ((3, 512), (8, 188)))],
        ),
        (lines({"input_length": 7, "output_length": 9}), "mooncake", [Row(7, 9, None)]),
        (
            b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n",
            "azure",
            [Row(374, 44, 1_700_158_546.68059)],
        ),
        (
            BURSTGPT,
            "burstgpt",
            [Row(472, 18, 5.0), Row(1087, 230, 45.0)],
        ),
        (
            SHAREGPT,
            "sharegpt",
            [Row(2, 1)],
        ),
        (lines({"prompt": "12345678", "output_tokens": 7}), "prompts", [Row(2, 7)]),
        (lines({"prompt": "x" * 40}), "prompts", [Row(10, 256)]),
        (
            lines({"prompt": "hm", "prompt_tokens_count": 33, "output_tokens_count": 44}),
            "prompts",
            [Row(33, 44)],
        ),
        (lines({"text": "12345678", "timestamp": 250, "output_length": 3}), "prompts", [Row(2, 3, 0.25)]),
        (
            lines({"turns": [{"text": "1234"}, {"text": "12345678", "max_tokens": 5}]}),
            "prompts",
            [Row(1, 256), Row(2, 5)],
        ),
        (
            lines({"at_s": 0.5, "prompt_tokens": 9, "output_tokens": 8, "shared": [[1, 4]]}),
            "knee",
            [Row(9, 8, 0.5, ((1, 4),))],
        ),
        (
            lines(
                {
                    "point": 0,
                    "due_ns": 2_000_000_000,
                    "outcome": "failed",
                    "prompt_tokens": 9,
                    "asked_tokens": 8,
                }
            ),
            "records",
            [Row(9, 8, 2.0)],
        ),
        (
            lines(
                {
                    "at": "2026-01-01T00:00:00.250000+00:00",
                    "path": "/v1/completions",
                    "bytes_in": 400,
                    "bytes_out": 720,
                },
                {"at": "2026-01-01T00:00:01+00:00", "path": "/metrics", "bytes_in": 0, "bytes_out": 720},
            ),
            "gateway",
            [Row(100, 3, 1_767_225_600.25)],
        ),
    ],
)
def test_formats(data: bytes, kind: str, rows: list[Row]) -> None:
    read = read_rows(data, "file")
    assert (read.format, read.rows) == (kind, rows)
    assert bool(read.notes) == any(word in kind for word in ("sharegpt", "gateway")) or kind == "prompts"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b'{"a": 1}\n', "file:1 is no request of a known format"),
        (b'{"prompt": "a"}\n{"prom', "file:2 is not JSON"),
        (
            b'{"prompt": "a"}\n{"input_length": 1, "output_length": 2}\n',
            "file:2 is no request of a known format",
        ),
        (b'{"input_length": "x", "output_length": 2}\n', "file:1 is no mooncake request"),
        (b"a,b,c\n1,2,3\n", "is of no known format"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023,x,1\n", "file:2 is no azure request"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n", "holds no request"),
        (b"[1, 2", "is no ShareGPT list"),
        (b"[" * 100_000, "is no ShareGPT list"),
        (b'{"a":' * 100_000, "is not JSON"),
        (b"\r\x00", "is no CSV request"),
        (b"[]", "holds no ShareGPT conversation"),
        (b"\x89PNG\r\n\x1a\n\xff", "is neither text nor a known format"),
    ],
)
def test_what_is_no_trace(data: bytes, says: str) -> None:
    with pytest.raises(InputError) as caught:
        read_rows(data, "file")
    assert says in caught.value.what


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_a_trace_or_an_error(data: bytes) -> None:
    with contextlib.suppress(InputError):
        assert read_rows(data, "file").format


def test_requests_without_tokens_are_left_out_and_counted() -> None:
    rows = read_rows(
        lines(*[{"at_s": i, "prompt_tokens": 9, "output_tokens": i % 2} for i in range(9)]), "file"
    )
    trace = trace_of(rows, "file")
    assert len(trace) == 4
    assert "5 requests without" in trace.notes[0]


def test_public_traces() -> None:
    azure = read_trace(TRACES / "azure_llm_2023_conv.csv")
    assert (len(azure), azure.format) == (19_366, "azure")
    assert azure.rate == pytest.approx(5.53, abs=0.01)
    assert azure.prompt_tokens.mean() == pytest.approx(1_154.7, abs=0.1)
    mooncake = read_trace(TRACES / "mooncake_conversation_head.jsonl")
    assert (len(mooncake), mooncake.format) == (4_000, "mooncake")
    assert mooncake.shared is not None
    for segments, tokens in zip(mooncake.shared, mooncake.prompt_tokens.tolist(), strict=True):
        assert sum(n for _, n in segments) <= tokens


def replaying(path: Path, **options: str) -> Workload:
    return Workload(
        prompt_tokens=Lengths(mean=1), output_tokens=Lengths(mean=1), replay=Replay(path=str(path), **options)
    )


@pytest.mark.parametrize("speed", [0.5, 1.0, 3.0])
def test_replay_is_exact(speed: float) -> None:
    """Every instant, divided by the speed; every length; and the trace again after its end."""
    path = TRACES / "azure_llm_2023_conv.csv"
    trace = read_trace(path)
    assert trace.rate is not None
    assert trace.at_s is not None
    parts = list(itertools.islice(schedule(replaying(path), trace.rate * speed, 1), 20))
    due = np.concatenate([part.due_ns for part in parts])
    n = len(trace)
    assert np.abs(due[:n] / 1e9 - trace.at_s / speed).max() < 1e-6
    assert (np.concatenate([part.prompt_tokens for part in parts])[:n] == trace.prompt_tokens).all()
    assert due[n] / 1e9 == pytest.approx(trace.span_s / speed)
    assert (np.diff(due) >= 0).all()


def test_a_replay_refuses_another_file_than_it_was_planned_with(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(lines(*[{"at_s": i, "prompt_tokens": 9, "output_tokens": 2} for i in range(9)]))
    digest = read_trace(path).sha256
    next(iter(schedule(replaying(path, sha256=digest), 1.0, 1)))
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(InputError, match="not the trace it was"):
        schedule(replaying(path, sha256=digest), 1.0, 1)


def test_what_cannot_be_replayed(tmp_path: Path) -> None:
    path = tmp_path / "lengths.jsonl"
    path.write_bytes(lines({"input_length": 7, "output_length": 9}))
    with pytest.raises(UsageError, match="no arrival times"):
        schedule(replaying(path), 1.0, 1)
    with pytest.raises(InputError, match="cannot read"):
        schedule(replaying(tmp_path / "none"), 1.0, 1)
