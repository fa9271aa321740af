"""The vLLM replicas: Deployment, the volume that keeps their caches, and the Service that names them."""

from typing import Any

from knee.core.lock import Lock
from knee.deploy.commented import Because
from knee.deploy.naming import CACHE, SERVER_PORT, Site, labels, metadata
from knee.deploy.serving import serve_arguments
from knee.deploy.sizing import Sizes

Object = dict[str, Any]

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the kernel's own path
LIVENESS_TIMEOUT_S, LIVENESS_FAILURES, LIVENESS_PERIOD_S = 10, 6, 10
READINESS_TIMEOUT_S, READINESS_FAILURES, READINESS_PERIOD_S = 5, 3, 5


def deployment(lock: Lock, site: Site, sizes: Sizes, *, scaled: bool, extra: list[str | Because]) -> Object:
    """The replicas. `scaled`: an autoscaler sets their number. `extra`: arguments of `vllm serve`."""
    replicas = {} if scaled else {"replicas": sizes.min_replicas}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(site, part="server"),
        "spec": replicas
        | {
            "selector": {"matchLabels": labels(site, "server")},
            "progressDeadlineSeconds": sizes.progress_deadline,
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {
                    "maxUnavailable": Because(0, "a replica leaves only when its successor is ready"),
                    "maxSurge": Because(1, "the successor needs free accelerators for one replica"),
                },
            },
            "template": {
                "metadata": {"labels": labels(site, "server")},
                "spec": {
                    "enableServiceLinks": Because(
                        False, "a Service named vllm would set VLLM_PORT, which vLLM takes for its own"
                    ),
                    "terminationGracePeriodSeconds": sizes.grace,
                    "containers": [_container(lock, site, sizes, extra)],
                    "volumes": [
                        {"name": "cache", "persistentVolumeClaim": {"claimName": _claim(site)}},
                        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}},
                    ],
                },
            },
        },
    }


def _container(lock: Lock, site: Site, sizes: Sizes, extra: list[str | Because]) -> Object:
    resources = (
        {
            "limits": {
                site.gpu_resource: Because(
                    site.gpus, "tensor x pipeline x data parallel size of what was measured"
                )
            }
        }
        if site.gpus
        else {}
    )
    cores = Because(
        str(2 + max(1, site.gpus)), "vLLM asks for 2 + one core per accelerator (front end, engine, workers)"
    )
    return {
        "name": "vllm",
        "image": Because(site.image, "the version that was measured; a new one is a new measurement"),
        "command": ["vllm", "serve"],
        "args": [*serve_arguments(lock), "--port", str(SERVER_PORT), *extra],
        "env": [
            {"name": "VLLM_CACHE_ROOT", "value": f"{CACHE}/vllm"},
            {"name": "HF_HOME", "value": f"{CACHE}/huggingface"},
        ],
        "ports": [{"name": "http", "containerPort": Because(SERVER_PORT, "vLLM's default")}],
        "resources": resources | {"requests": {"cpu": cores}},
        **_probes(sizes),
        "lifecycle": {"preStop": {"sleep": {"seconds": sizes.pre_stop}}},
        "volumeMounts": [{"name": "cache", "mountPath": CACHE}, {"name": "shm", "mountPath": SHARED_MEMORY}],
    }


def _probes(sizes: Sizes) -> Object:
    """/health says "engine alive", never "has capacity"; nothing here sheds load."""
    health = {"httpGet": {"path": "/health", "port": "http"}}
    busy = "a busy server answers /health late: 4.8 s was seen under a 5.4 MB prompt (vllm#24910)"
    return {
        "startupProbe": health
        | {
            "periodSeconds": sizes.probe_period,
            "timeoutSeconds": Because(READINESS_TIMEOUT_S, "the port opens only when the engine is up"),
            "failureThreshold": sizes.startup_failures,
        },
        "livenessProbe": health
        | {
            "periodSeconds": Because(LIVENESS_PERIOD_S, "Kubernetes' default"),
            "timeoutSeconds": Because(LIVENESS_TIMEOUT_S, busy),
            "failureThreshold": Because(
                LIVENESS_FAILURES,
                f"x {LIVENESS_PERIOD_S} s: a dead engine ends its own process, so this can be slow to judge",
            ),
        },
        "readinessProbe": health
        | {
            "periodSeconds": Because(READINESS_PERIOD_S, "half the default: what a hung replica may cost"),
            "timeoutSeconds": Because(READINESS_TIMEOUT_S, busy),
            "failureThreshold": Because(READINESS_FAILURES, "one slow answer must not empty the Service"),
        },
    }


def cache_claim(site: Site) -> Object:
    """The volume that keeps compiled graphs and weights, so that a new replica starts warm."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata(site, "cache"),
        "spec": {
            "accessModes": [
                Because(
                    "ReadWriteMany", "replicas on several nodes share it; a class without it needs its own"
                )
            ],
            "resources": {
                "requests": {"storage": Because(site.cache_size, "weights and compiled graphs; --cache-size")}
            },
        },
    }


def _claim(site: Site) -> str:
    return site.cache_claim or f"{site.name}-cache"


def replicas_service(site: Site) -> Object:
    """A headless Service: its name resolves to every ready replica, which is what a router has to know."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(site, "replicas", "server"),
        "spec": {
            "clusterIP": "None",
            "selector": labels(site, "server"),
            "ports": [
                {"name": "http", "port": Because(SERVER_PORT, "the container's port"), "targetPort": "http"}
            ],
        },
    }


def disruption_budget(site: Site) -> Object:
    """One replica at a time leaves for maintenance."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(site, part="server"),
        "spec": {
            "maxUnavailable": Because(1, "a node drain takes one replica, and waits until it is back"),
            "selector": {"matchLabels": labels(site, "server")},
        },
    }


def pod_monitor(site: Site, part: str = "server", port: str = "http") -> Object:
    """What Prometheus scrapes; `job` becomes the deployment's name."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": metadata(site, "" if part == "server" else part, part),
        "spec": {
            "jobLabel": "app.kubernetes.io/name",
            "selector": {"matchLabels": labels(site, part)},
            "podMetricsEndpoints": [
                {
                    "port": port,
                    "path": "/metrics",
                    "interval": Because("15s", "as often as the autoscaler looks"),
                    "scrapeTimeout": Because("10s", "below the interval; a busy server answers late"),
                }
            ],
        },
    }
