"""Every rule on a pair: rendered manifests, which are clean, and the same with one mistake made in them."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from tests.deploy.test_render import made

from knee.deploy.check import RULES, Report, check
from knee.deploy.manifests import load_text
from knee.deploy.render import text_of
from knee.deploy.sources import Loaded

Docs = dict[str, dict[str, Any]]
Change = Callable[[Docs], None]

CLEAN: Docs = {
    item["kind"] + ("/gateway" if item["metadata"]["name"].endswith("-gateway") else ""): item
    for item in [
        *yaml.safe_load_all(text_of(made())),
        *[
            i
            for i in yaml.safe_load_all(text_of(made(pool=True)))
            if i["kind"] in ("HTTPRoute", "InferencePool")
        ],
    ]
}
HPA: dict[str, Any] = next(
    i for i in yaml.safe_load_all(text_of(made(autoscaler="hpa"))) if i["kind"] == "HorizontalPodAutoscaler"
)


def found_in(docs: Docs, startup_s: float | None = None) -> Report:
    text = yaml.safe_dump_all(copy.deepcopy(list(docs.values())))
    return check(Loaded(manifests=load_text(text, "made.yaml")), startup_s=startup_s)


def pods(docs: Docs) -> Any:
    return docs["Deployment"]["spec"]["template"]["spec"]


def engine(docs: Docs) -> Any:
    return pods(docs)["containers"][0]


def put(*path: str | int, value: Any, of: str = "Deployment") -> Change:
    """Set, or with `value=...` remove, what stands at `path` of the object `of`."""

    def change(docs: Docs) -> None:
        at: Any = docs[of]
        for step in path[:-1]:
            at = at[step]
        if value is ...:
            del at[path[-1]]
        else:
            at[path[-1]] = value

    return change


def on_engine(*path: str | int, value: Any) -> Change:
    return put("spec", "template", "spec", "containers", 0, *path, value=value)


def args(*extra: str, without: tuple[str, ...] = ()) -> Change:
    """Add arguments of vLLM; `without` removes flags and their values."""

    def change(docs: Docs) -> None:
        words = engine(docs)["args"]
        for name in without:
            index = words.index(name)
            del words[index : index + 2]
        words += extra

    return change


def both(*changes: Change) -> Change:
    def change(docs: Docs) -> None:
        for each in changes:
            each(docs)

    return change


def drop(name: str) -> Change:
    return lambda docs: docs.__delitem__(name)


def add(name: str, item: dict[str, Any]) -> Change:
    return lambda docs: docs.__setitem__(name, copy.deepcopy(item))


def service(name: str) -> dict[str, Any]:
    return CLEAN["Service"] | {"metadata": {"name": name}}


def no_reasons(why: str) -> Change:
    return put("spec", "triggers", 0, "metadata", "query", value=why, of="ScaledObject")


SURGE = ("spec", "strategy", "rollingUpdate")
CPU = [
    {
        "type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}},
    }
]
BAD: dict[str, list[Change]] = {
    "schema": [
        put("spec", "replica", value=2, of="Deployment/gateway"),
        put("spec", "progressDeadlineSeconds", value="550"),
        put("spec", "triggers", 0, "metadata", "threshold", value=3, of="ScaledObject"),
        put("spec", "targetPorts", value=..., of="InferencePool"),
        put("spec", "rules", 0, "timeouts", "request", value="1.5h", of="HTTPRoute"),
        put("apiVersion", value="policy/v1beta1", of="PodDisruptionBudget"),
        put("spec", "fallback", "failureTreshold", value=3, of="ScaledObject"),
        put("metadata", "name", value=..., of="Service/gateway"),
        on_engine("livenessProbe", "httpGet", "port", value=...),
    ],
    "selector": [
        put("spec", "selector", "app.kubernetes.io/name", value="other", of="Service"),
        put("spec", "selector", "matchLabels", "app.kubernetes.io/name", value="other", of="PodMonitor"),
    ],
    "port": [
        on_engine("readinessProbe", "httpGet", "port", value=8001),
        put("spec", "ports", 0, "targetPort", value="api", of="Service"),
        put("spec", "podMetricsEndpoints", 0, "port", value="metrics", of="PodMonitor"),
        put("spec", "targetPorts", 0, "number", value=80, of="InferencePool"),
    ],
    "startup-probe": [on_engine("startupProbe", value=...)],
    "startup-budget": [on_engine("startupProbe", "failureThreshold", value=5)],
    "liveness-path": [
        on_engine("livenessProbe", "httpGet", "path", value="/v1/models"),
        on_engine("livenessProbe", "httpGet", "path", value="/metrics"),
    ],
    "liveness-hasty": [
        on_engine("livenessProbe", "timeoutSeconds", value=...),
        on_engine("livenessProbe", "failureThreshold", value=2),
    ],
    "readiness-probe": [on_engine("readinessProbe", value=...)],
    "readiness-hasty": [
        on_engine("readinessProbe", "failureThreshold", value=1),
        on_engine("readinessProbe", "timeoutSeconds", value=...),
    ],
    "success-threshold": [on_engine("livenessProbe", "successThreshold", value=3)],
    "shutdown-timeout": [args(without=("--shutdown-timeout",)), args("--shutdown-timeout=0")],
    "pre-stop": [on_engine("lifecycle", value=...)],
    "grace": [
        put("spec", "template", "spec", "terminationGracePeriodSeconds", value=29),
        on_engine("lifecycle", "preStop", "sleep", "seconds", value=30),
    ],
    "route-timeout": [put("spec", "rules", 0, "timeouts", "request", value="9s", of="HTTPRoute")],
    "rollout-gap": [
        put(*SURGE, "maxUnavailable", value=1),
        put("spec", "strategy", value={"type": "Recreate"}),
        put("spec", "strategy", value=...),
        put(*SURGE, "maxUnavailable", value="50%"),
    ],
    "rollout-stuck": [put(*SURGE, "maxSurge", value=0), put(*SURGE, "maxSurge", value="0%")],
    "progress-deadline": [
        both(
            put("spec", "progressDeadlineSeconds", value=...),
            on_engine("startupProbe", "failureThreshold", value=90),
        )
    ],
    "disruption-budget": [
        put("spec", "maxUnavailable", value=0, of="PodDisruptionBudget"),
        put("spec", "minAvailable", value=1, of="PodDisruptionBudget"),
        put("spec", "maxUnavailable", value=..., of="PodDisruptionBudget"),
        both(
            put("spec", "maxUnavailable", value=..., of="PodDisruptionBudget"),
            put("spec", "minAvailable", value=2, of="PodDisruptionBudget"),
        ),
    ],
    "no-disruption-budget": [drop("PodDisruptionBudget")],
    "service-links": [
        both(add("vllm", service("vllm")), put("spec", "template", "spec", "enableServiceLinks", value=...))
    ],
    "image-pinned": [
        on_engine("image", value="vllm/vllm-openai"),
        on_engine("image", value="vllm/vllm-openai:latest"),
        on_engine("image", value="vllm/vllm-openai:nightly-abc"),
    ],
    "shared-memory": [
        both(
            args("-tp", "2"),
            on_engine("resources", "limits", "nvidia.com/gpu", value=2),
            put("spec", "template", "spec", "volumes", 1, value={"name": "shm", "emptyDir": {}}),
        )
    ],
    "accelerators": [
        args("--tensor_parallel_size=4"),
        on_engine("resources", "limits", "nvidia.com/gpu", value=2),
        both(args("--tensor-parallel-size", "2"), on_engine("resources", "limits", value={})),
    ],
    "cache-volume": [
        put("spec", "template", "spec", "volumes", 0, value={"name": "cache", "emptyDir": {}}),
        on_engine("volumeMounts", 0, "mountPath", value="/elsewhere"),
        on_engine("env", value=[]),
    ],
    "secret-literal": [
        args("--api-key", "hunter2"),
        on_engine("env", 1, value={"name": "HF_TOKEN", "value": "hf_x"}),
    ],
    "removed-flag": [
        args("--max-num-partial-prefills", "2"),
        on_engine("image", value="vllm/vllm-openai:v0.27.0"),
    ],
    "scale-signal": [
        both(drop("ScaledObject"), add("HPA", HPA), put("spec", "metrics", value=CPU, of="HPA")),
        put("spec", "triggers", 0, value={"type": "cpu", "metadata": {"value": "80"}}, of="ScaledObject"),
        no_reasons("avg(DCGM_FI_DEV_GPU_UTIL)"),
    ],
    "scale-query": [
        no_reasons('vllm:num_requests_waiting{model_name="m"}'),
        no_reasons('sum(vllm:num_requests_waiting{model="m"})'),
        put("spec", "triggers", 0, "metadata", "metricName", value="waiting", of="ScaledObject"),
    ],
    "metric-name": [no_reasons("avg(vllm:gpu_cache_usage_perc)")],
    "scale-blind": [
        put("spec", "triggers", 0, "metadata", "ignoreNullValues", value=..., of="ScaledObject"),
        put("spec", "triggers", 1, "metadata", "ignoreNullValues", value="true", of="ScaledObject"),
    ],
    "scale-bounds": [
        put("spec", "maxReplicaCount", value=1, of="ScaledObject"),
        put("spec", "idleReplicaCount", value=2, of="ScaledObject"),
    ],
    "two-scalers": [add("HPA", HPA)],
    "replicas-pinned": [put("spec", "replicas", value=2)],
}
CASES = [(rule, index) for rule, changes in BAD.items() for index in range(len(changes))]


def test_every_rule_has_a_pair() -> None:
    assert set(BAD) == set(RULES)
    assert len(RULES) >= 20


def test_the_clean_side_of_every_pair() -> None:
    report = found_in(CLEAN)
    assert report.findings == ()
    assert report.engines == 1


@pytest.mark.parametrize(("rule", "index"), CASES)
def test_one_mistake_is_one_finding(rule: str, index: int) -> None:
    docs = copy.deepcopy(CLEAN)
    BAD[rule][index](docs)
    assert docs != CLEAN
    report = found_in(docs)
    assert {found.rule for found in report.findings} == {rule}, report.findings
    for found in report.findings:
        assert found.seen
        assert found.sentence.endswith(".")
        assert found.fix


NEAR: dict[str, Change] = {
    "a flag given twice: the last one counts": args("--shutdown-timeout", "5"),
    "an older release aborts anyway": both(
        on_engine("image", value="vllm/vllm-openai:v0.16.0"),
        args(without=("--shutdown-timeout", "--max-num-queued-reqs")),
    ),
    "a digest pins": on_engine("image", value="vllm/vllm-openai@sha256:" + "0" * 64),
    "nothing is compiled": both(args("--enforce-eager"), on_engine("volumeMounts", value=[])),
    "a key from the environment": args("--api-key", "$(API_KEY)"),
    "a port by number": on_engine("readinessProbe", "httpGet", "port", value=8000),
    "another port, everywhere": both(
        args("--port", "9000"),
        on_engine("ports", 0, "containerPort", value=9000),
        put("spec", "targetPorts", 0, "number", value=9000, of="InferencePool"),
    ),
    "a service of that name, not announced": add("vllm", service("vllm")),
    "a shell in between": lambda d: engine(d).update(
        command=["/bin/sh", "-c"], args=["exec vllm serve m --port 8000 \\\n  --shutdown-timeout 10 -tp 1"]
    ),
    "preStop as a command": on_engine("lifecycle", value={"preStop": {"exec": {"command": ["sleep", "15"]}}}),
    "a recording rule of one's own": no_reasons("sum(job:vllm:gpu_cache_usage_perc:avg)"),
    "a look-alike": no_reasons("sum(my_vllm:gpu_cache_usage_perc)"),
    "25 % of three is none": both(
        put("spec", "maxReplicaCount", value=3, of="ScaledObject"), put("spec", "strategy", value=...)
    ),
    "one of two may leave": both(
        put("spec", "maxUnavailable", value=..., of="PodDisruptionBudget"),
        put("spec", "minAvailable", value=1, of="PodDisruptionBudget"),
    ),
}


@pytest.mark.parametrize("name", NEAR)
def test_near_misses_are_clean(name: str) -> None:
    docs = copy.deepcopy(CLEAN)
    NEAR[name](docs)
    assert found_in(docs).findings == ()


def test_the_budget_is_judged_by_the_measured_start() -> None:
    assert found_in(CLEAN, startup_s=100.0).findings == ()
    slow = found_in(CLEAN, startup_s=200.0)
    assert [found.rule for found in slow.findings] == ["startup-budget"]
    assert "a start took 200 s" in slow.findings[0].seen
