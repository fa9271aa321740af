"""Every way in which a server cannot be used is one clear line, before any load goes to it."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.raw_server import answering, serving
from tests.scripted_server import Scripted, plain, scripted, steady

from knee.core.errors import InputError, TargetError, UsageError
from knee.http1.origin import parse_origin
from knee.measure.client.connection import Connection
from knee.measure.client.endpoints import Ask
from knee.measure.client.live import connect
from knee.measure.client.secret import Secret, read_key

MODELS = "/v1/models"


def refusing(answers: dict[str, tuple[int, Any]], **options: Any) -> TargetError:
    with scripted(steady(0, 0), answers) as server, pytest.raises(TargetError) as caught:
        connect(Connection(url=server.url, **options))
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 4
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (401, {"error": "Unauthorized"}, "asks for another key"),
        (403, b"", "forbids /v1/models"),
        (404, {"detail": "Not Found"}, "not a vLLM server, or another base path"),
        (
            500,
            {"error": {"message": "EngineCore encountered an issue"}},
            "answers 500 to /v1/models: EngineCore",
        ),
        (502, b"<html>Bad Gateway</html>", "answers 502"),
        (503, b"", "is not ready"),
        (302, b"", "redirects"),
        (418, b"", "answers 418"),
        (200, b"<html>hello</html>", "not as a vLLM server"),
        (200, {"hello": "world"}, "not as a vLLM server"),
        (200, {"data": []}, "serves no model"),
    ],
)
def test_what_the_model_list_gives_away(status: int, body: Any, says: str) -> None:
    assert says in refusing({MODELS: (status, body)}).what


def test_a_model_that_is_not_served_lists_what_is() -> None:
    error = refusing({}, ask=Ask(model="gpt-4"))
    assert "does not serve the model 'gpt-4'" in error.what
    assert "it serves: tiny" in error.hint


def test_a_server_that_speaks_something_else() -> None:
    with (
        serving(lambda c, _: c.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")) as url,
        pytest.raises(TargetError) as caught,
    ):
        connect(Connection(url=url))
    assert "does not answer in HTTP/1.1" in caught.value.what


def test_nobody_listens() -> None:
    with serving(answering(b"")) as url:
        pass
    with pytest.raises(TargetError, match="refuses connections") as caught:
        connect(Connection(url=url))
    assert "loading" in caught.value.hint


@pytest.mark.parametrize(
    ("status", "message", "says"),
    [
        (400, "max_tokens is too large", "does not take the request: max_tokens is too large"),
        (404, "The model does not exist", "has no /v1/completions"),
        (503, "busy", "is not ready: busy"),
        (500, "EngineCore died", "answers 500 to /v1/completions: EngineCore died"),
    ],
)
def test_a_server_that_lists_models_and_does_not_generate(status: int, message: str, says: str) -> None:
    said = {"error": {"message": message}}
    assert says in refusing({"/v1/completions": (status, said)}).what


def test_what_is_found_out() -> None:
    models = [{"id": "lora", "parent": "base"}, {"id": "base", "max_model_len": 77}]
    with scripted(steady(0, 0), {MODELS: (200, {"data": models})}) as server:
        target = connect(Connection(url=f"{server.url}/v1"))
    info = target.describe()
    assert (info.model, info.version, info.simulated, info.name) == ("base", "0.32.0", False, server.url)
    assert any("several models" in note for note in target.notes)
    assert any("no vLLM metrics" in note for note in target.notes)


def test_named_metrics_must_be_there() -> None:
    with scripted(steady(0, 0)) as server, pytest.raises(TargetError) as caught:
        connect(Connection(url=server.url, metrics_urls=(server.url,)))
    assert "no vLLM metrics at" in caught.value.what


def test_a_server_without_continuous_usage() -> None:
    """One that refuses the field it does not know is asked without it."""

    class Strict(Scripted):
        async def answer(self, path: str, headers: dict[str, str], body: Any, writer: Any) -> bool:
            if body and "continuous_usage_stats" in json.dumps(body):
                writer.write(plain(400, b'{"error":{"message":"unknown field"}}'))
                return True
            return await super().answer(path, headers, body, writer)

    with scripted(steady(0, 0), kind=Strict) as server:
        target = connect(Connection(url=server.url))
    assert target.connection.ask.continuous_usage is False


def test_the_key_is_sent_and_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "key"
    file.write_text("sk-very-secret\n")
    connection = Connection(url="http://x", key=read_key(file), headers={"x-a": "b"})
    assert "very-secret" not in repr(connection) + str(connection.key)
    assert connection.all_headers()["authorization"] == "Bearer sk-very-secret"
    with pytest.raises(TypeError):
        json.dumps(connection.key)
    monkeypatch.setenv("VLLM_API_KEY", "from-environment")
    found = read_key(None)
    assert isinstance(found, Secret)
    assert found.reveal() == "from-environment"
    monkeypatch.delenv("VLLM_API_KEY")
    assert read_key(None) is None


@pytest.mark.parametrize("text", ["", "two words", "line\nbreak", "schlüssel"])
def test_what_is_no_key(tmp_path: Path, text: str) -> None:
    file = tmp_path / "key"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_key(file)
    assert not text or text not in str(caught.value)
    with pytest.raises(InputError, match="cannot read the key file"):
        read_key(tmp_path / "none")


def test_base_paths() -> None:
    assert str(Connection(url="http://x:1/v1/").origin) == "http://x:1"
    assert str(Connection(url="http://x:1/team/v1").origin) == "http://x:1/team"
    assert parse_origin("http://x:1/team").base == "/team"
