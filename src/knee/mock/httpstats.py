"""The series on a vLLM page that are not the engine's: of the Python process, and of HTTP requests.

vLLM gets the first from the Prometheus client library and the second from prometheus-fastapi-instrumentator;
names, help texts and buckets are those recorded from 0.32.0.
"""

from prometheus_client import CollectorRegistry, Counter, Histogram, Summary, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

NOT_COUNTED = frozenset({"/metrics", "/health", "/load", "/ping", "/version", "/server_info"})
_FINE = (0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30, 60)
_COARSE = (0.1, 0.5, 1)
_SIZE_DOC = (
    "Content length of {} {} by handler. Only value of header is respected. Otherwise ignored. "
    "No percentile calculated. "
)


class HttpStats:
    """Counts requests by handler (the route, or `none`), method and class of status."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self._requests = Counter(
            "http_requests_total",
            "Total number of requests by method, status and handler.",
            ("method", "status", "handler"),
            registry=registry,
        )
        self._request_bytes, self._response_bytes = (
            Summary(f"http_{name}_size_bytes", _SIZE_DOC.format(*words), ("handler",), registry=registry)
            for name, words in (
                ("request", ("incoming", "requests")),
                ("response", ("outgoing", "responses")),
            )
        )
        self._fine = Histogram(
            "http_request_duration_highr_seconds",
            "Latency with many buckets but no API specific labels. "
            "Made for more accurate percentile calculations. ",
            buckets=_FINE,
            registry=registry,
        )
        self._coarse = Histogram(
            "http_request_duration_seconds",
            "Latency with only few buckets by handler. "
            "Made to be only used if aggregation by handler is important. ",
            ("handler", "method"),
            buckets=_COARSE,
            registry=registry,
        )
        self._process = CollectorRegistry()
        GCCollector(registry=self._process)
        PlatformCollector(registry=self._process)
        ProcessCollector(registry=self._process)

    def count(
        self,
        handler: str,
        method: str,
        status: int,
        *,
        request_bytes: int,
        response_bytes: int,
        seconds: float,
    ) -> None:
        """One request was answered."""
        if handler in NOT_COUNTED:
            return
        self._requests.labels(method, f"{status // 100}xx", handler).inc()
        self._request_bytes.labels(handler).observe(request_bytes)
        self._response_bytes.labels(handler).observe(response_bytes)
        self._fine.observe(seconds)
        self._coarse.labels(handler, method).observe(seconds)

    def of_process(self) -> bytes:
        """The part of the page before the engine's."""
        return generate_latest(self._process)

    def of_http(self) -> bytes:
        """The part of the page after the engine's."""
        return generate_latest(self._registry)
