"""What a gateway is told: where the replicas are, what they may be given, and how long each wait may take."""

import msgspec

from knee.http1.origin import Origin
from knee.policy.admission import Limits
from knee.policy.health import HealthRules

MIB = 1024 * 1024


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Waits in seconds, sizes in bytes.

    `connect_s` bounds opening a connection to a replica, `first_byte_s` the wait from the sent request to the
    first byte of its answer, `between_bytes_s` every later silence. `probe_s` is how long a replica may take
    to answer a probe, `probe_every_s` how often a ready one is asked, `scrape_every_s` how often its metrics
    are read, `resolve_every_s` how often their names are looked up. Told to stop, the gateway calls itself
    not ready, still takes requests for `unready_s`, then
    closes its port; answers may finish until `grace_s` after it was told. `keep_alive_s` > 0 sends a
    comment into event streams that are silent for so long. `body_bytes` bounds one request's body,
    `held_bytes` the bodies on their way in, all together. `attempts` is how many replicas may be tried for a
    request that has not been sent to any.
    """

    upstreams: tuple[Origin, ...]
    limits: Limits
    policy: str = "prefix_affinity"
    health: HealthRules = HealthRules()
    connect_s: float = 2.0
    first_byte_s: float = 600.0
    between_bytes_s: float = 120.0
    probe_s: float = 5.0
    probe_every_s: float = 1.0
    scrape_every_s: float = 0.25
    resolve_every_s: float = 2.0
    unready_s: float = 5.0
    grace_s: float = 60.0
    keep_alive_s: float = 0.0
    body_bytes: int = 32 * MIB
    held_bytes: int = 1024 * MIB
    connections: int = 16_384
    attempts: int = 3
