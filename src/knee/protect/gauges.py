"""The state of admission and of the replicas as Prometheus metrics, read when they are asked for."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from knee.core.units import ns_to_s
from knee.http1.server import Server
from knee.policy.admission import Admission
from knee.protect.replicas import Replicas


def gauges(admission: Admission, replicas: Replicas, server: Server | None) -> Iterator[Metric]:
    """In-flight, queue, tickets, and per replica: whether it is ready, what it has, how it failed."""
    for name, text, value in (
        ("in_flight", "Requests that hold a place, from admission to last byte.", admission.in_flight),
        ("in_flight_limit", "Requests that may be in flight now.", admission.capacity),
        ("queued", "Requests that wait for a place.", admission.queued),
    ):
        yield GaugeMetricFamily(f"knee_gateway_{name}", text, value=value)
    yield CounterMetricFamily("knee_gateway_arrived", "Requests that asked for a place.", admission.arrived)
    tickets = CounterMetricFamily(
        "knee_gateway_tickets",
        "How requests gave up their place or their wait: done, left, expired, shed.",
        labels=("state",),
    )
    for state in ("done", "left", "expired", "shed"):
        tickets.add_metric((state,), admission.ended[state])
    yield tickets
    if server is not None:
        yield GaugeMetricFamily("knee_gateway_connections", "Open connections.", server.open_connections)
        refused = CounterMetricFamily(
            "knee_gateway_refused_unread", "Requests refused before they were read whole.", labels=("status",)
        )
        for status, count in sorted(server.refused.items()):
            refused.add_metric((str(status),), count)
        yield refused
    yield from _of_replicas(replicas)


def _of_replicas(replicas: Replicas) -> Iterator[Metric]:
    state = GaugeMetricFamily(
        "knee_gateway_replica_state",
        "1 for the state a replica is in: loading, ready, half_open, ejected, draining.",
        labels=("replica", "state"),
    )
    in_flight = GaugeMetricFamily(
        "knee_gateway_replica_in_flight", "Requests of this gateway at a replica.", labels=("replica",)
    )
    ejections = CounterMetricFamily(
        "knee_gateway_replica_ejections", "How often a replica was put out.", labels=("replica",)
    )
    failures = CounterMetricFamily(
        "knee_gateway_replica_failures",
        "Requests that a replica did not answer whole.",
        labels=("replica", "cause"),
    )
    scraped = GaugeMetricFamily(
        "knee_gateway_replica_scrape_age_seconds", "Age of a replica's last metrics.", labels=("replica",)
    )
    for name, upstream in replicas.all.items():
        state.add_metric((name, upstream.state), 1)
        in_flight.add_metric((name,), replicas.router.replicas[name].in_flight)
        ejections.add_metric((name,), upstream.health.ejections)
        for cause, count in sorted(upstream.failures.items()):
            failures.add_metric((name, cause), count)
        age_ns = upstream.scrape_age_ns
        if age_ns is not None:
            scraped.add_metric((name,), ns_to_s(age_ns))
    yield from (state, in_flight, ejections, failures, scraped)
