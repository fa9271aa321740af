"""Load workers on the nodes of a Ray cluster: the one file that knows Ray, which is imported when asked for.

Each actor holds a core of a node. At every point it starts there the worker process that `--workers` starts
here, and carries messages (`relay`), so that Ray's threads share neither interpreter nor event loop with it.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from knee import __version__
from knee.core.clock import RealClock
from knee.core.errors import UsageError
from knee.http1.reach import why_unreachable
from knee.measure.client.crew import MOST_WORKERS
from knee.measure.client.line import END_S, Hire, Line, WorkerLost
from knee.measure.client.relay import Relay

REACH_S = 5.0
JOIN_S = 60.0
"""How long the cluster may take to let us in, and again to place all actors."""
LOOKS = 12
"""How often a worker's clock is asked for; the answer that came fastest counts."""
GROUPS = {"tell": 1, "hear": 1}
"""Threads of an actor: orders stay in order in one, the other waits for the worker's words."""
_HINT = "HOST:6379, as `ray start` showed it, or auto on a node of the cluster"


class Hands(NamedTuple):
    """So many workers, and what starts them at each point."""

    workers: int
    hire: Hire


@contextmanager
def on_ray(address: str, workers: int | None) -> Iterator[Hands]:
    """Hold `workers` actors (None: one a node) on the Ray cluster at `address` ("auto": that of this node).

    Raises:
        UsageError: Ray is not installed, no cluster answers there, or it has no place for so many.
    """
    ray = _imported()
    _join(ray, address)
    try:
        actors = _placed(ray, address, workers)

        async def hire(count: int) -> Sequence[Line]:
            lines = [RayLine(actor, place, ray.exceptions.RayError) for actor, place in actors[:count]]
            for line in lines:
                await line.start()
            return lines

        yield Hands(len(actors), hire)
    finally:
        ray.shutdown()


class RayLine:
    """A worker behind an actor. Its clock's distance is measured by asking for it, as the network goes.

    That does not depend on how well the machines' wall clocks agree. An answer that was `d` on its way there
    and back was given within `d`/2 of the middle.
    """

    head_start_ns = 500_000_000

    def __init__(self, actor: Any, place: str, trouble: type[Exception]) -> None:
        self._actor = actor
        self._trouble = trouble
        self.place = place
        self.ahead_ns = 0
        self.unsure_ns = 0

    async def start(self) -> None:
        """Start the worker, and look at its clock."""
        await self._call("tell", self._actor.start)
        now_ns, fastest_ns = RealClock.monotonic_ns, 1 << 62
        for _ in range(LOOKS):
            asked_ns = now_ns()
            theirs_ns = await self._call("tell", self._actor.clock_ns)
            took_ns = now_ns() - asked_ns
            if took_ns < fastest_ns:
                fastest_ns, self.ahead_ns = took_ns, theirs_ns - asked_ns - took_ns // 2
        self.unsure_ns = (fastest_ns + 1) // 2

    def send(self, message: bytes) -> None:
        """As `Line.send`."""
        self._actor.tell.options(concurrency_group="tell").remote(message)

    async def receive(self) -> bytes:
        """As `Line.receive`."""
        return bytes(await self._call("hear", self._actor.hear))

    async def end(self) -> None:
        """As `Line.end`; the actor stays for the next point."""
        with suppress(WorkerLost, TimeoutError):
            async with asyncio.timeout(2 * END_S):
                await self._call("tell", self._actor.end)

    async def _call(self, group: str, method: Any) -> Any:
        try:
            return await method.options(concurrency_group=group).remote()
        except self._trouble as error:
            raise WorkerLost(_line(getattr(error, "cause", None) or error)) from error


def _imported() -> Any:
    """The package `ray`.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import ray  # noqa: PLC0415 - an optional extra, and half a second of imports
        import ray.exceptions  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(f"--ray needs the package ray: {error}", "pip install 'knee[ray]'") from error
    return ray


def _join(ray: Any, address: str) -> None:
    """Become a driver of the cluster at `address`.

    Raises:
        UsageError: as it says.
    """
    host, colon, port = address.rpartition(":")
    if address != "auto":
        if not colon or not port.isdecimal() or "/" in host or not 0 < int(port) < 65_536:
            raise UsageError(f"not the address of a Ray cluster: {address!r}", _HINT)
        why = why_unreachable(host.strip("[]"), int(port), REACH_S)
        if why:
            raise UsageError(f"no Ray cluster at {address}: {why}", _HINT)
    trouble = _within(JOIN_S, lambda: ray.init(address=address, log_to_driver=False, logging_level="ERROR"))
    if trouble is not None:
        raise UsageError(f"no Ray cluster at {address}: {trouble}", _HINT)


def _within(limit_s: float, call: Callable[[], Any]) -> str | None:
    """What went wrong with `call`, if anything did, or that it took too long.

    Ray itself tries for minutes to reach a cluster, and takes no bound. A thread that is still at it does not
    keep this process from ending.
    """
    troubles: list[str] = []
    thread = threading.Thread(target=_noting, args=(call, troubles), daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        return f"no answer within {limit_s:g} s"
    return troubles[0] if troubles else None


def _noting(call: Callable[[], Any], troubles: list[str]) -> None:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever Ray raises becomes one line
        troubles.append(_line(error))


def _placed(ray: Any, address: str, workers: int | None) -> list[tuple[Any, str]]:
    """Actors, each with the name of its node.

    Raises:
        UsageError: there is no place for so many, or knee is not installed alike where they are.
    """
    places = _places(ray.nodes())
    count = len(set(places)) if workers is None else workers
    if not 1 <= count <= min(len(places), MOST_WORKERS):
        raise UsageError(
            f"{count} workers on a Ray cluster of {len(places)} cores",
            f"each holds a core, and there are at most {MOST_WORKERS}",
        )
    actors = [_actor_on(ray, node) for node in places[:count]]
    try:
        versions = ray.get([actor.version.remote() for actor in actors], timeout=JOIN_S)
    except ray.exceptions.GetTimeoutError as error:
        what = f"the Ray cluster at {address} has no room for {count} workers now"
        raise UsageError(what, "`ray status` shows which cores are taken") from error
    except ray.exceptions.RayError as error:
        what = f"a worker cannot start on the Ray cluster at {address}: {_line(error)}"
        raise UsageError(what, f"install knee {__version__} on every node") from error
    other = set(versions) - {__version__}
    if other:
        raise UsageError(f"a node has knee {min(other)}, this machine {__version__}", "install the same")
    return list(zip(actors, places, strict=False))


def _places(nodes: list[dict[str, Any]]) -> list[str]:
    """A node's name for each core that a worker can have, every node once before any is there again."""
    cores = {
        node["NodeID"]: int(node["Resources"].get("CPU", 0))
        for node in sorted(nodes, key=lambda node: str(node["NodeID"]))
        if node["Alive"]
    }
    laps = range(min(MOST_WORKERS, max(cores.values(), default=0)))
    return [node for lap in laps for node, has in cores.items() if has > lap]


def _actor_on(ray: Any, node: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415 - as above

    here = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
    return ray.remote(num_cpus=1, scheduling_strategy=here, concurrency_groups=GROUPS)(Relay).remote()


def _line(error: object) -> str:
    """The words of an error on one line, cut to what fits one."""
    words = " ".join(str(error).split()) or type(error).__name__
    return words if len(words) <= 300 else f"{words[:140]} … {words[-140:]}"
