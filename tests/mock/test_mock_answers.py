"""Answers, streams, errors and headers, field by field against what a vLLM 0.32.0 was recorded to answer."""

import http.client
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.mock.asking import QUICK, Answer, Ask, ask

from knee.mock.config import MockConfig
from knee.mock.running import Running, mock_server
from knee.mock.tokens import pieces

CAPTURES = Path(__file__).parents[2].parent / "shared" / "captures"
GENERATED = {"id", "created", "text", "content", "system_fingerprint", "usage", "root"}


def recorded(name: str) -> Answer:
    """A captured answer: status, headers and body."""
    head, _, body = (CAPTURES / name).read_bytes().replace(b"\r\n", b"\n").partition(b"\n\n")
    first, *lines = head.decode().split("\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return Answer(int(first.split()[1]), headers, body)


def shape(value: Any) -> Any:
    """Keys in order and values, with what differs from run to run replaced by its type."""
    if isinstance(value, dict):
        return [
            (key, type(part).__name__ if key in GENERATED else shape(part)) for key, part in value.items()
        ]
    if isinstance(value, list):
        return [shape(part) for part in value]
    return value


PROMPT = {"model": "./tiny", "prompt": "one two three", "max_tokens": 4, "ignore_eos": True}
CHAT = {"model": "./tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize(
    ("name", "path", "body"),
    [
        ("nonstream-completions.txt", "/v1/completions", PROMPT),
        ("nonstream-chat.txt", "/v1/chat/completions", CHAT),
    ],
)
def test_a_whole_answer_has_the_recorded_fields_in_the_recorded_order(
    quick: Ask, name: str, path: str, body: dict[str, Any]
) -> None:
    want, got = recorded(name), quick(path, body)
    assert shape(got.document) == shape(want.document)
    assert list(got.headers) == list(want.headers)
    usage = got.document["usage"]
    assert list(usage) == list(want.document["usage"])
    assert usage["completion_tokens"] == 4
    assert usage["total_tokens"] == usage["prompt_tokens"] + 4
    text = got.document["choices"][0].get("text") or got.document["choices"][0]["message"]["content"]
    assert len(pieces(text)) == 4


@pytest.mark.parametrize(
    ("name", "path", "body"),
    [
        ("sse-completions", "/v1/completions", {**PROMPT, **STREAM}),
        ("sse-chat", "/v1/chat/completions", {**CHAT, **STREAM}),
    ],
)
def test_a_stream_has_the_recorded_events(quick: Ask, name: str, path: str, body: dict[str, Any]) -> None:
    got = quick(path, {**body, "max_tokens": 60})
    want_head = recorded(f"{name}.headers").headers
    assert {k: got.headers[k] for k in want_head if k != "date"} == {
        k: v for k, v in want_head.items() if k != "date"
    }
    want = Answer(200, {}, (CAPTURES / f"{name}.txt").read_bytes()).events
    events = got.events
    assert got.body.endswith(b"data: [DONE]\n\n")
    opening = 2 if name == "sse-chat" else 1
    assert [shape(e) for e in events[:opening]] == [shape(e) for e in want[:opening]]
    assert [shape(e) for e in events[-2:]] == [shape(e) for e in want[-2:]]
    assert list(events[-1]["usage"]) == list(want[-1]["usage"])
    assert events[-1]["usage"]["completion_tokens"] == 60
    assert len({event["id"] for event in events}) == 1
    assert len({event["created"] for event in events}) == 1


def test_continuous_usage_counts_every_chunk(quick: Ask) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    got = quick("/v1/completions", {**PROMPT, **options, "max_tokens": 60})
    want = Answer(200, {}, (CAPTURES / "sse-completions-continuous-usage.txt").read_bytes()).events
    assert shape(got.events[0]) == shape(want[0])
    assert shape(got.events[-1]) == shape(want[-1])
    counts = [event["usage"]["completion_tokens"] for event in got.events]
    assert counts == sorted(counts)
    assert counts[-2:] == [60, 60]
    text = ""
    for event in got.events[:-1]:
        text += event["choices"][0]["text"]
        assert len(pieces(text)) == event["usage"]["completion_tokens"]


def test_without_include_usage_the_last_chunk_carries_the_fingerprint(quick: Ask) -> None:
    events = quick("/v1/completions", {**PROMPT, "stream": True}).events
    assert [("system_fingerprint" in event) for event in events] == [False] * (len(events) - 1) + [True]
    assert all("usage" not in event for event in events)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_stream_says_what_the_whole_answer_says(quick: Ask, path: str) -> None:
    body = {**(PROMPT if path == "/v1/completions" else CHAT), "max_tokens": 30, "n": 3, "seed": 7}
    whole = quick(path, body).document
    said = {0: "", 1: "", 2: ""}
    for event in quick(path, {**body, "stream": True}).events:
        for choice in event["choices"]:
            said[choice["index"]] += choice.get("text") or choice.get("delta", {}).get("content") or ""
    want = {c["index"]: c["text"] if "text" in c else c["message"]["content"] for c in whole["choices"]}
    assert said == want
    assert len(set(said.values())) == 3
    assert whole["usage"]["completion_tokens"] == 90


def test_seed_and_prompt_fix_the_text(quick: Ask) -> None:
    def text(**extra: object) -> str:
        said: str = quick("/v1/completions", {**PROMPT, "max_tokens": 20, **extra}).document["choices"][0][
            "text"
        ]
        return said

    assert text(seed=1) == text(seed=1)
    assert text(seed=1) != text(seed=2)
    assert text(seed=1) != text(seed=1, prompt="another")


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_cut_the_text(quick: Ask, stream: bool) -> None:
    body = {**PROMPT, "max_tokens": 200, "seed": 3}
    full = quick("/v1/completions", body).document["choices"][0]["text"]
    words = full.split()
    stop = f"{words[9]} {words[10]}"
    got = quick("/v1/completions", {**body, "stop": [stop, "never said"], "stream": stream})
    if stream:
        text = "".join(c["text"] for e in got.events for c in e["choices"])
        last = got.events[-1]["choices"][0]
    else:
        last = got.document["choices"][0]
        text = last["text"]
    assert text == full[: full.index(stop)]
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", stop)


def test_the_model_ends_by_itself_unless_told_to_ignore_it(quick: Ask) -> None:
    body = {"prompt": "go", "max_tokens": 600}
    ended = quick("/v1/completions", body).document
    assert ended["choices"][0]["finish_reason"] == "stop"
    assert ended["usage"]["completion_tokens"] == 512
    went_on = quick("/v1/completions", {**body, "ignore_eos": True}).document
    assert went_on["choices"][0]["finish_reason"] == "length"
    assert went_on["usage"]["completion_tokens"] == 600


def test_several_prompts_echo_and_token_ids(quick: Ask) -> None:
    got = quick("/v1/completions", {**PROMPT, "prompt": ["a b", "c d e"], "n": 2, "echo": True}).document
    assert [choice["index"] for choice in got["choices"]] == [0, 1, 2, 3]
    assert [
        choice["text"].startswith(p)
        for choice, p in zip(got["choices"], ["a b"] * 2 + ["c d e"] * 2, strict=True)
    ]
    assert got["usage"]["prompt_tokens"] == 5
    ids = quick("/tokenize", {"prompt": "c d e"}).document["tokens"]
    by_id = quick("/v1/completions", {**PROMPT, "prompt": ids}).document
    by_text = quick("/v1/completions", {**PROMPT, "prompt": "c d e"}).document
    assert by_id["choices"] == by_text["choices"]
    assert by_id["usage"] == by_text["usage"]


def test_request_ids() -> None:
    config = MockConfig(engine=QUICK, enable_request_id_headers=True, enable_per_request_metrics=True)
    with mock_server(config) as server:
        got = ask(server.url, "/v1/completions", {**PROMPT, "model": "mock"}, {"X-Request-Id": "my-req-1"})
        assert got.document["id"] == "cmpl-my-req-1"
        assert got.headers["x-request-id"] == "my-req-1"
        want = recorded("nonstream-completions-perreqmetrics.txt")
        assert list(got.headers) == list(want.headers)
        assert list(got.document["metrics"]) == list(want.document["metrics"])
        timings = got.document["metrics"]
        assert timings["mean_itl_ms"] == pytest.approx(1.01, rel=0.01)
        assert timings["generation_time_ms"] == pytest.approx(3 * timings["mean_itl_ms"])
        assert re.fullmatch("[0-9a-f]{32}", ask(server.url, "/version").headers["x-request-id"])


@pytest.mark.parametrize(
    ("name", "path", "body"),
    [
        ("error-bad-json.txt", "/v1/completions", b'{"model":nope}'),
        ("error-max-tokens-too-big.txt", "/v1/completions", {**PROMPT, "max_tokens": 4000}),
        ("error-model-404.txt", "/v1/completions", {**PROMPT, "model": "nope"}),
        ("error-prompt-too-long.txt", "/v1/completions", {**PROMPT, "prompt": "a " * 2190 + "a"}),
        ("get-health.txt", "/health", None),
        ("get-ping.txt", "/ping", None),
        ("get-load.txt", "/load", None),
        ("get-version.txt", "/version", None),
    ],
)
def test_errors_and_small_pages_are_those_recorded(quick: Ask, name: str, path: str, body: object) -> None:
    want, got = recorded(name), quick(path, body)
    assert got.status == want.status
    assert list(got.headers) == list(want.headers)
    assert got.headers["server"] == "uvicorn"
    if not want.body:
        assert not got.body
    elif name == "error-prompt-too-long.txt":
        assert got.body.replace(b"4381", b"2191") == want.body.strip()
    else:
        assert got.document == want.document


def test_models(quick: Ask) -> None:
    want, got = recorded("get-v1_models.txt").document, quick("/v1/models").document
    assert shape(got)[0] == shape(want)[0]
    own, theirs = got["data"][0], want["data"][0]
    assert list(own) == list(theirs)
    assert own["permission"][0].keys() == theirs["permission"][0].keys()
    assert (own["id"], own["max_model_len"], own["owned_by"]) == ("./tiny", 2048, "vllm")


COMPLETIONS: list[tuple[Any, str, str | None]] = [
    ({**PROMPT, "prompt": "a " * 2000, "max_tokens": 50}, "for a total of at least 2051", "input_tokens"),
    ({**PROMPT, "max_tokens": "many"}, "unable to parse string as an integer", "max_tokens"),
    ({**PROMPT, "max_tokens": 1.5}, "got a number with a fractional part", "max_tokens"),
    ({**PROMPT, "max_tokens": 0}, "max_tokens must be at least 1, got 0.", "max_tokens"),
    ({**PROMPT, "n": 0}, "n must be at least 1, got 0.", None),
    ({**PROMPT, "stream": "perhaps"}, "Input should be a valid boolean", "stream"),
    ({**PROMPT, "model": 7}, "Input should be a valid string", "model"),
    ({**PROMPT, "stop": [1]}, "Input should be a valid string", "stop"),
    ({**PROMPT, "stop": ""}, "stop cannot contain an empty string.", None),
    ({**PROMPT, "prompt": ""}, "Either prompt or prompt_embeds must be provided", "prompt"),
    ({**PROMPT, "prompt": [[1, "a"]]}, "Input should be a valid string", "prompt"),
    ({**PROMPT, "stream_options": {"include_usage": True}}, "Stream options can only", "stream_options"),
    ({**PROMPT, "priority": 3}, "Priority scheduling is not enabled", None),
    ([1, 2], "Input should be a valid dictionary", None),
    (b"", "JSON decode error", "body.0"),
    (b'\xff\xfe{"a"', "JSON decode error", "body.0"),
    (b'{"a": "\xff"}', "There was an error parsing the body", None),
]
IMAGE = {"role": "user", "content": [{"type": "image_url"}]}
OTHERS: list[tuple[str, Any, str, str | None]] = [
    ("/v1/chat/completions", {}, "'loc': 'body.messages', 'msg': 'Field required'", "messages"),
    ("/v1/chat/completions", {"messages": "hi"}, "Input should be a valid list", "messages"),
    ("/v1/chat/completions", {"messages": [{"content": "x"}]}, "Field required", "messages"),
    ("/v1/chat/completions", {"messages": [IMAGE]}, "image", None),
    ("/tokenize", {}, "prompt", "prompt"),
    ("/detokenize", {"tokens": ["a"]}, "tokens", "tokens"),
]


@pytest.mark.parametrize("case", [("/v1/completions", *case) for case in COMPLETIONS] + OTHERS)
def test_bad_requests_are_named(quick: Ask, case: tuple[str, Any, str, str | None]) -> None:
    path, body, message, param = case
    got = quick(path, body)
    assert got.status == 400
    error = got.document["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert message in error["message"]
    assert (error["param"], error["code"]) == (param, 400)


def test_unknown_routes_and_methods(quick: Ask, quick_server: Running) -> None:
    assert quick("/v2/none").document == {"detail": "Not Found"}
    got = quick("/v1/completions")
    assert (got.status, got.document) == (405, {"detail": "Method Not Allowed"})
    connection = http.client.HTTPConnection(quick_server.url.removeprefix("http://"))
    connection.request("POST", "/v1/completions", b"x" * 100)
    assert connection.getresponse().status == 400
    connection.close()


def test_tokenize_and_back(quick: Ask) -> None:
    got = quick("/tokenize", {"prompt": "Hello, extraordinary wörld!", "return_token_strs": True}).document
    assert got["count"] == len(got["tokens"]) == len(got["token_strs"])
    assert got["max_model_len"] == 2048
    assert quick("/detokenize", {"tokens": got["tokens"]}).document == {
        "prompt": "Hello, extraordinary wörld!"
    }
    chat = quick("/tokenize", {"messages": CHAT["messages"]}).document["count"]
    assert chat == quick("/v1/chat/completions", CHAT).document["usage"]["prompt_tokens"]


def test_lenient_numbers_are_taken_as_pydantic_takes_them(quick: Ask) -> None:
    got = quick("/v1/completions", {**PROMPT, "max_tokens": "3", "n": 2.0, "ignore_eos": "true"}).document
    assert got["usage"]["completion_tokens"] == 6


def test_dev_mode_routes(quick: Ask) -> None:
    info = quick("/server_info?config_format=json").document
    assert info["vllm_config"]["max_num_seqs"] == QUICK.max_num_seqs
    assert quick("/reset_prefix_cache", b"").document == {"success": True}
    with mock_server(MockConfig(engine=QUICK)) as plain:
        assert ask(plain.url, "/server_info").status == 404


def test_queue_limits_answer_503_as_recorded() -> None:
    want = re.search(rb'b\'(\{"error".*?\})\'', (CAPTURES / "queue-limit-503.txt").read_bytes())
    assert want is not None
    engine = msgspec.structs.replace(QUICK, max_num_queued_reqs=2)
    with mock_server(MockConfig(engine=engine)) as server:
        refused = ask(server.url, "/v1/completions", {**PROMPT, "model": "mock", "n": 3})
        assert refused.status == 503
        assert refused.body == want[1]
        assert "retry-after" not in refused.headers
        assert ask(server.url, "/v1/completions", {**PROMPT, "model": "mock", "n": 2}).status == 200
        page = ask(server.url, "/metrics").body.decode()
        assert 'vllm:admission_rejections_total{model_name="mock",reason="max_num_queued_reqs"} 1.0' in page
        assert 'vllm:num_requests_running{engine="0",model_name="mock"} 0.0' in page


def test_known_openings_come_from_the_prefix_cache_until_it_is_reset() -> None:
    engine = msgspec.structs.replace(QUICK, enable_prefix_caching=True)
    config = MockConfig(engine=engine, enable_per_request_metrics=True, dev_mode=True)
    with mock_server(config) as server:

        def cached(prompt: str, **extra: object) -> int:
            body = {"prompt": prompt, "max_tokens": 3, **extra}
            usage = ask(server.url, "/v1/completions", body).document["usage"]
            return int(usage["prompt_tokens_details"]["cached_tokens"])

        opening = " ".join(["word"] * 70)
        assert cached(opening + " one") == 0
        assert cached(opening + " two") == 64
        assert cached(opening + " two", cache_salt="mine") == 0
        assert cached("other " + opening) == 0
        page = ask(server.url, "/metrics").body.decode()
        assert 'vllm:prefix_cache_hits_total{engine="0",model_name="mock"} 64.0' in page
        assert 'source="device"} 64.0' in page
        assert ask(server.url, "/reset_prefix_cache", b"").document == {"success": True}
        assert cached(opening + " three") == 0
