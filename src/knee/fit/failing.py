"""What the lines of a failed start add: causes, and where in the start they came."""

import re
from collections.abc import Callable

from knee.fit import failure
from knee.fit.lines import Line
from knee.fit.reading import Server
from knee.fit.startup import Failure, Memory

Match = re.Match[str]
Handler = Callable[[Server, Line, Match], None]

_MAX_EXCEPTIONS = 100


def _failure(make: Callable[[str, failure.Groups, Memory], Failure]) -> Handler:
    def handle(server: Server, line: Line, found: Match) -> None:
        cause = found.string if len(found.string) > len(line.text) else line.text
        server.fail(make(cause, found.groupdict(), server.known()))

    return handle


def _bad_argument(server: Server, line: Line, found: Match) -> None:
    server.fail(failure.bad_argument(line.text, found.groupdict(), server.version))
    server.over = True


def _killed(server: Server, line: Line, found: Match) -> None:
    if found.groupdict().get("code", "-9") == "-9":
        server.fail(failure.killed(line.text))


def _oom(server: Server, line: Line, found: Match) -> None:
    del found
    if server.capturing or any(engine.lines for engine in server.engines.values()):
        stage = "graph capture"
    else:
        stage = "profiling" if "weights" in server.memory or "weights" in server.phases else "loading"
    server.fail(failure.out_of_memory(line.text, stage, server.known()))


def _failed_to_start(server: Server, line: Line, found: Match) -> None:
    del line, found
    if not server.failed_to_start and not server.ready:
        server.failed_to_start = True
        server.exceptions.clear()  # what was caught before is not the cause


def _engine_failed(server: Server, line: Line, found: Match) -> None:
    del line, found
    if not server.ready:
        server.failed_to_start = True
        server.over = True


def _exception(server: Server, line: Line, found: Match) -> None:
    del line
    if (
        not server.ready
        and len(server.exceptions) < _MAX_EXCEPTIONS
        and "See root cause above" not in found.string
    ):
        server.exceptions.append(found.group())


def _died_later(server: Server, line: Line, found: Match) -> None:
    del line
    if server.ready and "fatal error" in found.group():  # EngineDeadError also ends an ordered shutdown
        server.notes.setdefault("the engine failed after the server was ready: see the log")


FAILURES: dict[str, Handler] = {
    "err_max_len": _failure(failure.context_too_long),
    "err_max_len_v0": _failure(failure.context_too_long_v0),
    "err_no_cache_memory": _failure(failure.no_cache_memory),
    "auto_fit_failed": _failure(failure.no_cache_memory),
    "err_free_memory": _failure(failure.other_processes),
    "sampler_oom": _failure(failure.sampler_out_of_memory),
    "pooler_oom": _failure(failure.sampler_out_of_memory),
    "mamba_blocks": _failure(failure.mamba_blocks),
    "bad_argument": _bad_argument,
    "probe_kill": _killed,
    "worker_died": _killed,
    "oom": _oom,
    "engine_start_failed": _failed_to_start,
    "engine_failed": _engine_failed,
    "engine_dead": _died_later,
    "exception": _exception,
}
"""What to do with each kind of line that a failed start writes."""
