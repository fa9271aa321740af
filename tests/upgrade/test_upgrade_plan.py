"""What an upgrade breaks or moves, from the catalog; and where it is used, by file and line."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knee.catalog.load import releases
from knee.catalog.metrics import all_metrics, is_exposed
from knee.cli.main import run
from knee.core.errors import InputError, UsageError
from knee.deploy.series import known, series_in
from knee.upgrade.plan import make_plan
from knee.upgrade.scan import scan

SCANNED = Path(__file__).parents[1] / "data" / "upgrade" / "scan"


def found(after: str = "0.32.0") -> set[tuple[str, int, str]]:
    return {(Path(hit.file).name, hit.line, hit.name) for hit in scan(SCANNED, after).hits}


def test_every_use_and_no_look_alike() -> None:
    assert found() == {
        ("dashboard.json", 3, "vllm:gpu_cache_usage_perc"),
        ("dashboard.json", 4, "vllm:time_per_output_token_seconds_bucket"),
        ("dashboard.json", 7, "vllm:gpu_cache"),
        ("alerts.yaml", 5, "vllm:gpu_cache_usage_perc"),
        ("alerts.yaml", 10, "ray_vllm_gpu_cache_usage_perc"),
        ("deployment.yaml", 19, "--guided-decoding-backend"),
        ("deployment.yaml", 21, "--task"),
        ("deployment.yaml", 4, "--guided-decoding-backend"),
        ("compose.yaml", 9, "--swap-space"),
        ("serve.sh", 6, "--disable-log-requests"),
        ("serve.sh", 9, "--preemption-mode"),
        ("serve.sh", 9, "--disable-cascade-attn"),
    }


def test_what_stands_on_each_line() -> None:
    for hit in scan(SCANNED, "0.32.0").hits:
        line = Path(hit.file).read_text().splitlines()[hit.line - 1].replace("_", "-")
        assert hit.name.replace("_", "-") in line


def test_in_the_version_itself_nothing_goes_away() -> None:
    gone = {name for _, _, name in found("0.10.0")}
    assert gone == set()


def test_new_names() -> None:
    by_name = {hit.name: hit.instead for hit in scan(SCANNED, "0.32.0").hits}
    assert by_name["vllm:gpu_cache_usage_perc"] == "vllm:kv_cache_usage_perc"
    assert by_name["ray_vllm_gpu_cache_usage_perc"] == "ray_vllm_kv_cache_usage_perc"
    assert by_name["vllm:time_per_output_token_seconds_bucket"] == "vllm:inter_token_latency_seconds_bucket"
    assert by_name["--task"] == "--runner"


@settings(deadline=None)
@given(
    st.sampled_from([m.name for m in all_metrics() if m.name.startswith("vllm:")]),
    st.text("abcz_:", max_size=3),
    st.text("abcz_:", max_size=3),
)
def test_only_whole_names_count(name: str, before: str, after: str) -> None:
    seen = [found.name for found in series_in(f"sum({before}{name}{after}) > 1")]
    if not before and not after:
        assert seen == [name]
    elif before:
        assert name not in seen
    assert all(one == f"{before}{name}{after}" for one in seen)


def test_samples_of_a_histogram_are_its_own() -> None:
    entry = known("vllm:time_to_first_token_seconds_bucket")
    assert entry is not None
    assert (entry[0].canonical, entry[1]) == ("time_to_first_token_seconds", "_bucket")
    assert known("vllm:unheard_of") is None


def test_a_plan_by_hand() -> None:
    plan = make_plan("0.19.0", "0.32.0", "--max-num-seqs 64 --swap-space=4 --calculate-kv-scales -tp 2")
    fates = {note.flag: (note.fate, note.since) for note in plan.flags}
    assert fates == {
        "--max-num-seqs": ("kept", ""),
        "--swap-space": ("removed", "0.18.0"),
        "--calculate-kv-scales": ("removed", "0.28.0"),
        "--tensor-parallel-size": ("not in the catalog", ""),
    }
    pins = {(note.flag, note.tier): note.pin for note in plan.defaults}
    assert pins["--gpu-memory-utilization", ""] == "--gpu-memory-utilization 0.9"
    assert pins["--max-num-batched-tokens", "huge"] == "--max-num-batched-tokens 8192"
    assert ("--max-num-seqs", "huge") not in pins
    assert plan.breaks
    assert any("scheduler_reserve_full_isl" in c.text for c in make_plan("0.18.0", "0.19.0").changes)


def test_a_pinned_default_does_not_move() -> None:
    plan = make_plan("0.19.0", "0.20.0", "--gpu_memory_utilization=0.9")
    assert [note.flag for note in plan.defaults if note.flag == "--gpu-memory-utilization"] == []


def test_a_tier_leaves_the_others_out() -> None:
    tiers = {note.tier for note in make_plan("0.27.0", "0.28.0", tier="large").defaults}
    assert tiers <= {"", "large"}


@settings(deadline=None)
@given(st.sampled_from(releases().inspected[6:]))
def test_the_same_version_changes_nothing(version: str) -> None:
    plan = make_plan(version, version)
    assert (plan.flags_gone, plan.metrics_gone, plan.defaults, plan.changes) == ((), (), (), ())
    assert not plan.breaks


@settings(deadline=None)
@given(st.data())
def test_a_series_is_gone_exactly_where_the_page_lost_it(data: st.DataObject) -> None:
    versions = releases().inspected[6:]
    low = data.draw(st.integers(0, len(versions) - 2))
    old, new = versions[low], versions[data.draw(st.integers(low + 1, len(versions) - 1))]
    wanted = {m.name for m in all_metrics() if is_exposed(m, old, "V1") and not is_exposed(m, new, "V1")}
    assert set(make_plan(old, new).metrics_gone) == wanted


def command(*arguments: str) -> int:
    return run(["upgrade", "plan", *arguments])


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--from", "0.31.0", "--to", "0.32.0") == 0
    assert command("--from", "0.10.0", "--to", "0.32.0", "--scan", str(SCANNED)) == 1
    assert command("--from", "0.32.0", "--to", "0.99.0") == 5
    assert "newer than the catalog" in capsys.readouterr().out
    assert command("--from", "0.32.0", "--to", "0.10.0") == 2
    assert "is newer than" in capsys.readouterr().err
    assert command("--from", "new", "--to", "0.10.0") == 2
    assert command("--from", "0.10.0", "--to", "0.11.0", "--tier", "tiny") == 2
    assert command("--from", "0.10.0", "--to", "0.11.0", "--scan", "/nowhere") == 3


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--from", "0.10.0", "--to", "0.32.0", "--scan", str(SCANNED), "--json") == 1
    plan = json.loads(capsys.readouterr().out)
    assert plan["scanned"] == 6
    assert {"file", "line", "kind", "name", "what", "instead", "breaks"} == set(plan["hits"][0])


def test_odd_files(tmp_path: Path) -> None:
    (tmp_path / "binary.bin").write_bytes(b"vllm:gpu_cache_usage_perc\0")
    (tmp_path / "latin.txt").write_bytes(b"\xe9 vllm:gpu_cache_usage_perc")
    (tmp_path / "broken.yaml").write_text("vllm: [\n  - --guided-decoding-backend\n")
    (tmp_path / "huge.txt").write_bytes(b"vllm:gpu_cache_usage_perc\n" * 200_000)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x").write_text("vllm:gpu_cache_usage_perc")
    seen = scan(tmp_path, "0.32.0")
    assert {(Path(hit.file).name, hit.line) for hit in seen.hits} == {("latin.txt", 1), ("broken.yaml", 2)}
    assert seen.skipped == (str(tmp_path / "huge.txt"),)
    with pytest.raises(InputError, match="does not exist"):
        scan(tmp_path / "absent", "0.32.0")
    with pytest.raises(UsageError):
        scan(tmp_path, "new")
