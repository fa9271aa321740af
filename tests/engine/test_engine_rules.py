import msgspec
import pytest

from knee.core.errors import UsageError
from knee.engine.config import REFERENCE
from knee.engine.rules import at_version


@pytest.mark.parametrize(
    ("version", "whole_prompt", "ahead"),
    [("0.10.2", False, False), ("0.14.0", False, True), ("0.19.0", True, True), ("0.32.0", True, True)],
)
def test_rules_follow_the_catalog(version: str, whole_prompt: bool, ahead: bool) -> None:
    engine = at_version(REFERENCE, version)
    assert engine.scheduler_reserve_full_isl is whole_prompt
    assert engine.async_scheduling is ahead
    assert engine.version == version


def test_a_version_without_the_flag_says_since_when_there_is_one() -> None:
    limited = msgspec.structs.replace(REFERENCE, max_num_queued_reqs=100)
    assert at_version(limited, "0.29.0").max_num_queued_reqs == 100
    with pytest.raises(UsageError, match=r"0\.28\.0 has no --max-num-queued-reqs \(it came with 0\.29\.0\)"):
        at_version(limited, "0.28.0")
    with pytest.raises(UsageError, match="watermark"):
        at_version(msgspec.structs.replace(REFERENCE, watermark=0.1), "0.20.0")
    with pytest.raises(UsageError, match="not a version"):
        at_version(REFERENCE, "newest")
