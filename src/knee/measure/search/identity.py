"""Whether the server that answers is still the one that answered before."""

from knee.core.snapshot import Snapshot
from knee.measure.target import Measured

Identity = dict[str, str]
"""Version, model and the engine's own account of its cache, as far as it was told."""

_TELLING = ("num_gpu_blocks", "block_size", "cache_dtype", "enable_prefix_caching")


def identity_of(measured: Measured) -> Identity:
    """What the snapshots of a point say the server is."""
    found: Identity = {}
    for snapshot in measured.snapshots:
        found |= _told(snapshot)
    return found


def restarted(measured: Measured) -> bool:
    """Whether a counter of any engine went backwards during the point."""
    return measured.window is not None and any(engine.reset for engine in measured.window.engines.values())


def difference(before: Identity, after: Identity) -> str:
    """What both tell and tell differently, as `name before -> after`; "" where nothing is."""
    names = sorted(name for name in before.keys() & after.keys() if before[name] != after[name])
    return ", ".join(f"{name} {before[name]} -> {after[name]}" for name in names)


def _told(snapshot: Snapshot) -> Identity:
    found = {"version": snapshot.version, "model": snapshot.model_name}
    for number, engine in snapshot.engines.items():
        found |= {f"{name} of engine {number}": engine.info[name] for name in _TELLING if name in engine.info}
    return {name: value for name, value in found.items() if value}
