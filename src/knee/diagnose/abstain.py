"""When the values do not decide: between which limits, and which measurement would."""

from collections.abc import Sequence

from knee.diagnose.rules.progress import LEAST_S
from knee.diagnose.rules.state import drained, kv_full, queues
from knee.diagnose.signals import Signals
from knee.diagnose.verdict import Binding, Diagnosis, Limit


def undecided(s: Signals, found: Sequence[Binding]) -> Diagnosis | None:
    """The abstention that the values call for; None where they say that nothing binds."""
    if s.waiting is None and s.queue_s is None:
        return _cannot(
            "neither waiting requests nor queue times are shown", (), "a page with vllm:num_requests_waiting"
        )
    waits = (queues(s) or (s.waiting is not None and s.waiting.last >= 1)) and not drained(s)
    if not waits:
        return None
    candidates = [binding.limit for binding in found] + [limit for limit in _possible(s) if limit]
    return _cannot(_why(s), tuple(dict.fromkeys(candidates)), _decide(s))


def _possible(s: Signals) -> list[Limit]:
    possible: list[Limit] = []
    running, kv = s.queued_running or s.running, s.queued_kv or s.kv
    if kv is None or kv.high >= 0.5 or kv_full(s):
        possible.append("kv_memory")
    if s.cap is None or running is None:
        possible.append("sequence_cap")
    if s.fill is None:
        possible.append("token_budget")
    possible.append("compute")
    if s.generated is None or (running is not None and running.mean < 1):
        possible.append("stalled")
    return possible


def _why(s: Signals) -> str:
    waiting = f"{s.waiting.mean:.1f}" if s.waiting else "some"
    ran, kv = s.queued_running or s.running, s.queued_kv or s.kv
    running = f"{ran.mean:.1f}" if ran else "an unknown number"
    usage = f"{kv.mean:.0%}" if kv else "an unknown share"
    return (
        f"{waiting} requests wait, {running} run on {usage} of the KV cache: that has more than one reading"
    )


def _decide(s: Signals) -> str:
    wanted: list[str] = []
    if s.samples < 2 or s.seconds < LEAST_S:
        wanted.append(
            "one more window: a single instant cannot tell a queue from a ramp (give a URL, or two pages)"
        )
    if s.cap is None:
        wanted.append("the server's max_num_seqs (its log, or --flag max_num_seqs=N)")
    if s.queue_s is None or s.steps is None:
        wanted.append("queue, prefill and iteration_tokens histograms (a /metrics page instead of a log)")
    elif s.budget is None:
        wanted.append("the server's max_num_batched_tokens")
    return "; ".join(wanted) or "a sweep around this rate: what no longer rises with the rate binds"


def _cannot(why: str, candidates: tuple[Limit, ...], decide: str) -> Diagnosis:
    return Diagnosis(answer="cannot tell", limit=None, why=why, candidates=candidates, decide=decide)
