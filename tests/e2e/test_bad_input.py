"""What goes wrong for a user gives one clear line with a hint, a documented exit code, and no traceback."""

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from knee.cli.main import run

LOAD = ("bench", "sweep")
SLO = "ttft p95 < 1s"


class Handler(BaseHTTPRequestHandler):
    """Answers everything with the server's one status and body."""

    status = 200
    body = b""
    kind = "text/html"

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.send_header("content-type", self.kind)
        self.send_header("content-length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    do_POST = do_GET  # noqa: N815 - the name http.server looks for

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


@pytest.fixture
def answering(request: pytest.FixtureRequest) -> Iterator[str]:
    status, body, kind = request.param
    handler = type("Answering", (Handler,), {"status": status, "body": body, "kind": kind})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def arguments(command: str, url: str) -> list[str]:
    return {
        "bench": ["bench", url, "--rate", "1", "--duration", "1s", "--warmup", "0s"],
        "sweep": ["sweep", url, "--slo", SLO],
        "diagnose": ["diagnose", url],
    }[command]


def expect(capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, *words: str) -> None:
    """`knee ARGUMENTS` ends with `code` and one line (and a hint) that holds all `words`."""
    got = run(arguments)
    said = capsys.readouterr()
    lines = [line for line in said.err.splitlines() if line.startswith("knee: ")]
    assert got == code, said.err
    assert len(lines) == 1, said.err
    assert "Traceback" not in said.err
    assert said.out == ""
    for word in words:
        assert word.lower() in said.err.lower(), said.err


@pytest.mark.parametrize("command", [*LOAD, "diagnose"])
def test_nothing_listens(command: str, capsys: pytest.CaptureFixture[str], closed_port: int) -> None:
    expect(capsys, arguments(command, f"http://127.0.0.1:{closed_port}"), 4, str(closed_port), "hint")


@pytest.mark.parametrize("command", [*LOAD, "diagnose"])
@pytest.mark.parametrize("url", ["http://", "ftp://127.0.0.1:1", "http://127.0.0.1:port", "not a url at all"])
def test_a_wrong_url(command: str, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    got = run(arguments(command, url))
    said = capsys.readouterr()
    assert got in {2, 3}, said.err
    assert sum(line.startswith("knee: ") for line in said.err.splitlines()) == 1, said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize("command", [*LOAD, "diagnose"])
@pytest.mark.parametrize("answering", [(200, b"<html>hello</html>", "text/html")], indirect=True)
def test_a_server_that_is_not_vllm(command: str, answering: str, capsys: pytest.CaptureFixture[str]) -> None:
    expect(capsys, arguments(command, answering), 4, "vllm", "hint")


@pytest.mark.parametrize("command", [*LOAD, "diagnose"])
@pytest.mark.parametrize("answering", [(503, b"loading", "text/plain")], indirect=True, ids=["503"])
def test_a_server_that_is_still_loading(
    command: str, answering: str, capsys: pytest.CaptureFixture[str]
) -> None:
    expect(capsys, arguments(command, answering), 4, "loading", "hint")


NO = b'{"error":{"message":"no"}}'


@pytest.mark.parametrize("command", LOAD)
@pytest.mark.parametrize(
    ("answering", "word"),
    [
        ((401, NO, "application/json"), "key"),
        ((404, NO, "application/json"), "no /v1/models"),
        ((500, NO, "application/json"), "500"),
    ],
    indirect=["answering"],
)
def test_a_server_that_refuses(
    command: str, answering: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    expect(capsys, arguments(command, answering), 4, word, "hint")


def test_a_key_is_never_shown(
    capsys: pytest.CaptureFixture[str], closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "sk-very-secret")
    run(arguments("bench", f"http://127.0.0.1:{closed_port}"))
    said = capsys.readouterr()
    assert "very-secret" not in said.err + said.out


@pytest.mark.parametrize(
    ("command", "slo"),
    [(command, slo) for command in LOAD for slo in ("ttft", "ttft < fast", "speed p95 < 1s")]
    + [("sweep", "")],
)
def test_an_slo_that_cannot_be_parsed(command: str, slo: str, capsys: pytest.CaptureFixture[str]) -> None:
    url = "http://127.0.0.1:9"
    rest = ["--rate", "1"] if command == "bench" else []
    expect(capsys, [command, url, *rest, "--slo", slo], 2, "hint")


@pytest.mark.parametrize(
    ("text", "word"),
    [("", "empty"), ("nginx: started\nGET / 200\n" * 20, "vllm"), ("\x00\x01\x02" * 400, "vllm")],
    ids=["empty", "another program's", "binary"],
)
def test_a_log_of_something_else(
    text: str, word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "server.log"
    log.write_text(text)
    expect(capsys, ["fit", str(log)], 3, word, "hint")


def test_a_log_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expect(capsys, ["fit", str(tmp_path / "none.log")], 3, "none.log")


def test_a_directory_that_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    expect(capsys, ["diagnose", str(tmp_path)], 3, "hint")
    expect(capsys, ["compare", str(tmp_path), str(tmp_path)], 3, "not a run")
    expect(capsys, ["sweep", "http://127.0.0.1:9", "--resume", str(tmp_path)], 3, "not a run")


@pytest.mark.parametrize("content", ["", "just words\n"], ids=["empty", "words"])
def test_a_file_that_is_no_metrics_page(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.prom"
    page.write_text(content)
    expect(capsys, ["diagnose", str(page), str(page)], 3, "page.prom")
