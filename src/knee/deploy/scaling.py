"""Autoscaling on queue signals, with thresholds from the knee: KEDA's ScaledObject, or a plain HPA.

Never on GPU utilisation: an engine with any request at all keeps its GPU busy, at half load as at overload.
"""

import json
from typing import Any

from knee.deploy.commented import Because
from knee.deploy.naming import Site, metadata
from knee.deploy.sizing import Sizes

Object = dict[str, Any]

POLL_S = 15
_HPA_LONGEST_WINDOW_S, _HPA_LONGEST_PERIOD_S = 3600, 1800


def scaled_object(site: Site, sizes: Sizes) -> Object:
    """KEDA's ScaledObject on waiting requests and on requests in flight; the larger wish wins."""
    picker = site.endpoint_picker
    if picker:
        where = _where(site, service=picker)
        queued = (
            f"sum(llm_d_epp_flow_control_queue_size{where})",
            Because("1", "what the endpoint picker holds back means that the replicas are at the knee"),
        )
        flying = f"sum(llm_d_epp_request_running{where})"
    else:
        where = _where(site, job=site.name)
        queued = (f"sum(vllm:num_requests_waiting{where})", _text(sizes.scale_waiting))
        flying = f"sum(vllm:num_requests_running{where}) + sum(vllm:num_requests_waiting{where})"
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": metadata(site, part="server"),
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": site.name},
            "pollingInterval": Because(POLL_S, "seconds; the scrape interval"),
            "minReplicaCount": sizes.min_replicas,
            "maxReplicaCount": sizes.max_replicas,
            "fallback": {
                "failureThreshold": Because(3, f"x {POLL_S} s without an answer from Prometheus"),
                "replicas": sizes.min_replicas,
                "behavior": Because("currentReplicasIfHigher", "a blind autoscaler must not scale down"),
            },
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior(sizes)}},
            "triggers": [
                _trigger(site, "waiting", *queued),
                _trigger(site, "in-flight", flying, _text(sizes.scale_in_flight)),
            ],
        },
    }


def _trigger(site: Site, name: str, query: str, threshold: Because) -> Object:
    return {
        "type": "prometheus",
        "name": name,
        "metadata": {
            "serverAddress": Because(site.prometheus, "--prometheus"),
            "query": query,
            "threshold": threshold,
            "ignoreNullValues": Because("false", "no series is an error, not zero requests"),
        },
    }


def hpa(site: Site, sizes: Sizes) -> Object:
    """A HorizontalPodAutoscaler on the same signals, served by the Prometheus adapter as pod metrics.

    The adapter has to rename `vllm:num_requests_waiting` to `vllm_num_requests_waiting`, and running alike.
    """

    def pods(name: str, value: Because) -> Object:
        return {
            "type": "Pods",
            "pods": {
                "metric": {"name": name},
                "target": {"type": "AverageValue", "averageValue": _text(value)},
            },
        }

    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": metadata(site, part="server"),
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": site.name},
            "minReplicas": sizes.min_replicas,
            "maxReplicas": sizes.max_replicas,
            "metrics": [
                pods("vllm_num_requests_waiting", sizes.scale_waiting),
                pods("vllm_num_requests_running", sizes.scale_in_flight),
            ],
            "behavior": _behavior(sizes),
        },
    }


def _behavior(sizes: Sizes) -> Object:
    start = max(1, min(round(sizes.startup_s), _HPA_LONGEST_PERIOD_S))
    drain = min(max(1, int(sizes.drain.value)), _HPA_LONGEST_PERIOD_S)
    return {
        "scaleUp": {
            "stabilizationWindowSeconds": Because(0, "the knee is near when the signal rises"),
            "policies": [
                {
                    "type": "Percent",
                    "value": Because(100, "at most double …"),
                    "periodSeconds": Because(start, "… per start-up time: new replicas help only after it"),
                }
            ],
        },
        "scaleDown": {
            "stabilizationWindowSeconds": Because(
                min(max(300, 2 * start), _HPA_LONGEST_WINDOW_S),
                "twice the start-up time, at least Kubernetes' 300 s: undoing this costs a start",
            ),
            "policies": [
                {
                    "type": "Pods",
                    "value": Because(1, "one replica …"),
                    "periodSeconds": Because(drain, "… per time to drain"),
                }
            ],
        },
    }


def _where(site: Site, **labels_: str) -> str:
    wanted = labels_ | ({"namespace": site.namespace} if site.namespace else {})
    return "{" + ",".join(f"{name}={json.dumps(value)}" for name, value in wanted.items()) + "}"


def _text(number: Because) -> Because:
    """The same as a string: KEDA's metadata and Kubernetes' quantities are strings."""
    return Because(str(number.value), number.why)
