"""One of the processes that share a load: `python -m knee.measure.client.worker`, spoken to over its pipes.

It reads a `Job`, says `Ready`, reads when to begin, and then tells a `Delta` four times a second until it is
told to stop or its own time is over. Messages are MessagePack with their length in front.
"""

import asyncio
import signal
import struct
import sys
from itertools import chain
from typing import Any

import msgspec

from knee.core.clock import RealClock
from knee.core.requests import RequestRecord
from knee.http1.client import private_loop
from knee.http1.files import allow_many_files
from knee.http1.origin import Origin
from knee.http1.pool import Pool, Timeouts
from knee.measure.client.books import Books
from knee.measure.client.endpoints import Ask, form, head_of
from knee.measure.client.load import Load
from knee.measure.client.memory import quiet_memory
from knee.measure.client.priority import first_in_line
from knee.measure.client.prompts import Prompts, Vocabulary
from knee.measure.client.ready import Part, make_ready
from knee.measure.target import ClientHealth, Offer, Stop

EVERY_S = 0.25
LENGTH = struct.Struct("<I")
LONGEST = 1 << 30


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """All that a worker needs. `headers` may hold a key, so a job goes to workers and nowhere else."""

    origin: Origin
    ask: Ask
    headers: dict[str, str]
    timeouts: Timeouts
    vocabulary: Vocabulary
    offer: Offer
    part: Part = Part()
    shared_entropy: int = 0
    record: bool = False
    realtime: bool = False


class Order(msgspec.Struct, frozen=True):
    """From the crew: begin at `start_ns` on the worker's own clock, or (0) stop for the reason `why`."""

    start_ns: int = 0
    why: Stop = ""


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """What came to pass in a worker since it last told; rows and gaps as `Books` gives and takes them."""

    closed: bytes
    open: bytes
    gaps: bytes
    chunk_ns: bytes
    causes: dict[str, int]
    said: dict[str, str]
    notes: dict[str, int]
    retry_after: dict[str, int]
    cached_tokens: int
    checked_prompt_tokens: int
    off_prompt_tokens: int
    records: list[RequestRecord]
    in_flight: int
    measured_ended: bool
    stopped: Stop = ""
    final: bool = False
    end_of_load_ns: int = -1
    health: ClientHealth | None = None


def pack(message: Any) -> bytes:
    """A message with its length in front."""
    data = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(data)) + data


async def read_message(reader: asyncio.StreamReader) -> bytes:
    """The next message, without its length; asyncio.IncompleteReadError where the other side is gone."""
    return await reader.readexactly(length_of(await reader.readexactly(LENGTH.size)))


def length_of(head: bytes) -> int:
    """How many bytes of message follow its first LENGTH.size."""
    (length,) = LENGTH.unpack(head)
    if length > LONGEST:
        raise ValueError(f"a message of {length} bytes")
    return int(length)


def unpack(message: bytes, kind: type[Any]) -> Any:
    """What a message holds."""
    return msgspec.msgpack.decode(message, type=kind)


def delta_of(load: Load, health: ClientHealth | None = None) -> Delta:
    """What came to pass since this was last called; with `health` it is the last of its kind."""
    books = load.books
    gaps, chunk_ns = books.take_gaps()
    taken = Delta(
        closed=load.take_closed().tobytes(),
        open=load.still_open().tobytes(),
        gaps=gaps.tobytes(),
        chunk_ns=chunk_ns.tobytes(),
        causes=dict(books.causes),
        said=dict(books.said),
        notes=dict(books.notes),
        retry_after=dict(books.retry_after),
        cached_tokens=books.cached_tokens,
        checked_prompt_tokens=books.checked_prompt_tokens,
        off_prompt_tokens=books.off_prompt_tokens,
        records=load.take_finished(),
        in_flight=load.in_flight,
        measured_ended=load.all_measured_ended(),
        stopped=load.stopped,
        final=health is not None,
        end_of_load_ns=load.end_of_load_ns,
        health=health,
    )
    _forget(books)
    return taken


def _forget(books: Books) -> None:
    for counted in (books.causes, books.notes, books.retry_after):
        counted.clear()
    books.said.clear()
    books.cached_tokens = books.checked_prompt_tokens = books.off_prompt_tokens = 0


async def serve() -> None:
    """Do one job, as the pipes say."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    job: Job = unpack(await read_message(reader), Job)
    clock = RealClock()
    prompts = Prompts(job.vocabulary, shared_entropy=job.shared_entropy)
    head = head_of(job.origin, job.ask, job.headers)
    requests = make_ready(job.offer, prompts, form(job.ask), head, job.part)
    requests = chain([next(requests)], requests)
    _tell(b"")
    order: Order = unpack(await read_message(reader), Order)
    load = Load(
        job.offer,
        requests,
        Pool(job.origin, clock, job.timeouts, stamps=True),
        clock,
        order.start_ns,
        ask=job.ask,
        record=job.record,
        part=job.part,
    )
    beside = [asyncio.ensure_future(_obey(reader, load)), asyncio.ensure_future(_report(load))]
    begun_ns, cpu_ns = clock.monotonic_ns(), clock.cpu_ns()
    with first_in_line(job.realtime):
        await load.run()
    for task in beside:
        task.cancel()
    await asyncio.gather(*beside, return_exceptions=True)
    share = (clock.cpu_ns() - cpu_ns) / max(1, clock.monotonic_ns() - begun_ns)
    health = msgspec.structs.replace(load.health(), cpu_share=share, notes=())
    _tell(pack(delta_of(load, health)))


async def _obey(reader: asyncio.StreamReader, load: Load) -> None:
    try:
        order: Order = unpack(await read_message(reader), Order)
    except asyncio.IncompleteReadError:  # the crew is gone, and with it everyone who could want the books
        load.stop("interrupted")
        return
    load.stop(order.why)


async def _report(load: Load) -> None:
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(EVERY_S)
        await loop.run_in_executor(None, _tell, pack(delta_of(load)))


def _tell(data: bytes) -> None:
    """Write to the crew; b"" is the word that we are ready."""
    sys.stdout.buffer.write(data or LENGTH.pack(0))
    sys.stdout.buffer.flush()


def main() -> None:
    """Run as a process. Ctrl-C is the crew's to handle; it reaches the whole process group."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    allow_many_files()
    with private_loop() as loop, quiet_memory():
        loop.run_until_complete(serve())


if __name__ == "__main__":
    main()
