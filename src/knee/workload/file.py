"""A workload from a file: one that was saved, or what a trace amounts to."""

from collections import Counter
from pathlib import Path

import msgspec
import numpy as np

from knee.core.errors import InputError
from knee.workload.shapes import draw_shapes
from knee.workload.spec import Arrivals, Lengths, Replay, Workload
from knee.workload.trace import Trace, read_trace

MOST_PAIRS = 20_000
"""Different (prompt, output) pairs kept of a trace; of more, this many are taken at even distances."""


def load_workload(path: Path, replay: bool, arrivals: Arrivals) -> tuple[Workload, Trace | None]:
    """The workload in `path`, with the trace behind it where it is one.

    A saved workload is taken as it is. Of a trace, `replay` takes the requests as they came; else their
    lengths are drawn, prompt and output together, and come as `arrivals` say.

    Raises:
        InputError: the file cannot be read or is neither.
        UsageError: it holds a workload that cannot be.
    """
    saved = None if replay else _saved(path)
    if saved is not None:
        return saved, None
    trace = read_trace(path)
    prompt, output = (Lengths(mean=float(np.mean(c))) for c in (trace.prompt_tokens, trace.output_tokens))
    if replay:
        whence = Replay(path=str(path.resolve()), sha256=trace.sha256)
        return Workload(prompt_tokens=prompt, output_tokens=output, replay=whence), trace
    step = -(-len(trace) // MOST_PAIRS)
    lengths = zip(trace.prompt_tokens[::step].tolist(), trace.output_tokens[::step].tolist(), strict=True)
    counted = sorted(Counter(lengths).items())
    return (
        Workload(
            prompt_tokens=prompt,
            output_tokens=output,
            arrivals=arrivals,
            pairs=tuple(pair for pair, _ in counted),
            pair_weights=tuple(float(times) for _, times in counted),
        ),
        trace,
    )


def _saved(path: Path) -> Workload | None:
    """The workload saved in `path`; None where the file is something else."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    try:
        workload = msgspec.json.decode(data, type=Workload)
    except (msgspec.MsgspecError, RecursionError):
        return None
    draw_shapes(workload, [np.random.default_rng(0)] * 3)  # raises where it cannot be
    return workload
