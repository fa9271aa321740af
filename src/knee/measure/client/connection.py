"""How a server is reached."""

import msgspec

from knee.http1.origin import Origin, parse_origin
from knee.http1.pool import Timeouts
from knee.measure.client.endpoints import Ask
from knee.measure.client.secret import Secret


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach a server: what is asked of it, with which key and headers, and how long to wait.

    `metrics_urls` are where its metrics are, one per replica where `url` is a router; none means `url`
    itself. `headers` and `key` go with every request, the key never anywhere else. `realtime` asks for
    real-time priority while load runs.
    """

    url: str
    ask: Ask = Ask(model="")
    metrics_urls: tuple[str, ...] = ()
    headers: dict[str, str] = {}
    key: Secret | None = None
    timeouts: Timeouts = Timeouts()
    realtime: bool = False

    @property
    def origin(self) -> Origin:
        """Where requests go; a base path of /v1, which many people write, is understood."""
        origin = parse_origin(self.url)
        return msgspec.structs.replace(origin, base=origin.base.removesuffix("/v1"))

    def all_headers(self) -> dict[str, str]:
        """The headers of every request, the key among them."""
        key = {"authorization": f"Bearer {self.key.reveal()}"} if self.key else {}
        return {**self.headers, **key}
