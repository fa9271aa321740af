"""`knee upgrade outputs` against a simulated server, with changes planted between it and the client."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.upgrade.altering import Change, altering

from knee.cli.main import run
from knee.core.errors import InputError
from knee.mock.config import MockConfig
from knee.mock.running import mock_server
from knee.upgrade.evaluation import read_set, shipped_set
from knee.upgrade.recording import read_recording


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with mock_server(MockConfig(speed=200)) as running:
        yield running.url


def record(url: str, out: Path, *more: str) -> int:
    return run(["upgrade", "outputs", "record", url, "--out", str(out), *more])


def compare(before: Path, after: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = run(["upgrade", "outputs", "compare", str(before), str(after), "--json"])
    return code, json.loads(capsys.readouterr().out or "{}")


@pytest.fixture(scope="module")
def baseline(server: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("baseline") / "a.json"
    assert record(server, path) == 0
    return path


def keep(fields: dict[str, Any]) -> dict[str, Any]:
    return fields


def other_template(fields: dict[str, Any]) -> dict[str, Any]:
    if "messages" in fields:
        fields["messages"] = [{"role": "system", "content": "You are helpful."}, *fields["messages"]]
    return fields


def other_default_temperature(fields: dict[str, Any]) -> dict[str, Any]:
    """The simulated model knows no temperature; another one makes the same seed draw other tokens."""
    if "temperature" not in fields:
        fields["seed"] = 99
    return fields


def other_kernels(fields: dict[str, Any]) -> dict[str, Any]:
    fields["seed"] = 98
    return fields


def other_generator(fields: dict[str, Any]) -> dict[str, Any]:
    """A seed that draws other tokens, as between vLLM 0.27 and 0.32; the distribution is the same."""
    return fields if fields.get("temperature") == 0 else fields | {"seed": 97}


@pytest.mark.parametrize(
    ("change", "code", "changed", "cause"),
    [
        (keep, 0, set(), ""),
        (other_template, 1, {"prompts", "greedy", "seeded", "default"}, "template"),
        (other_default_temperature, 1, {"default"}, "sampling defaults"),
        (other_kernels, 1, {"greedy", "seeded"}, "arithmetic"),
        (other_generator, 0, {"seeded"}, ""),
    ],
)
def test_planted_changes(
    *, change: Change, code: int, changed: set[str], cause: str, server: str, baseline: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    with altering(server, change) as url:
        assert record(url, tmp_path / "b.json") == 0
    got, found = compare(baseline, tmp_path / "b.json", capsys)
    assert got == code
    assert {group["name"] for group in found["groups"] if group["verdict"] == "changed"} == changed
    assert cause in found["cause"]
    assert all(group["noisy"] == 0 for group in found["groups"])


def test_a_noisy_server_is_not_called_changed(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(5)

    def sometimes(fields: dict[str, Any]) -> dict[str, Any]:
        return fields | {"seed": rng.choice([1, 1, 2])}

    with altering(server, sometimes) as url:
        assert record(url, tmp_path / "a.json") == 0
        assert record(url, tmp_path / "b.json") == 0
    code, found = compare(tmp_path / "a.json", tmp_path / "b.json", capsys)
    assert code in (0, 5)
    assert found["groups"][1]["noisy"] > 0


def test_a_server_that_takes_no_further_fields(server: str, tmp_path: Path) -> None:
    def strict(fields: dict[str, Any]) -> dict[str, Any] | int:
        return 400 if "logprobs" in fields else fields

    with altering(server, strict) as url:
        assert record(url, tmp_path / "a.json") == 0
    kept = read_recording(tmp_path / "a.json")
    assert all(not said.error for probe in kept.probes for said in probe.runs)
    assert any("words are compared" in note for note in kept.notes)


def test_a_case_that_is_refused_is_kept_as_that(server: str, tmp_path: Path) -> None:
    def short(fields: dict[str, Any]) -> dict[str, Any] | int:
        return 400 if len(str(fields.get("prompt", ""))) > 500 else fields

    with altering(server, short) as url:
        assert record(url, tmp_path / "a.json") == 0
    kept = read_recording(tmp_path / "a.json")
    refused = [probe.case for probe in kept.probes if probe.runs[0].error]
    assert refused == ["long-context"]
    assert any("were refused" in note for note in kept.notes)


@pytest.mark.parametrize(("status", "says"), [(401, "another key"), (500, "answers 500"), (400, "no case")])
def test_servers_that_refuse(
    status: int, says: str, server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with altering(server, lambda _: status) as url:
        assert record(url, tmp_path / "a.json") == 4
    shown = capsys.readouterr().err
    assert says in shown
    assert "Traceback" not in shown
    assert not (tmp_path / "a.json").exists()


def test_no_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert record("http://127.0.0.1:9", tmp_path / "a.json") == 4
    assert record("ftp://x", tmp_path / "a.json") == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_set_of_ones_own(
    server: str, baseline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "set.jsonl").write_text('{"id": "a", "kind": "chat", "text": "hi"}\n\n')
    assert record(server, tmp_path / "a.json", "--set", str(tmp_path / "set.jsonl")) == 0
    assert len(read_recording(tmp_path / "a.json").probes) == 1
    code, _ = compare(baseline, tmp_path / "a.json", capsys)
    assert code == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds 0 cases"),
        ("nonsense\n", ":1 is not a case"),
        ('{"id": "a", "kind": "song", "text": "x"}\n', ":1 is not a case"),
        ('{"id": "a", "kind": "chat", "text": "x", "temperature": 1}\n', ":1 is not a case"),
        ('{"id": "a", "kind": "chat", "text": "x"}\n' * 2, "used twice"),
        ('{"id": "a", "kind": "chat", "text": ""}\n', "text and modes"),
        ('{"id": "a", "kind": "chat", "text": "x", "max_tokens": 0}\n', "max_tokens"),
    ],
)
def test_bad_sets(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "set.jsonl").write_text(text)
    with pytest.raises(InputError, match=says):
        read_set(tmp_path / "set.jsonl")


def test_the_shipped_set() -> None:
    cases = shipped_set().cases
    assert len(cases) == 24
    assert sum(len(case.modes) for case in cases) == 48
    assert sum(case.max_tokens * len(case.modes) for case in cases) * 2 < 5000  # tokens of a whole recording


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"schema": 1}', b"\xff"])
def test_files_that_are_no_recording(
    content: bytes, baseline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.json").write_bytes(content)
    assert run(["upgrade", "outputs", "compare", str(baseline), str(tmp_path / "x.json")]) == 3
    assert "is not a recording" in capsys.readouterr().err
    assert run(["upgrade", "outputs", "compare", str(baseline), str(tmp_path / "absent.json")]) == 3
