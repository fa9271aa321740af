"""What stands before the replicas: our gateway on one node, or the hand-over to an inference gateway."""

from typing import Any

import msgspec

from knee.core.lock import Lock
from knee.deploy.commented import Because, document
from knee.deploy.naming import GATEWAY_PORT, SERVER_PORT, Site, labels, metadata
from knee.deploy.serving import public_flags
from knee.deploy.sizing import Sizes

Object = dict[str, Any]

LOCK_FILE = "knee.lock"
_LOCK_FOLDER = "/etc/knee"
_ADMIN_PORT = 8081
_UNREADY_S, _EXIT_S = 15, 5
_FIRST_BYTE_S = 60
PICKER_TTL_S = 10
"""How long the endpoint picker holds a request back: a short bounded wait, then an answer."""


def lock_config(lock: Lock, site: Site) -> Object:
    """The lock as the gateway reads it: its bounds come from the same knee as everything here."""
    point = lock.at_knee and msgspec.structs.replace(lock.at_knee, window=None)  # what no bound is made from
    lean = msgspec.structs.replace(lock, at_knee=point, flags=public_flags(lock.flags))
    text = msgspec.json.format(msgspec.json.encode(lean), indent=2)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(site, "lock", "gateway"),
        "data": {LOCK_FILE: text.decode() + "\n"},
    }


def gateway(site: Site, sizes: Sizes) -> Object:
    """The Deployment of `knee gateway`."""
    drain = sizes.drain.value
    grace = Because(
        _UNREADY_S + drain + _EXIT_S,
        f"--unready {_UNREADY_S} s + --grace {drain} s + {_EXIT_S} s to exit (assumed)",
    )
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(site, "gateway", "gateway"),
        "spec": {
            "replicas": Because(1, "one: each gateway counts only what passes through itself"),
            "selector": {"matchLabels": labels(site, "gateway")},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {
                    "maxUnavailable": Because(0, "the new gateway is ready before the old one stops"),
                    "maxSurge": Because(1, "both run side by side for a moment"),
                },
            },
            "template": {
                "metadata": {"labels": labels(site, "gateway")},
                "spec": {
                    "enableServiceLinks": False,
                    "terminationGracePeriodSeconds": grace,
                    "containers": [_gateway_container(site, sizes)],
                    "volumes": [{"name": "lock", "configMap": {"name": f"{site.name}-lock"}}],
                },
            },
        },
    }


def _gateway_container(site: Site, sizes: Sizes) -> Object:
    drain = sizes.drain.value
    return {
        "name": "gateway",
        "image": Because(site.gateway_image, "the version that rendered this"),
        "command": ["knee", "gateway"],
        "args": [
            Because(f"http://{site.name}-replicas:{SERVER_PORT}", "every address of this name is a replica"),
            *(
                "--from",
                Because(f"{_LOCK_FOLDER}/{LOCK_FILE}", "the bounds on requests in flight and waiting"),
            ),
            *("--host", "0.0.0.0", "--port", str(GATEWAY_PORT)),  # noqa: S104 - inside the pod
            *("--admin-host", "0.0.0.0", "--admin-port", str(_ADMIN_PORT)),  # noqa: S104 - the kubelet asks
            *("--unready", Because(f"{_UNREADY_S}s", "until no proxy sends here any more; not measured")),
            *("--grace", Because(f"{drain}s", sizes.drain.why)),
            "--first-byte-timeout",
            Because(f"{max(_FIRST_BYTE_S, drain)}s", "the longest response, whole; at least a minute"),
        ],
        "ports": [
            {"name": "http", "containerPort": Because(GATEWAY_PORT, "unprivileged")},
            {"name": "admin", "containerPort": Because(_ADMIN_PORT, "probes and metrics, off the data path")},
        ],
        "resources": {"requests": {"cpu": Because("1", "one event loop; not measured on this traffic")}},
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": "admin"},
            "periodSeconds": Because(5, "how late a restarted gateway is noticed, at most"),
            "timeoutSeconds": Because(5, "the loop may be busy for a moment"),
            "failureThreshold": Because(3, "one slow answer must not empty the Service"),
        },
        "volumeMounts": [{"name": "lock", "mountPath": _LOCK_FOLDER, "readOnly": True}],
    }


def gateway_service(site: Site) -> Object:
    """What clients talk to."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(site, "gateway", "gateway"),
        "spec": {
            "selector": labels(site, "gateway"),
            "ports": [
                {"name": "http", "port": Because(80, "plain HTTP inside the cluster"), "targetPort": "http"}
            ],
        },
    }


def inference_pool(site: Site) -> Object:
    """The replicas as a pool that an endpoint picker chooses from."""
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": metadata(site, part="server"),
        "spec": {
            "selector": {"matchLabels": labels(site, "server")},
            "targetPorts": [{"number": Because(SERVER_PORT, "the container's port")}],
            "endpointPickerRef": {
                "name": site.endpoint_picker,
                "port": {"number": Because(9002, "the endpoint picker's default")},
                "failureMode": Because("FailOpen", "without a picker, any replica is better than none"),
            },
        },
    }


def http_route(site: Site, sizes: Sizes) -> Object:
    """The route from a Gateway to the pool."""
    seconds = sizes.drain.value + PICKER_TTL_S
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": metadata(site, part="server"),
        "spec": {
            "parentRefs": [{"name": Because(site.parent_gateway, "--gateway")}],
            "rules": [
                {
                    "matches": [{"path": {"type": "PathPrefix", "value": "/v1"}}],
                    "backendRefs": [
                        {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": site.name}
                    ],
                    "timeouts": {
                        "request": Because(
                            f"{seconds}s",
                            f"shutdown-timeout {sizes.drain.value} s + {PICKER_TTL_S} s in the picker",
                        )
                    },
                }
            ],
        },
    }


def picker_config(site: Site, sizes: Sizes) -> Object:
    """The endpoint picker's configuration: prefix affinity within load, and the knee as its bound."""
    config: Object = {
        "apiVersion": "llm-d.ai/v1alpha1",
        "kind": "EndpointPickerConfig",
        "featureGates": ["flowControl"],
        "plugins": [
            {"type": "queue-scorer"},
            {"type": "kv-cache-utilization-scorer"},
            {"type": "prefix-cache-scorer"},
            {
                "type": "concurrency-detector",
                "parameters": {"maxConcurrency": sizes.in_flight_limit, "concurrencyMode": "requests"},
            },
        ],
        "schedulingProfiles": [
            {
                "name": "default",
                "plugins": [
                    {"pluginRef": "queue-scorer", "weight": Because(2, "the picker's own default")},
                    {"pluginRef": "kv-cache-utilization-scorer", "weight": Because(2, "the same")},
                    {"pluginRef": "prefix-cache-scorer", "weight": Because(3, "the same")},
                ],
            }
        ],
        "flowControl": {
            "defaultRequestTTL": Because(f"{PICKER_TTL_S}s", "a short bounded wait, then an answer"),
            "saturationDetector": {"pluginRef": "concurrency-detector"},
        },
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(site, "endpoint-picker", "server"),
        "data": {"config.yaml": document(config).removeprefix("---\n")},
    }
