"""Accelerators: memory, bandwidth and dense arithmetic, each with its source."""

import msgspec

from knee.catalog.load import read_data
from knee.core.errors import UsageError


class Accelerator(msgspec.Struct, frozen=True, kw_only=True):
    """One device.

    `memory_gib` is the total that the driver leaves to a program, which is less than the name says;
    `memory_source` says where it was seen. `bandwidth_gb_s` is 10^9 bytes/s; the TFLOP/s are dense (without
    sparsity); `fp8_tflops` is None where the device has no FP8.
    """

    name: str
    aliases: tuple[str, ...]
    memory_gib: float
    memory_source: str
    bandwidth_gb_s: float
    bf16_tflops: float
    fp8_tflops: float | None
    source: str


def all_accelerators() -> tuple[Accelerator, ...]:
    """Every device of the catalog."""
    return read_data("accelerators.json", tuple[Accelerator, ...])


def accelerator(name: str) -> Accelerator:
    """The device called `name`, like `H100`, `NVIDIA H100 80GB HBM3` or `a100-40gb`.

    Raises:
        UsageError: the catalog has no such device.
    """
    spelled = "-".join(name.lower().replace("_", "-").split())
    for prefix in ("nvidia-", "amd-instinct-", "amd-", "geforce-", "tesla-"):
        spelled = spelled.removeprefix(prefix)
    by_alias = {alias: item for item in all_accelerators() for alias in item.aliases}
    found = by_alias.get(spelled)
    if found is None:
        inside = [alias for alias in by_alias if spelled.startswith(f"{alias}-")]
        found = by_alias[max(inside, key=len)] if inside else None
    if found is None:
        known = ", ".join(item.name for item in all_accelerators())
        raise UsageError(f"no accelerator called {name!r} in the catalog", f"known: {known}")
    return found
