import subprocess
import sys

import pytest

from knee.catalog.changes import all_changes, changes, diff
from knee.catalog.version import parse_version
from knee.core.errors import UsageError


def test_changes_are_oldest_first_and_say_something() -> None:
    versions = [parse_version(change.version) for change in all_changes()]
    assert versions == sorted(versions)
    assert all(len(change.text) > 10 and change.basis for change in all_changes())


def test_changes_between_two_versions_exclude_the_older_and_include_the_newer() -> None:
    between = changes("0.19.0", "0.21.0")
    assert {change.version for change in between} == {"0.20.0", "0.21.0"}
    assert changes("0.21.0", "0.21.0") == ()


def test_the_difference_of_two_versions() -> None:
    found = diff("0.19.1", "0.32.0")
    added = {flag.name for flag in found.flags_added}
    assert {"--max-num-queued-reqs", "--max-num-active-seqs", "--watermark"} <= added
    assert "--max-num-partial-prefills" in {flag.name for flag in found.flags_removed}
    moved = {(change.flag, change.tier): (change.before, change.after) for change in found.defaults}
    assert moved["--gpu-memory-utilization", ""] == (0.9, 0.92)
    assert moved["--max-num-batched-tokens", "huge"] == (8192, 16384)
    assert "vllm:admission_rejections_total" in {metric.name for metric in found.metrics_added}
    assert "vllm:prompt_tokens_recomputed_total" in {metric.name for metric in found.metrics_gone}
    assert "--disable-cascade-attn" in {flag.name for flag in found.flags_deprecated}
    assert found.notes == ()


def test_nothing_differs_between_a_version_and_itself() -> None:
    found = diff("0.32.0", "0.32.0")
    lists = (found.flags_added, found.flags_removed, found.defaults, found.metrics_added, found.metrics_gone)
    assert lists == ((), (), (), (), ())
    assert (found.log_lines, found.changes, found.flags_deprecated) == ((), (), ())


def test_a_version_outside_the_catalog_is_said_and_the_wrong_order_refused() -> None:
    assert "newer than the catalog" in diff("0.32.0", "0.99.0").notes[0]
    with pytest.raises(UsageError, match=r"0\.32\.0 is newer than 0\.27\.1"):
        diff("0.32.0", "0.27.1")


def test_the_help_page_does_not_read_the_catalog() -> None:
    code = (
        "import sys; from knee.cli.main import run; run(['--help']); "
        "from knee.catalog import load; sys.exit(len(load._loaded))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
