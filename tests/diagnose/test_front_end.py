"""The front end, provoked on the simulated HTTP server: named from its metrics, and cured by its move."""

from msgspec.structs import replace

from knee.core.point import Point
from knee.core.slo import parse_slo
from knee.core.units import NS_PER_MS, NS_PER_S
from knee.diagnose.runs import diagnose_points
from knee.engine.config import REFERENCE, FrontEnd
from knee.measure.client.connection import Connection
from knee.measure.client.live import connect
from knee.measure.single import live_point
from knee.measure.target import Offer
from knee.mock.config import MockConfig
from knee.mock.running import mock_server
from knee.workload.spec import Arrivals, Lengths, Workload

SLO = parse_slo("ttft p90 < 300ms")
WORKLOAD = Workload(
    prompt_tokens=Lengths(mean=50), output_tokens=Lengths(mean=10), arrivals=Arrivals(kind="constant")
)


def measured(servers: int) -> Point:
    """32 requests/s against API servers that take 40 ms of CPU for each."""
    front = FrontEnd(servers=servers, per_request_ns=40 * NS_PER_MS)
    with mock_server(MockConfig(engine=replace(REFERENCE, version="0.32.0", front_end=front))) as server:
        offer = Offer(
            workload=WORKLOAD,
            rate=32,
            seed=1,
            warmup_ns=NS_PER_S,
            window_ns=4 * NS_PER_S,
            drain_ns=4 * NS_PER_S,
        )
        return live_point(connect(Connection(url=server.url)).measure(offer), offer, SLO)


def test_one_tokenizer_process_for_too_many_requests() -> None:
    one = measured(1)
    verdict = diagnose_points([one], {"max_num_seqs": "128", "max_num_batched_tokens": "4096"})
    assert verdict.limit == "front_end", verdict
    assert verdict.move is not None
    assert (verdict.move.flag, verdict.move.to) == ("api_server_count", "2")
    two = measured(int(verdict.move.to))
    assert (one.holds, two.ttft_ms.p90 is not None and two.ttft_ms.p90 < 300) == (False, True)
