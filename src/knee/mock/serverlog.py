"""The simulated server's log: vLLM's prefixes by version, its periodic line, and what it says as it stops."""

import os
from datetime import UTC, datetime
from typing import TextIO

from knee.catalog.version import parse_version
from knee.core.clock import Clock
from knee.core.snapshot import EngineSnapshot
from knee.core.units import NS_PER_S

INTERVAL_S = 10.0
"""VLLM_LOG_STATS_INTERVAL's default (vllm/envs.py)."""


class ServerLog:
    """Writes lines to `out`, or nowhere where that is None."""

    def __init__(self, out: TextIO | None, version: str, clock: Clock) -> None:
        at = parse_version(version)
        self._out = out
        self._clock = clock
        self._bracketed = at.reaches("0.8.4")
        self._named = at.reaches("0.10.1")
        self._core = "EngineCore" if at.reaches("0.20.0") else "EngineCore_DP0"
        self._last: dict[str, float] = {}
        self._last_ns = clock.monotonic_ns()

    def say(self, process: str, source: str, text: str, level: str = "INFO") -> None:
        """One line of `process` (APIServer or EngineCore); without a `source` it goes out as it is."""
        if self._out is None:
            return
        if source:
            stamp = datetime.fromtimestamp(self._clock.wall_ns() / NS_PER_S, tz=UTC).strftime(
                "%m-%d %H:%M:%S"
            )
            where = f"[{source}]" if self._bracketed else f"{source}]"
            name = self._core if process == "EngineCore" else process
            prefix = f"({name} pid={os.getpid()}) " if self._named else ""
            text = f"{prefix}{level} {stamp} {where} {text}"
        self._out.write(text + "\n")
        self._out.flush()

    def access(self, peer: str, method: str, target: str, status: str) -> None:
        """The line of uvicorn for an answered request."""
        self.say("APIServer", "", f'INFO:     {peer} - "{method} {target} HTTP/1.1" {status}')

    def periodic(self, snapshot: EngineSnapshot) -> None:
        """The line that vLLM writes every `INTERVAL_S` seconds in which something happened."""
        now_ns = self._clock.monotonic_ns()
        names = ("prompt_tokens", "generation_tokens", "num_preemptions", "prefix_cache_queries",
                 "prefix_cache_hits")  # fmt: skip
        counts = {name: snapshot.counters.get(name, 0.0) for name in names}
        delta = {name: counts[name] - self._last.get(name, 0.0) for name in names}
        seconds = max(1, now_ns - self._last_ns) / NS_PER_S
        self._last, self._last_ns = counts, now_ns
        gauges = snapshot.gauges
        running, waiting = gauges["num_requests_running"], gauges["num_requests_waiting"]
        if not running and not waiting and not delta["generation_tokens"]:
            return
        queried, preempted = counts["prefix_cache_queries"], delta["num_preemptions"]
        hits = counts["prefix_cache_hits"] / queried if queried else 0.0
        self.say(
            "APIServer",
            "loggers.py:335",
            f"Engine 000: Avg prompt throughput: {delta['prompt_tokens'] / seconds:.1f} tokens/s, "
            f"Avg generation throughput: {delta['generation_tokens'] / seconds:.1f} tokens/s, "
            f"Running: {running:.0f} reqs, Waiting: {waiting:.0f} reqs, "
            + (f"Preemptions: {preempted:.0f}, " if preempted else "")
            + f"GPU KV cache usage: {100 * gauges['kv_cache_usage_perc']:.1f}%, "
            f"Prefix cache hit rate: {100 * hits:.1f}%",
        )

    def stopping(self, timeout_s: int, in_flight: int) -> None:
        """SIGTERM has come."""
        mode = "drain" if timeout_s else "abort"
        self.say("APIServer", "launcher.py:254", "[shutdown] API server: shutdown triggered")
        text = f"[shutdown] API server: stopping engine client mode={mode} timeout={timeout_s}s"
        self.say("APIServer", "launcher.py:270", text)
        self.say(
            "EngineCore", "core.py:1635", f"[shutdown] EngineCore: start mode={mode} timeout={timeout_s}s"
        )
        if timeout_s and in_flight:
            text = (
                f"[shutdown] EngineCore: draining in-flight requests count={in_flight} timeout={timeout_s}s"
            )
            self.say("EngineCore", "core.py:1655", text)

    def stopped(self) -> None:
        """The engine is gone, and the HTTP server goes."""
        text = "[shutdown] EngineCore: request processing complete; starting resource teardown"
        self.say("EngineCore", "core.py:1666", text)
        self.say("APIServer", "launcher.py:279", "[shutdown] API server: engine client stopped")
        for text in ("Shutting down", "Waiting for application shutdown.", "Application shutdown complete."):
            self.say("", "", f"INFO:     {text}")
