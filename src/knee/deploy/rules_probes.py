"""Rules about probes: a loading server must not be killed, and a busy one is alive."""

from collections.abc import Iterator
from typing import Any

from knee.deploy.finding import Found, Rule
from knee.deploy.manifests import dig
from knee.deploy.pods import Engine, Objects

UNMEASURED_START_S = 120
HASTY_TIMEOUT_S, HASTY_KILL_S = 5, 30
_WORK = ("/v1/", "/metrics", "/load", "/generate", "/tokenize", "/invocations")


def _probe(engine: Engine, name: str) -> dict[str, Any] | None:
    found = engine.container.get(name)
    return found if isinstance(found, dict) else None


def number(value: Any, default: int) -> int:
    """`value` where it is a whole number, else `default`."""
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def allowed_s(probe: dict[str, Any]) -> int:
    """Seconds until a probe gives up for the first time (Kubernetes' defaults: every 10 s, 3 failures)."""
    period = number(probe.get("periodSeconds"), 10)
    return number(probe.get("initialDelaySeconds"), 0) + period * number(probe.get("failureThreshold"), 3)


def startup_probe(objects: Objects) -> Iterator[Found]:
    """A liveness probe alone ends a server that is still loading."""
    for engine in objects.engines:
        probe = _probe(engine, "livenessProbe")
        if probe is not None and _probe(engine, "startupProbe") is None:
            yield (
                engine.owner,
                (*engine.path, "livenessProbe"),
                f"killed {allowed_s(probe)} s after it starts",
            )


def startup_budget(objects: Objects) -> Iterator[Found]:
    """A startup probe has to allow two to three times the measured start."""
    for engine in objects.engines:
        probe = _probe(engine, "startupProbe")
        if probe is None:
            continue
        allowed = allowed_s(probe)
        path = (*engine.path, "startupProbe")
        if objects.startup_s is not None:
            if allowed < 2 * objects.startup_s:
                yield engine.owner, path, f"allows {allowed} s; a start took {objects.startup_s:.0f} s"
        elif allowed < UNMEASURED_START_S:
            yield engine.owner, path, f"allows {allowed} s"


def liveness_path(objects: Objects) -> Iterator[Found]:
    """Liveness may ask only whether the engine lives."""
    for engine in objects.engines:
        probe = _probe(engine, "livenessProbe") or {}
        asked = str(dig(probe, "httpGet", "path") or "")
        asked = asked or " ".join(str(word) for word in dig(probe, "exec", "command") or [])
        if any(work in f"{asked}/" for work in _WORK):
            yield engine.owner, (*engine.path, "livenessProbe"), f"asks {asked[:60]}"


def liveness_hasty(objects: Objects) -> Iterator[Found]:
    """A busy server answers late, and must not die of it."""
    for engine in objects.engines:
        probe = _probe(engine, "livenessProbe")
        if probe is None:
            continue
        timeout = number(probe.get("timeoutSeconds"), 1)
        window = number(probe.get("periodSeconds"), 10) * number(probe.get("failureThreshold"), 3)
        if timeout < HASTY_TIMEOUT_S or window < HASTY_KILL_S:
            yield (
                engine.owner,
                (*engine.path, "livenessProbe"),
                f"timeoutSeconds {timeout}, killed after {window} s",
            )


def readiness_probe(objects: Objects) -> Iterator[Found]:
    """Without readiness, traffic goes to a port that is not open yet."""
    for engine in objects.engines:
        if _probe(engine, "readinessProbe") is None:
            yield engine.owner, engine.path, "no readinessProbe"


def readiness_hasty(objects: Objects) -> Iterator[Found]:
    """One slow answer must not take a replica out."""
    for engine in objects.engines:
        probe = _probe(engine, "readinessProbe")
        if probe is None:
            continue
        timeout, failures = number(probe.get("timeoutSeconds"), 1), number(probe.get("failureThreshold"), 3)
        if timeout < 2 or failures < 2:
            yield (
                engine.owner,
                (*engine.path, "readinessProbe"),
                f"timeoutSeconds {timeout}, failureThreshold {failures}",
            )


def success_threshold(objects: Objects) -> Iterator[Found]:
    """The API server takes only 1 here, which a schema does not say."""
    for engine in objects.engines:
        for name in ("livenessProbe", "startupProbe"):
            value = dig(engine.container, name, "successThreshold")
            if value not in (None, 1):
                yield (
                    engine.owner,
                    (*engine.path, name, "successThreshold"),
                    f"{name}.successThreshold {value}",
                )


RULES = (
    Rule(
        id="startup-probe",
        sentence="A liveness probe without a startup probe kills the server while it loads, over and over.",
        fix="a startupProbe on /health that allows two to three times the start: knee deploy startup LOG",
        check=startup_probe,
    ),
    Rule(
        id="startup-budget",
        sentence="The startup probe gives up before a slow start has ended.",
        fix="failureThreshold x periodSeconds of two to three times the start: knee deploy startup LOG",
        check=startup_budget,
    ),
    Rule(
        id="liveness-path",
        sentence="The liveness probe asks for more than whether the engine lives, so load kills the server.",
        fix="httpGet /health, which answers 200 as long as the engine lives",
        check=liveness_path,
    ),
    Rule(
        id="liveness-hasty",
        sentence="The liveness probe has so little patience that a busy server is killed for being slow.",
        fix=f"timeoutSeconds of at least {HASTY_TIMEOUT_S} and periodSeconds x failureThreshold of a minute",
        check=liveness_hasty,
    ),
    Rule(
        id="readiness-probe",
        sentence="Without a readiness probe the replica gets traffic before its port is open.",
        fix="readinessProbe on /health with timeoutSeconds 5 and failureThreshold 3",
        check=readiness_probe,
    ),
    Rule(
        id="readiness-hasty",
        sentence="One slow answer takes the replica out of routing, and under load all of them at once.",
        fix="timeoutSeconds of at least 2 and failureThreshold of at least 2",
        check=readiness_hasty,
    ),
    Rule(
        id="success-threshold",
        sentence="Liveness and startup probes take no successThreshold but 1; the API server refuses this.",
        fix="leave successThreshold out",
        check=success_threshold,
    ),
)
