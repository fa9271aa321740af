"""The commands as people run them: output, exit codes, one clear line for bad input."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from knee.cli.main import run

SHARED = Path(__file__).parents[2].parent / "shared"
MODELS = Path(__file__).parents[1] / "data/models"
LOG = SHARED / "captures/startup-default-0.32.0.log"
LLAMA = str(MODELS / "llama-3.1-8b.json")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (
            [str(LOG), "--p95-tokens", "1500"],
            0,
            "fits: 349 requests, of which 128 may run at once",
        ),
        ([str(LOG), "--p95-tokens", "6000"], 1, "flag            --max-num-seqs 78"),
        ([str(LOG), "--p95-tokens", "1500", "--max-num-seqs", "400"], 1, "the scheduler will preempt"),
        ([str(SHARED / "captures/startup-fail-ctx-llama8b-kv-shape.log")], 1, "--max-model-len 8064"),
        ([str(SHARED / "examples/16-v1-027-cudagraph-profiling.log")], 5, "nothing to judge"),
        ([str(LOG), "--prompt", "900", "--output", "100"], 0, "524 requests: p99 of the sum"),
        (["--model", LLAMA, "--gpu", "H100", "--context", "32768"], 0, "| weights "),
        (["--model", LLAMA, "--gpu", "L4", "--context", "32768"], 5, "**borderline"),
        (["--model", LLAMA, "--gpu", "T4"], 1, "**does not fit"),
        (["--model", LLAMA, "--gpu", "H100", "--tp", "2", "--kv-cache-dtype", "fp8"], 0, "2 x H100 (TP 2"),
    ],
)
def test_answers(arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fit", *arguments]) == code
    out, err = capsys.readouterr()
    assert says in out
    assert err == ""


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 2, "nothing to judge"),
        (["/nonexistent.log"], 3, "cannot be read: No such file"),
        (["/"], 3, "cannot be read: Is a directory"),
        (["/dev/null"], 3, "is empty"),
        ([LLAMA], 3, "does not look like a log of vLLM"),
        ([str(LOG), "--p95-tokens", "-1"], 2, "tokens per request are positive"),
        ([str(LOG), "--margin", "2"], 2, "a margin lies between 0 and 1"),
        ([str(LOG), "--gpu", "H100"], 2, "--gpu and --context judge a model"),
        ([str(LOG), "--model", LLAMA, "--gpu", "H100"], 2, "a model is judged on a GPU"),
        ([str(LOG), "--prompt", "5"], 2, "--prompt and --output go together"),
        ([str(LOG), "--workload", "/nope"], 3, "cannot read /nope"),
        (["--model", LLAMA], 2, "a model is judged on a GPU"),
        (["--model", LLAMA, "--gpu", "H9000"], 2, "no accelerator called 'H9000'"),
        (["--model", LLAMA, "--gpu", "H100", "--version", "new"], 2, "not a version of vLLM: 'new'"),
        (["--model", LLAMA, "--gpu", "H100", "--quantization", "int3"], 2, "not a quantization: 'int3'"),
        (["--model", str(LOG), "--gpu", "H100"], 3, "is not JSON"),
        (["http://127.0.0.1:9"], 4, "127.0.0.1:9"),
        (["http://127.0.0.1:99999"], 2, "99999"),
    ],
)
def test_bad_input_gives_one_line_and_a_hint(
    arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fit", *arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert len(err.strip().splitlines()) <= 2
    assert "Traceback" not in err


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fit", str(LOG), "--p95-tokens", "6000", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["capacity"]["requests"] == 87
    assert answer["report"]["engines"][0]["kv_tokens"] == 524_288
    assert run(["fit", "--model", LLAMA, "--gpu", "H100", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["memory"]["kv"]["bytes_per_token"] == 131_072


PAGES = {
    "/metrics": ("text/plain", (SHARED / "captures/metrics-before.txt").read_bytes()),
    "/v1/models": ("application/json", b'{"object":"list","data":[{"id":"./tiny","max_model_len":2048}]}'),
    "/version": ("application/json", b'{"version":"0.32.0"}'),
}


class Pages(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        kind, content = PAGES.get(self.path, ("text/plain", b"not found"))
        self.send_response(200 if self.path in PAGES else 404)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_running_server_is_asked(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fit", f"{address}/", "--p95-tokens", "1500", "--max-num-seqs", "64"]) == 0
    out = capsys.readouterr().out
    assert "vLLM 0.32.0, ./tiny" in out
    assert "524,288 tokens (4,096 blocks of 128); 256 requests of max_model_len 2,048" in out
    assert run(["fit", f"{address}/router"]) == 4
    assert "answered 404" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["flag", "max-num-seqs", "--version", "0.32.0"], "default 1024 on large"),
        (["flag", "--swap-space", "--version", "0.18.0"], "removed"),
        (["metric", "gpu_cache_usage_perc"], "an older name of it"),
        (["metric", "vllm:num_requests_running", "--version", "0.8.0"], "with labels model_name"),
        (["log", "kv_tokens", "--version", "0.32.0"], "writes it"),
        (["diff", "0.19.1", "0.20.0"], "--gpu-memory-utilization: 0.9 -> 0.92"),
        (["diff", "0.32.0", "0.32.0"], "nothing that the catalog knows"),
    ],
)
def test_the_catalog_answers(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["catalog", *arguments]) == 0
    assert says in capsys.readouterr().out
    assert run(["catalog", *arguments, "--json"]) == 0
    json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["flag", "max-num-sex"], "near: --max-num-seqs"),
        (["metric", "kv_cache_usage"], "near: kv_cache_usage_perc"),
        (["log", "nothing-like-it"], "the catalog has no log line"),
        (["flag", "max-num-seqs", "--version", "latest"], "not a version of vLLM: 'latest'"),
        (["diff", "0.32.0", "0.20.0"], "write the older one first"),
        ([], "Missing command"),
    ],
)
def test_the_catalog_refuses_with_a_hint(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["catalog", *arguments]) == 2
    assert says in capsys.readouterr().err
