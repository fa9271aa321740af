"""What a drive has noted since it was last asked, and its rows, as columns."""

from typing import TYPE_CHECKING

import numpy as np

from knee.core.requests import Ints, column

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
        self.quiet = _spread(_told(drive.quiet, 5))
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


def _spread(quiet: Ints) -> Ints:
    """(ns a step, decodes, steps, end of the last) from stretches of which each step may be `longer`."""
    first, longer, decodes, steps, end = quiet.T
    if not longer.any():
        return np.stack((first, decodes, steps, end)).T
    i = np.arange(steps.sum()) - np.repeat(np.cumsum(steps) - steps, steps)
    first, longer, decodes, end, n = (np.repeat(part, steps) for part in (first, longer, decodes, end, steps))
    left = n - 1 - i
    after = left * (first + longer * i) + longer * (left * (left + 1) // 2)
    return np.stack((first + longer * i, decodes, np.ones_like(i), end - after)).T
