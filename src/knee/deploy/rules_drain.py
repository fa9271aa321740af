"""Rules about stopping: no stream may be cut by a rollout, a node drain or a scale-down."""

import math
import re
from collections.abc import Iterator
from typing import Any

from knee.catalog.flags import flag, flag_status
from knee.deploy.finding import Found, Rule
from knee.deploy.manifests import Manifest, dig, items
from knee.deploy.pods import Engine, Objects
from knee.deploy.rules_probes import allowed_s, number
from knee.deploy.selection import largest_replicas, selected, smallest_replicas

TEARDOWN_S = 5
"""The least that has to be left for the process to exit after its last stream."""

_SLEEP = re.compile(r"\bsleep\s+(\d+)")
_DURATION = re.compile(r"(\d+)(ms|h|m|s)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def _drain_s(engine: Engine) -> int:
    return engine.number("--shutdown-timeout", 0)


def _pre_stop_s(engine: Engine) -> int:
    hook = dig(engine.container, "lifecycle", "preStop")
    seconds = dig(hook, "sleep", "seconds")
    if seconds is not None:
        return number(seconds, 0)
    found = _SLEEP.search(" ".join(str(word) for word in items(dig(hook, "exec", "command"))))
    return int(found.group(1)) if found else 0


def shutdown_timeout(objects: Objects) -> Iterator[Found]:
    """SIGTERM aborts what is running unless vLLM is told to wait."""
    known = flag("--shutdown-timeout")
    for engine in objects.engines:
        if engine.version and known is not None and flag_status(known, engine.version) != "available":
            continue
        given = engine.value("--shutdown-timeout")
        if given in (None, "0"):
            yield (
                engine.owner,
                engine.path,
                "no --shutdown-timeout" if given is None else "--shutdown-timeout 0",
            )


def pre_stop(objects: Objects) -> Iterator[Found]:
    """SIGTERM comes at the same moment as the removal from routing, not after it."""
    for engine in objects.engines:
        if not dig(engine.container, "lifecycle", "preStop"):
            yield engine.owner, engine.path, "no lifecycle.preStop"


def grace(objects: Objects) -> Iterator[Found]:
    """The grace period starts with preStop and ends with SIGKILL."""
    for engine in objects.engines:
        wait, drain = _pre_stop_s(engine), _drain_s(engine)
        have = number(engine.pods.spec.get("terminationGracePeriodSeconds"), 30)
        if wait + drain and have < wait + drain + TEARDOWN_S:
            path = (*engine.pods.path, "terminationGracePeriodSeconds")
            yield engine.owner, path, f"{have} s for preStop {wait} s + --shutdown-timeout {drain} s + exit"


def route_timeout(objects: Objects) -> Iterator[Found]:
    """A route that gives up before a drain does cuts what the drain waits for."""
    longest = max((_drain_s(engine) for engine in objects.engines), default=0)
    for route in objects.of("HTTPRoute"):
        for index, rule in enumerate(items(dig(route.body, "spec", "rules"))):
            for name in ("request", "backendRequest"):
                text = dig(rule, "timeouts", name)
                seconds = sum(int(n) * _SECONDS[unit] for n, unit in _DURATION.findall(str(text or "")))
                if 0 < seconds < longest:
                    path = ("spec", "rules", index, "timeouts", name)
                    yield route, path, f"{text} against --shutdown-timeout {longest} s"


def _strategy(owner: Manifest) -> dict[str, Any]:
    found = dig(owner.body, "spec", "strategy")
    return found if isinstance(found, dict) else {}


def _absolute(value: Any, replicas: int, *, up: bool) -> int:
    """Pods that a count or percentage stands for: Kubernetes rounds surge up and unavailable down."""
    text = str(value)
    if text.endswith("%") and text[:-1].isdecimal():
        share = int(text[:-1]) / 100 * replicas
        return math.ceil(share) if up else math.floor(share)
    return int(text) if text.isdecimal() else 0


def rollout_gap(objects: Objects) -> Iterator[Found]:
    """A rollout that first stops replicas runs with less than the load needs."""
    for engine in objects.engines:
        if engine.owner.kind != "Deployment":
            continue
        strategy = _strategy(engine.owner)
        if strategy.get("type") == "Recreate":
            yield engine.owner, ("spec", "strategy"), "Recreate stops every replica first"
            continue
        given = dig(strategy, "rollingUpdate", "maxUnavailable")
        replicas = largest_replicas(objects, engine.owner)
        gap = _absolute("25%" if given is None else given, replicas, up=False)
        if gap:
            path = ("spec", "strategy", "rollingUpdate", "maxUnavailable")
            name = "maxUnavailable 25 % by default" if given is None else f"maxUnavailable {given}"
            yield engine.owner, path, f"{name}: {gap} of {replicas} replicas stop first"


def rollout_stuck(objects: Objects) -> Iterator[Found]:
    """With neither surge nor gap nothing can ever be replaced."""
    for deployment in objects.of("Deployment"):
        rolling = dig(deployment.body, "spec", "strategy", "rollingUpdate") or {}
        surge, gap = dig(rolling, "maxSurge"), dig(rolling, "maxUnavailable")
        if str(surge) in ("0", "0%") and str(gap) in ("0", "0%"):
            yield deployment, ("spec", "strategy", "rollingUpdate"), "maxSurge 0 and maxUnavailable 0"


def progress_deadline(objects: Objects) -> Iterator[Found]:
    """A rollout is given up while a replica is still allowed to start."""
    for engine in objects.engines:
        probe = engine.container.get("startupProbe")
        if engine.owner.kind != "Deployment" or not isinstance(probe, dict):
            continue
        deadline = number(dig(engine.owner.body, "spec", "progressDeadlineSeconds"), 600)
        if deadline <= allowed_s(probe):
            path = ("spec", "progressDeadlineSeconds")
            yield engine.owner, path, f"{deadline} s; the startup probe allows {allowed_s(probe)} s"


def disruption_budget(objects: Objects) -> Iterator[Found]:
    """A budget that allows nothing blocks every node drain."""
    for budget in objects.of("PodDisruptionBudget"):
        most, least = dig(budget.body, "spec", "maxUnavailable"), dig(budget.body, "spec", "minAvailable")
        if (most is None) == (least is None):
            seen = (
                "neither maxUnavailable nor minAvailable"
                if most is None
                else "maxUnavailable and minAvailable"
            )
            yield budget, ("spec",), seen
            continue
        chosen = selected(objects, budget, dig(budget.body, "spec", "selector"))
        replicas = max((smallest_replicas(objects, pods.owner) for pods in chosen), default=0)
        if str(most) in ("0", "0%"):
            yield budget, ("spec", "maxUnavailable"), f"maxUnavailable {most}"
        elif str(least) == "100%" or (replicas and _absolute(least, replicas, up=True) >= replicas > 0):
            yield budget, ("spec", "minAvailable"), f"minAvailable {least} of {replicas or 'all'} replicas"


def no_disruption_budget(objects: Objects) -> Iterator[Found]:
    """Without a budget a node drain may take all replicas at once."""
    guarded = {
        id(pods)
        for budget in objects.of("PodDisruptionBudget")
        for pods in selected(objects, budget, dig(budget.body, "spec", "selector"))
    }
    for engine in objects.engines:
        replicas = smallest_replicas(objects, engine.owner)
        if (
            engine.owner.kind in ("Deployment", "StatefulSet")
            and replicas > 1
            and id(engine.pods) not in guarded
        ):
            yield engine.owner, (), f"{replicas} replicas and no PodDisruptionBudget"


RULES = (
    Rule(
        id="shutdown-timeout",
        sentence="On SIGTERM vLLM aborts running requests at once.",
        fix="--shutdown-timeout with the seconds of the longest response",
        check=shutdown_timeout,
    ),
    Rule(
        id="pre-stop",
        sentence="SIGTERM arrives before the pod has left routing, so new requests meet a server that stops.",
        fix="lifecycle.preStop.sleep of 15 seconds",
        check=pre_stop,
    ),
    Rule(
        id="grace",
        sentence="The grace period ends before the drain does, and SIGKILL cuts the streams.",
        fix="terminationGracePeriodSeconds of at least preStop + --shutdown-timeout + 15",
        check=grace,
    ),
    Rule(
        id="route-timeout",
        sentence="The route gives up on responses that the server would still finish in its drain.",
        fix="timeouts.request no shorter than --shutdown-timeout",
        check=route_timeout,
    ),
    Rule(
        id="rollout-gap",
        sentence="A rollout stops replicas before their successors are ready, which takes minutes.",
        fix="strategy RollingUpdate with maxUnavailable 0 and maxSurge 1",
        check=rollout_gap,
    ),
    Rule(
        id="rollout-stuck",
        sentence="With maxSurge 0 and maxUnavailable 0 no pod can be replaced; the API server refuses it.",
        fix="maxSurge 1, and accelerators for one more replica",
        check=rollout_stuck,
    ),
    Rule(
        id="progress-deadline",
        sentence="The rollout counts as failed while a replica is still allowed to start.",
        fix="progressDeadlineSeconds above what the startup probe allows",
        check=progress_deadline,
    ),
    Rule(
        id="disruption-budget",
        sentence="The disruption budget is refused, or lets no replica ever leave, so that node drains hang.",
        fix="maxUnavailable: 1, alone",
        check=disruption_budget,
    ),
    Rule(
        id="no-disruption-budget",
        sentence="A node drain may take all replicas at once.",
        fix="a PodDisruptionBudget with maxUnavailable: 1",
        check=no_disruption_budget,
    ),
)
