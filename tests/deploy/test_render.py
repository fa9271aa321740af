"""Rendered manifests: goldens, Kubernetes' own schemas, a reason beside every number, a clean lint."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import msgspec
import pytest
import typer
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.deploy.measured import lock_of

from knee.catalog.flags import flag, flag_status
from knee.catalog.load import releases
from knee.cli.gateway import gateway as gateway_command
from knee.cli.main import run
from knee.core.errors import UsageError
from knee.core.lock import Lock, read_lock
from knee.deploy.arguments import flags_in
from knee.deploy.check import check
from knee.deploy.commented import Because
from knee.deploy.manifests import load_text
from knee.deploy.naming import Site, name_of
from knee.deploy.render import Rendered, render, text_of
from knee.deploy.serving import gpus_of, serve_arguments, told_by_log
from knee.deploy.sizing import Asked
from knee.deploy.sources import Loaded
from knee.deploy.startup import read_startup
from knee.policy.limits import limits_from_knee

GOLDEN = Path(__file__).parents[1] / "data" / "deploy"
CUSTOM = {"ScaledObject", "PodMonitor", "InferencePool", "HTTPRoute"}
CASES: dict[str, dict[str, Any]] = {
    "keda": {},
    "hpa": {"autoscaler": "hpa", "namespace": "serving"},
    "pool": {"pool": True, "namespace": "serving"},
    "old-vllm": {"version": "0.16.0", "autoscaler": "none"},
}


def made(
    *,
    version: str = "0.32.0",
    flags: dict[str, str] | None = None,
    startup_s: float | None = 96.4,
    asked: Asked | None = None,
    namespace: str = "",
    autoscaler: str = "keda",
    pool: bool = False,
) -> Rendered:
    lock = lock_of(version, flags, startup_s=startup_s)
    return render(
        lock, site_of(lock, namespace, pool), asked or Asked(peak_rate=100), autoscaler=autoscaler, pool=pool
    )


def site_of(lock: Lock, namespace: str = "", pool: bool = False) -> Site:
    name = name_of(lock.model)
    return Site(
        name=name,
        namespace=namespace,
        image=f"vllm/vllm-openai:v{lock.vllm_version}",
        gateway_image="knee:0.1.0",
        gpus=gpus_of(lock),
        endpoint_picker=f"{name}-epp" if pool else "",
    )


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    path = GOLDEN / f"{name}.yaml"
    text = text_of(made(**CASES[name]))
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        pytest.fail(f"{path} was missing and is written now; read it and run again")
    assert text == path.read_text(), f"remove {path} and run again to write it anew"


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kubernetes", ["1.30", "1.37"])
def test_kubernetes_takes_it_in_strict_mode(name: str, kubernetes: str) -> None:
    seen = set()
    for item in yaml.safe_load_all(text_of(made(**CASES[name]))):
        seen.add(item["kind"])
        if item["kind"] in CUSTOM:
            with pytest.raises(kubernetes_validate.SchemaNotFoundError):
                kubernetes_validate.validate(item, kubernetes, strict=True)
        else:
            kubernetes_validate.validate(item, kubernetes, strict=True)
    assert {"Deployment", "PodDisruptionBudget"} <= seen


def numbers(value: Any, path: str = "") -> Iterator[str]:
    """Paths of numbers that have no reason."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from numbers(item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from numbers(item, f"{path}[{index}]")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path


@pytest.mark.parametrize("name", CASES)
def test_every_number_has_a_reason(name: str) -> None:
    rendered = made(**CASES[name])
    assert [path for item in rendered.objects for path in numbers(item)] == []


def reasons(value: Any) -> Iterator[str]:
    if isinstance(value, Because):
        yield value.why
        yield from reasons(value.value)
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from reasons(item)


@pytest.mark.parametrize("name", CASES)
def test_the_reasons_reach_the_text(name: str) -> None:
    rendered = made(**CASES[name])
    text = text_of(rendered)
    found = [why for item in rendered.objects for why in reasons(item)]
    assert len(found) > 30
    assert [why for why in found if f"# {why}" not in text] == []


@settings(deadline=None, max_examples=60)
@given(
    version=st.sampled_from(releases().inspected[10:]),
    startup_s=st.one_of(st.none(), st.floats(1, 3000)),
    longest=st.one_of(st.none(), st.floats(1, 3600)),
    peak=st.one_of(st.none(), st.floats(1, 5000)),
    low=st.integers(1, 8),
    tensor=st.sampled_from(["1", "2", "8"]),
    namespace=st.sampled_from(["", "serving"]),
    autoscaler=st.sampled_from(["keda", "hpa", "none"]),
    pool=st.booleans(),
)
def test_our_own_lint_finds_nothing(
    *,
    version: str,
    startup_s: float | None,
    longest: float | None,
    peak: float | None,
    low: int,
    tensor: str,
    namespace: str,
    autoscaler: str,
    pool: bool,
) -> None:
    asked = Asked(startup_s=startup_s, longest_response_s=longest, peak_rate=peak, min_replicas=low)
    text = text_of(
        made(
            version=version,
            flags={"tensor_parallel_size": tensor, "enable_prefix_caching": "True"},
            startup_s=None,
            asked=asked,
            namespace=namespace,
            autoscaler="none" if pool and autoscaler == "hpa" else autoscaler,
            pool=pool,
        )
    )
    report = check(Loaded(manifests=load_text(text, "rendered")), startup_s=startup_s)
    assert report.findings == ()
    assert report.engines == 1
    assert report.unknown_kinds == ()


@pytest.mark.parametrize("version", releases().inspected[10:])
def test_only_flags_that_this_version_has(version: str) -> None:
    rendered = made(version=version)
    text = text_of(rendered)
    args = next(
        item["spec"]["template"]["spec"]["containers"][0]["args"]
        for item in yaml.safe_load_all(text)
        if item["kind"] == "Deployment"
    )
    for given_flag in flags_in(args):
        known = flag(given_flag.name)
        assert known is None or flag_status(known, version) == "available", given_flag.name


def test_before_there_was_a_drain_the_wait_comes_before_sigterm() -> None:
    text = text_of(made(**CASES["old-vllm"]))
    assert '"--shutdown-timeout"' not in text
    assert "- --shutdown-timeout" not in text
    pods = next(i for i in yaml.safe_load_all(text) if i["kind"] == "Deployment")["spec"]["template"]["spec"]
    assert pods["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"] == 25
    assert pods["terminationGracePeriodSeconds"] == 40


def test_an_unknown_version_is_said() -> None:
    rendered = made(version="")
    assert any("version is not known" in note for note in rendered.notes)
    assert "--max-num-queued-reqs" in text_of(rendered)


def test_secrets_and_own_flags_do_not_reach_the_manifest() -> None:
    text = text_of(
        made(flags={"api_key": "hunter2", "port": "9999", "enforce_eager": "True", "seed": "None"})
    )
    assert "hunter2" not in text
    server = next(i for i in yaml.safe_load_all(text) if i["kind"] == "Deployment")
    words = server["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "9999" not in words
    assert "--enforce-eager" in words
    assert "--seed" not in words


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3-1-8b-instruct"),
        ("./tiny", "tiny"),
        ("/models/vllm-thing", "m-vllm-thing"),
        ("0x", "m-0x"),
        ("", "m-model"),
        ("模型", "m-model"),
        ("a" * 80, "a" * 30),
    ],
)
def test_names(model: str, name: str) -> None:
    assert name_of(model) == name


@pytest.mark.parametrize("bad", ["vllm-x", "A", "-a", "a" * 41, "a_b"])
def test_bad_names(bad: str) -> None:
    with pytest.raises(UsageError):
        name_of("m", bad)


def test_unknown_choices() -> None:
    with pytest.raises(UsageError, match="unknown autoscaler"):
        made(autoscaler="cron")
    with pytest.raises(UsageError, match="hand-over"):
        made(autoscaler="hpa", pool=True)


def test_the_gateway_takes_its_arguments() -> None:
    items = list(yaml.safe_load_all(text_of(made())))
    gateway = next(
        i for i in items if i["metadata"]["name"].endswith("-gateway") and i["kind"] == "Deployment"
    )
    container = gateway["spec"]["template"]["spec"]["containers"][0]
    assert container["command"] == ["knee", "gateway"]
    command = typer.Typer(add_completion=False)
    command.command()(gateway_command)
    context = typer.main.get_command(command).make_context("gateway", list(container["args"]))
    assert context.params["urls"] == ["http://llama-3-1-8b-instruct-replicas:8000"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert (context.params["port"], context.params["admin_port"]) == (ports["http"], ports["admin"])
    assert context.params["grace"] == "10s"


def test_the_gateway_reads_its_limits_from_the_lock_beside_it(tmp_path: Path) -> None:
    items = list(yaml.safe_load_all(text_of(made())))
    config = next(i for i in items if i["kind"] == "ConfigMap")
    (tmp_path / "knee.lock").write_text(config["data"]["knee.lock"])
    lock = read_lock(tmp_path / "knee.lock")
    assert lock.at_knee is not None
    limits = limits_from_knee(lock.knee, [lock.at_knee])
    assert limits.max_in_flight == 73
    assert limits.drain_rate == 19.0


def test_the_command_line_of_the_measured_server() -> None:
    flags = {
        "model_tag": "/models/llama",
        "model": "/models/llama",
        "host": "0.0.0.0",
        "api_key": "hunter2",
        "dtype": "bfloat16",
        "enforce_eager": "True",
        "enable_prefix_caching": "False",
        "override_generation_config": "{'temperature': 0.3, 'top_p': None}",
        "cudagraph_capture_sizes": "[1, 2, 4]",
        "compilation_config": '{"level": 3}',
        "seed": "None",
    }
    assert serve_arguments(lock_of(flags=flags)) == [
        "/models/llama",
        *("--served-model-name", "meta-llama/Llama-3.1-8B-Instruct"),
        *("--compilation-config", '{"level":3}'),
        *("--cudagraph-capture-sizes", "1", "2", "4"),
        *("--dtype", "bfloat16"),
        "--no-enable-prefix-caching",
        "--enforce-eager",
        *("--override-generation-config", '{"temperature":0.3,"top_p":null}'),
    ]


def test_what_the_run_does_not_know_comes_from_the_log() -> None:
    log = Path(__file__).parents[1] / "data" / "deploy" / "startup.log"
    bare = msgspec.structs.replace(lock_of(flags={}), vllm_version="", model="")
    full = told_by_log(bare, read_startup(log))
    assert (full.vllm_version, full.model, full.flags["dtype"]) == ("0.32.0", "./tiny", "bfloat16")
    assert full.startup_s == pytest.approx(86, abs=1)
    assert told_by_log(lock_of(), read_startup(log)).flags == lock_of().flags
    assert any("flags of the measured server are not known" in note for note in made(flags={}).notes)


def test_the_probe_follows_from_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    log = Path(__file__).parents[1] / "data" / "deploy" / "startup.log"
    assert run(["deploy", "startup", str(log), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 2 * found["total_s"] <= found["allowed_s"] <= 3 * found["total_s"]
    assert found["allowed_s"] == found["period_s"] * found["failure_threshold"]
    assert {"compile", "engine", "weights"} <= {phase["name"] for phase in found["phases"]}
    assert run(["deploy", "startup", str(log)]) == 0
    probe = yaml.safe_load(capsys.readouterr().out.split("\n\n", 1)[1])
    assert probe["startupProbe"]["failureThreshold"] == found["failure_threshold"]


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("", 3, "is empty"),
        ("hello\n" * 50, 3, "not"),
        (
            "INFO 11-29 16:48:26 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: …\n",
            5,
            "how long the start took",
        ),
    ],
)
def test_logs_that_tell_no_start(
    text: str, code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.log").write_text(text)
    assert run(["deploy", "startup", str(tmp_path / "s.log")]) == code
    assert says in capsys.readouterr().err
    assert run(["deploy", "startup", str(tmp_path / "absent.log")]) == 3
