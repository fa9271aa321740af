"""Weighted samples in time order: what percentiles, intervals and batch means are made from."""

import msgspec

from knee.stats.percentile import Floats


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """`values` (inf where it never came), each `weights` times, seen at the instants `at` in seconds."""

    at: Floats
    values: Floats
    weights: Floats

    def __len__(self) -> int:
        return len(self.values)


Window = tuple[float, float]
"""The stretch of time, in seconds, that samples come from."""
