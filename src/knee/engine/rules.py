"""The scheduler's rules by vLLM version, as far as they changed.

The catalog says since when a flag exists and what it defaults to; an engine of an older version has neither.
"""

import msgspec

from knee.catalog.flags import flag, flag_default, flag_status
from knee.core.errors import UsageError
from knee.engine.config import EngineConfig

CHANGED = (
    "scheduler_reserve_full_isl",
    "watermark",
    "max_num_queued_reqs",
    "max_num_queued_tokens",
    "async_scheduling",
)
OFF = {"scheduler_reserve_full_isl": False, "watermark": 0.0, "async_scheduling": False}


def at_version(config: EngineConfig, version: str) -> EngineConfig:
    """`config` as an engine of vLLM `version` would run it.

    What the version does not have yet is off, and what it has by default is on. (For async scheduling the
    default None of 0.14 and later means: on where it works.)

    Raises:
        UsageError: the version cannot be read, or `config` asks for something that it does not have.
    """
    rules: dict[str, object] = {}
    for name in CHANGED:
        item = flag(name)
        assert item is not None, name
        if flag_status(item, version) == "not yet":
            if name not in ("scheduler_reserve_full_isl", "async_scheduling") and getattr(config, name):
                raise UsageError(f"vLLM {version} has no {item.name}", f"it came with {item.since}")
            rules[name] = OFF.get(name)
        elif name in ("scheduler_reserve_full_isl", "async_scheduling"):
            default = flag_default(name, version)
            value = None if default is None else default.value
            rules[name] = True if value is None else bool(value)
    return msgspec.structs.replace(config, version=version, **rules)
