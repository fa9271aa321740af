"""Rules and dashboard: what promtool makes of them, for old and new versions, with and without a knee."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
import yaml

from knee.catalog.metrics import all_metrics, is_exposed
from knee.cli.main import run
from knee.core.lock import Lock, write_lock
from knee.core.point import Knee
from knee.core.slo import parse_slo
from knee.diagnose.alerts import rule_groups
from knee.diagnose.promql import Names, Thresholds, thresholds_of

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="needs the program promtool (Debian package prometheus)"
)
VERSIONS = ["0.8.0", "0.9.2", "0.10.2", "0.12.0", "0.20.0", "0.33.0"]
SLO = parse_slo("ttft p90 < 2s, itl p99 < 60ms")


def lock() -> Lock:
    knee = Knee(slo=SLO, holds=19.0, breaks=20.0, estimate=19.4, confidence=0.95, reason="")
    return Lock(vllm_version="0.32.0", model="m", slo=SLO, knee=knee)


def promtool(*arguments: str, at: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PROMTOOL), *arguments], cwd=at, capture_output=True, text=True, timeout=60, check=False
    )


@needs_promtool
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("measured", [False, True])
def test_promtool_accepts_the_rules_and_every_alert_fires_in_its_scene_only(
    version: str, measured: bool, tmp_path: Path
) -> None:
    write_lock(tmp_path / "knee.lock", lock())
    more = ["--from", str(tmp_path / "knee.lock")] if measured else []
    written = ["--out", str(tmp_path / "rules.yml"), "--tests", str(tmp_path / "tests.yml")]
    assert run(["rules", "--vllm-version", version, *more, *written]) == 0
    checked = promtool("check", "rules", "rules.yml", at=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    tested = promtool("test", "rules", "tests.yml", at=tmp_path)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    scenes = [test["name"] for test in yaml.safe_load((tmp_path / "tests.yml").read_text())["tests"]]
    rules = yaml.safe_load((tmp_path / "rules.yml").read_text())["groups"][0]["rules"]
    assert set(scenes) == {"healthy"} | {rule["alert"] for rule in rules if "alert" in rule}


@needs_promtool
def test_a_rule_that_does_not_fire_fails_its_test(tmp_path: Path) -> None:
    """The tests written along can fail: with another threshold they do."""
    assert run(["rules", "--out", str(tmp_path / "rules.yml"), "--tests", str(tmp_path / "tests.yml")]) == 0
    text = (tmp_path / "rules.yml").read_text()
    (tmp_path / "rules.yml").write_text(text.replace("knee:kv_usage:max > 0.9", "knee:kv_usage:max > 0.995"))
    assert promtool("test", "rules", "tests.yml", at=tmp_path).returncode != 0


def test_thresholds_come_from_the_knee() -> None:
    limits = thresholds_of(lock())
    assert (limits.rate, limits.ttft_s, limits.ttft_q, limits.itl_s, limits.itl_q) == (
        19.0,
        2.0,
        0.9,
        0.06,
        0.99,
    )
    text = json.dumps(rule_groups(Names(version="0.32.0"), limits))
    assert "> 19" in text
    assert "histogram_quantile(0.9," in text
    assert thresholds_of(None) == Thresholds()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("command", ["rules", "dashboard"])
def test_every_series_is_one_that_the_version_shows(
    command: str, version: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, "--vllm-version", version, "--json"]) == 0
    used = set(re.findall(r"vllm:[a-z0-9_]+", capsys.readouterr().out))
    assert used
    shown = {item.name for item in all_metrics() if is_exposed(item, version)}
    plain = {name if name in shown else re.sub(r"_(bucket|sum|count)$", "", name) for name in used}
    assert plain <= shown


def test_a_dashboard_has_its_panels_thresholds_and_queries(tmp_path: Path) -> None:
    write_lock(tmp_path / "knee.lock", lock())
    out = tmp_path / "d.json"
    assert (
        run(
            [
                "dashboard",
                "--from",
                str(tmp_path / "knee.lock"),
                "--out",
                str(out),
                "--selector",
                'namespace="p"',
            ]
        )
        == 0
    )
    built = json.loads(out.read_text())
    panels = {panel["title"]: panel for panel in built["panels"]}
    assert len({json.dumps(panel["gridPos"]) for panel in built["panels"]}) == len(built["panels"])
    steps = panels["Time to first token"]["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert steps[-1] == {"color": "red", "value": 2.0}
    assert (
        panels["Requests/s of a replica"]["fieldConfig"]["defaults"]["thresholds"]["steps"][-1]["value"]
        == 19.0
    )
    queries = [target["expr"] for panel in built["panels"] for target in panel["targets"]]
    assert all('namespace="p"' in query and 'job=~"$job"' in query for query in queries)
    assert not any(
        re.search(r"sum by \([^)]*\) \(vllm:kv_cache", query) for query in queries
    )  # usage does not add up


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["rules", "--vllm-version", "new"], "not a version"),
        (["rules", "--selector", "job"], "not a selector"),
        (["rules", "--tests", "t.yml"], "needs --out"),
        (["dashboard", "--from", "nowhere"], "nowhere"),
        (["dashboard", "--out", "/nowhere/d.json"], "cannot write"),
    ],
)
def test_wrong_input(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) in (2, 3)
    assert says in capsys.readouterr().err


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rules", "--json"]) == 0
    assert "groups" in msgspec.json.decode(capsys.readouterr().out)
