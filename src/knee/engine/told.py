"""What a drive has noted since it was last asked, and its rows, as columns."""

from typing import TYPE_CHECKING

import numpy as np

from knee.core.requests import Ints, column
from knee.engine.config import StepCost

if TYPE_CHECKING:
    from knee.engine.plain import Plain
    from knee.engine.skip import Skip


class Told:
    """Takes what `drive` has noted; it starts afresh.

    `mixed`: steps that were planned: (ns it took, decodes, its end, and the rows before which all have been
    scheduled, or have a token, unless they were refused). `quiet`: stretches of steps alike: (ns a step,
    decodes, steps, end of the last). `late`: (gap before a token of a row that was preempted, when).
    `hits`: (row, prompt tokens found in the cache). `lost`: rows that were preempted.
    """

    def __init__(self, drive: "Skip | Plain") -> None:
        self.mixed, self.hits, self.lost = _told(drive.mixed, 5), _told(drive.hits, 2), _told(drive.lost)
        self.quiet = _quiet(drive.config.step_cost, _told(drive.quiet, 3), _told(drive.firsts))
        before, step = _told(drive.late, 2).T
        at = self.mixed[step, 2]
        self.late = np.stack((at - before, at)).T
        columns = drive.columns
        self.due, self.last = column(columns.due), column(columns.last)[: drive.arrived]
        self.prompt, self.output = column(columns.prompt), column(columns.output)


def _told(noted: list[int], width: int = 0) -> Ints:
    told = column(noted)
    noted.clear()
    return told.reshape(-1, width) if width else told


def _quiet(cost: StepCost, noted: Ints, first: Ints) -> Ints:
    """(ns a step, decodes, steps, end of the last) from (decodes, steps, end of the last).

    Where context costs, each step is longer than the one before; `first` is what the first took.
    """
    decodes, steps, end = noted.T
    if not cost.per_context_token_ns:
        return np.stack((cost.fixed_ns + cost.per_seq_ns * decodes, decodes, steps, end)).T
    i = np.arange(steps.sum()) - np.repeat(np.cumsum(steps) - steps, steps)
    first, decodes, end, n = (np.repeat(part, steps) for part in (first, decodes, end, steps))
    longer, left = cost.per_context_token_ns * decodes, n - 1 - i
    after = left * (first + longer * i) + longer * (left * (left + 1) // 2)
    return np.stack((first + longer * i, decodes, np.ones_like(i), end - after)).T
