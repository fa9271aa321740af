"""The metrics page: exactly valid text, and the names, types, labels and buckets of the version it claims."""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.utils import floatToGoString
from tests.mock.asking import QUICK, Ask, ask

from knee.catalog.metrics import bucket_bounds, exposed_metrics, metric
from knee.core.snapshot import EngineSnapshot, Histogram
from knee.metrics.normalise import parse_page
from knee.mock.config import MockConfig
from knee.mock.exposition import Exposition, number_text
from knee.mock.running import mock_server

CAPTURES = Path(__file__).parents[2].parent / "shared" / "captures"
LIKE_THE_RECORDED = msgspec.structs.replace(
    QUICK, block_size=128, num_gpu_blocks=4096, enable_prefix_caching=True
)
PAGES = {"0.32.0": "metrics-after-few.txt", "0.27.1": "metrics-0.27.1.txt"}
VERSIONS = (
    "0.8.0",
    "0.8.4",
    "0.9.0",
    "0.9.2",
    "0.10.2",
    "0.11.0",
    "0.12.0",
    "0.16.0",
    "0.20.0",
    "0.27.1",
    "0.33.0",
)


def page_of(version: str) -> str:
    engine = msgspec.structs.replace(LIKE_THE_RECORDED, version=version)
    with mock_server(MockConfig(engine=engine, model="./tiny")) as server:
        ask(server.url, "/v1/completions", {"prompt": "one two three", "max_tokens": 8})
        return ask(server.url, "/metrics").body.decode()


@pytest.fixture(scope="module", params=PAGES)
def version_and_page(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param, page_of(request.param)


def skeleton(page: str) -> list[str]:
    """The page in order without its values: help, types, names, labels and buckets.

    What depends on which requests came (labels of HTTP series) and on how the server was started (values of
    the cache configuration) is left out, and so are the HTTP headers of a captured page.
    """
    lines = []
    for line in page[page.index("# HELP") :].splitlines():
        text = line if line.startswith("#") else line.rsplit(" ", 1)[0]
        if text.startswith("http_"):
            continue
        if text.startswith("vllm:cache_config_info{"):
            text = ",".join(re.findall(r"(\w+)=", text))
        lines.append(re.sub(r'patchlevel="\d+",version="[\d.]+"', "", text))
    return lines


def test_the_page_is_the_recorded_one_line_by_line(version_and_page: tuple[str, str]) -> None:
    version, page = version_and_page
    assert skeleton(page) == skeleton((CAPTURES / PAGES[version]).read_text())


def test_names_types_and_labels_are_those_of_the_recorded_table(version_and_page: tuple[str, str]) -> None:
    version, page = version_and_page
    table = (CAPTURES / f"metric-table-{version}.txt").read_text().splitlines()
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE))
    own = {name: kind for name, kind in types.items() if not name.endswith("_created")}
    if version == "0.27.1":  # its table is of vLLM's own series
        own = {name: kind for name, kind in own.items() if name.startswith("vllm:")}
    assert own == {row.split()[0]: row.split()[1] for row in table}
    for row in table:
        name, kind, labels = (*row.split(" ", 2),)
        sample = next(line for line in page.splitlines() if re.match(rf"{name}(_bucket|_sum)?[ {{]", line))
        keys = re.findall(r'(\w+)="', sample)
        if "config labels" in labels:
            assert f"<{len(keys) - 1} config labels>" == labels or f"<{len(keys)} config labels>" == labels
        elif kind == "summary":
            assert keys == labels.split(",")
        else:
            assert ",".join(sorted(keys)) == labels


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_shows_its_own_names(version: str) -> None:
    page = Exposition(msgspec.structs.replace(QUICK, version=version), "m", version, 1.0).render(
        EngineSnapshot()
    )
    families = {f.name for f in text_string_to_metric_families(page.decode())}
    want = {m.name.removesuffix("_total") if m.type == "counter" else m.name
            for m in exposed_metrics(version) if m.name.startswith("vllm:")}  # fmt: skip
    assert {name for name in families if not name.endswith("_created")} == want
    assert parse_page(page.decode(), 0).engines.keys() == {"0"}


def test_the_page_reads_as_what_the_engine_counted(quick: Ask) -> None:
    quick("/v1/completions", {"prompt": "one two three", "max_tokens": 8, "n": 2})
    before = parse_page(quick("/metrics").body.decode(), 0).engines["0"]
    quick("/v1/completions", {"prompt": "one two three four", "max_tokens": 9, "n": 2})
    after = parse_page(quick("/metrics").body.decode(), 0).engines["0"]

    def grown(name: str) -> float:
        return after.counters[name] - before.counters[name]

    assert (grown("generation_tokens"), grown("prompt_tokens")) == (18, 8)
    assert (grown("request_success{length}"), grown("request_success{stop}")) == (2, 0)
    gaps = (
        after.histograms["inter_token_latency_seconds"].count
        - before.histograms["inter_token_latency_seconds"].count
    )
    assert gaps == 16
    first = after.histograms["time_to_first_token_seconds"]
    assert first.count - before.histograms["time_to_first_token_seconds"].count == 2
    assert after.gauges["num_requests_running"] == 0
    quick("/v1/completions", {"prompt": "one two three four", "max_tokens": 90, "stop": " the"})
    stopped = parse_page(quick("/metrics").body.decode(), 0).engines["0"]
    assert stopped.counters["request_success{stop}"] == after.counters["request_success{stop}"] + 1
    assert stopped.counters["request_success{abort}"] == 0


TTFT = metric("time_to_first_token_seconds")
assert TTFT is not None
BOUNDS = bucket_bounds(TTFT)


def _histogram(steps: list[int]) -> dict[str, Histogram]:
    counts = tuple(float(sum(steps[: n + 1])) for n in range(len(BOUNDS)))
    total = sum(steps)
    return {
        "time_to_first_token_seconds": Histogram(
            bounds=BOUNDS, counts=counts, count=float(total), sum=total * 0.37
        )
    }


SNAPSHOTS = st.builds(
    EngineSnapshot,
    gauges=st.fixed_dictionaries({"num_requests_running": st.floats(0, 1e9)}),
    counters=st.fixed_dictionaries({"prompt_tokens": st.floats(0, 1e15) | st.integers(0, 10**12).map(float)}),
    histograms=st.lists(st.integers(0, 10**6), min_size=len(BOUNDS) + 1, max_size=len(BOUNDS) + 1).map(
        _histogram
    ),
)


class _Collected:
    """Metrics for the client library to render."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


@given(SNAPSHOTS)
def test_values_are_written_as_the_client_library_writes_them(snapshot: EngineSnapshot) -> None:
    model = 'a "model" \\ with\nodd characters'
    page = Exposition(QUICK, model, "0.32.0", 1.0).render(snapshot).decode()
    labels = (["model_name", "engine"], [model, "0"])
    docs = {m.canonical: m.doc for m in exposed_metrics("0.32.0")}
    gauge = GaugeMetricFamily("vllm:num_requests_running", docs["num_requests_running"], labels=labels[0])
    gauge.add_metric(labels[1], snapshot.gauges["num_requests_running"])
    counter = CounterMetricFamily("vllm:prompt_tokens", docs["prompt_tokens"], labels=labels[0])
    counter.add_metric(labels[1], snapshot.counters["prompt_tokens"])
    name = "time_to_first_token_seconds"
    shown = snapshot.histograms[name]
    histogram = HistogramMetricFamily(f"vllm:{name}", docs[name], labels=labels[0])
    edges = [*(floatToGoString(b) for b in shown.bounds), "+Inf"]  # type: ignore[no-untyped-call]
    histogram.add_metric(labels[1], list(zip(edges, [*shown.counts, shown.count], strict=True)), shown.sum)
    registry = CollectorRegistry()
    registry.register(_Collected([gauge, counter, histogram]))
    want = generate_latest(registry).decode()
    blocks = re.split(r"(?=# HELP )", want)[1:]
    assert len(blocks) == 3
    for block in blocks:
        assert block in page


@given(
    st.floats()
    | st.integers(-(10**18), 10**18).map(float)
    | st.sampled_from([1e6, 999999.0, 1e21, 0.1, 1e-9])
)
def test_numbers_are_the_client_librarys(value: float) -> None:
    assert number_text(value) == floatToGoString(value)  # type: ignore[no-untyped-call]


def test_a_whole_page_survives_the_client_librarys_parser(quick: Ask) -> None:
    page = quick("/metrics").body.decode()
    samples = [s for family in text_string_to_metric_families(page) for s in family.samples]
    lines = [line for line in page.splitlines() if line and not line.startswith("#")]
    assert len(samples) == len(lines)
    assert quick("/metrics").headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"


def test_http_series_count_requests_by_route_and_class(quick: Ask) -> None:
    quick("/v1/models")
    quick("/nowhere")
    page = quick("/metrics").body.decode()
    assert re.search(r'http_requests_total\{handler="/v1/models",method="GET",status="2xx"\} [1-9]', page)
    assert re.search(r'http_requests_total\{handler="none",method="GET",status="4xx"\} [1-9]', page)
    assert 'handler="/metrics"' not in page
