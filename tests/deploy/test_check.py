"""`knee deploy check` as a user meets it: good and bad input, JSON, exit codes."""

import functools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.deploy import kubernetes_table
from tests.deploy.measured import lock_of
from tests.deploy.test_render import CUSTOM, made

from knee.cli.main import run
from knee.core.errors import InputError, UsageError
from knee.core.lock import write_lock
from knee.deploy.check import RULES, check
from knee.deploy.manifests import load_text
from knee.deploy.render import text_of
from knee.deploy.schema import faults
from knee.deploy.sources import Loaded, load

USUAL = """\
# the shape of the examples that most deployments start from
apiVersion: apps/v1
kind: Deployment
metadata: {name: mistral}
spec:
  replicas: 1
  selector: {matchLabels: {app: mistral}}
  template:
    metadata: {labels: {app: mistral}}
    spec:
      containers:
      - name: mistral
        image: vllm/vllm-openai:latest
        command: ["/bin/sh", "-c"]
        args: ["vllm serve mistralai/Mistral-7B --enable-chunked-prefill --max_num_batched_tokens 1024"]
        ports: [{containerPort: 8000}]
        livenessProbe:
          httpGet: {path: /health, port: 8000}
          initialDelaySeconds: 60
          periodSeconds: 10
        readinessProbe:
          httpGet: {path: /health, port: 8000}
          periodSeconds: 5
"""


def command(*arguments: str) -> int:
    return run(["deploy", *arguments])


def test_what_render_writes_is_clean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_lock(tmp_path / "knee.lock", lock_of(startup_s=96.4))
    out = tmp_path / "out.yaml"
    assert command("render", "--from", str(tmp_path / "knee.lock"), "--out", str(out)) == 0
    assert command("check", str(out)) == 0
    assert "2 objects" not in capsys.readouterr().out
    assert command("render", "--from", str(tmp_path / "knee.lock"), "--json") == 0
    assert [item["kind"] for item in json.loads(capsys.readouterr().out)][:2] == [
        "PersistentVolumeClaim",
        "Deployment",
    ]


def test_the_usual_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "usual.yaml"
    path.write_text(USUAL)
    assert command("check", str(path), "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert {found["rule"]: found["line"] for found in report["findings"]} == {
        "cache-volume": 12,
        "pre-stop": 12,
        "shutdown-timeout": 12,
        "image-pinned": 13,
        "startup-probe": 17,
        "liveness-hasty": 17,
        "readiness-hasty": 21,
    }
    ignored = [word for rule in ("cache-volume", "image-pinned") for word in ("--ignore", rule)]
    assert command("check", str(path), *ignored) == 1
    shown = capsys.readouterr().out
    assert "usual.yaml:17: startup-probe: Deployment/mistral: killed 90 s after it starts" in shown
    assert "image-pinned" not in shown


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("# only a comment\n", "is empty"),
        ("replicaCount: 2\nimage: x\n", ":1 is not a Kubernetes object"),
        ("- a\n- b\n", ":1 is not a Kubernetes object"),
        ("just words", ":1 is not a Kubernetes object"),
        (USUAL + "---\nservices: {}\n", f":{USUAL.count(chr(10)) + 2} is not a Kubernetes object"),
        ("apiVersion: v1\nkind: [\n", ":3 is broken YAML"),
        ("a: b\n\tc: d\n", ":2 is broken YAML"),
        ("image: {{ .Values.image }}\n", ":1 is an unrendered Helm template"),
        ("a: 1\n{{- if .Values.on }}\nb: 1\n{{- end }}\n", ":2 is an unrendered Helm template"),
        (USUAL.replace("replicas: 1", "replicas: ${REPLICAS}"), ":6 is an unrendered template (${REPLICAS})"),
        ("a: {{ pod }}\n", "is a template, not YAML"),
        ("a: &a [*a]\n", "refers to itself"),
        ("? {a: b}\n: c\n", "is broken YAML"),
        ("a: !!python/object/apply:os.system [x]\n", "is not a Kubernetes object"),
        ("a: !!python/object:os.system x\n", "is broken YAML"),
        ("[" * 3000, "is broken YAML"),
    ],
)
def test_what_is_no_manifest(
    text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "some.yaml"
    path.write_text(text)
    assert command("check", str(path)) == 3
    shown = capsys.readouterr().err
    assert says in shown
    assert "Traceback" not in shown
    assert len(shown.strip().splitlines()) <= 2


def test_a_bomb_of_aliases_is_counted_not_built() -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    with pytest.raises(InputError, match="once aliases are followed"):
        load_text("\n".join(lines), "bomb")


def test_huge_and_foreign_files(tmp_path: Path) -> None:
    (tmp_path / "huge.yaml").write_bytes(b"# x\n" * (2 << 20))
    with pytest.raises(InputError, match="larger than 4 MiB"):
        load(str(tmp_path / "huge.yaml"))
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(InputError, match="not UTF-8"):
        load(str(tmp_path / "binary.yaml"))
    with pytest.raises(InputError, match="No such file"):
        load(str(tmp_path / "absent.yaml"))


def test_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="no Kubernetes object"):
        load(str(tmp_path))
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "usual.yml").write_text(USUAL)
    (tmp_path / "values.yaml").write_text("replicaCount: 2\n")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "x.yaml").write_text("[")
    assert command("check", str(tmp_path)) == 1
    assert "values.yaml:1 is not a Kubernetes object" in capsys.readouterr().err
    (tmp_path / "broken.yaml").write_text("[")
    assert command("check", str(tmp_path)) == 3
    told = capsys.readouterr()
    assert "unreadable: " in told.err
    assert "startup-probe" in told.out


def test_objects_of_a_folder_know_each_other(tmp_path: Path) -> None:
    documents = text_of(made()).split("---\n")[1:]
    for index, document in enumerate(documents):
        (tmp_path / f"{index}.yaml").write_text(document)
    assert check(load(str(tmp_path))).findings == ()


def test_kustomize_patches_are_parts_not_objects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    patch = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: mistral}\nspec: {replicas: 2}\n"
    (tmp_path / "base.yaml").write_text(USUAL)
    (tmp_path / "patch.yaml").write_text(patch)
    before = check(load(str(tmp_path)))
    assert [found.rule for found in before.findings if found.file.endswith("patch.yaml")] == [
        "schema",
        "schema",
    ]
    (tmp_path / "kustomization.yaml").write_text(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\npatches: [{path: patch.yaml}]\n"
    )
    assert command("check", str(tmp_path)) == 1
    told = capsys.readouterr()
    assert "patch.yaml is a kustomize patch" in told.err
    assert "patch.yaml" not in told.out


def test_variables_for_a_shell_are_no_template() -> None:
    text = USUAL.replace("args: [", 'env: [{name: A, value: "${B}"}]\n        args: ["${X}", ')
    assert check(Loaded(manifests=load_text(text, "x"))).engines == 1


def test_a_list_stands_for_its_items() -> None:
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(yaml.safe_load_all(USUAL))})
    report = check(Loaded(manifests=load_text(text, "list.json")))
    assert (report.objects, report.engines) == (1, 1)
    assert len(report.findings) == 7


def test_unknown_rules() -> None:
    with pytest.raises(UsageError, match="no rule 'pre-stob'"):
        check(Loaded(manifests=load_text(USUAL, "x")), frozenset({"pre-stob"}))


def test_rules_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("rules", "--json") == 0
    assert [rule["id"] for rule in json.loads(capsys.readouterr().out)] == list(RULES)


def test_the_table_is_what_the_published_schemas_say() -> None:
    assert kubernetes_table.TABLE.read_text() == kubernetes_table.written(kubernetes_table.make())


OWN = [item for item in yaml.safe_load_all(text_of(made())) if item["kind"] not in CUSTOM]
OWN += [item for item in yaml.safe_load_all(text_of(made(autoscaler="hpa"))) if "Scaler" in item["kind"]]
VALUES: tuple[Any, ...] = (0, 1, 1.5, "x", "", True, [], [1], ["a"], {}, {"a": "b"}, {"a": 1}, "10%", "1Gi")


def spoil(item: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """`item` with one value somewhere removed, replaced, or put where none belongs."""
    whole: dict[str, Any] = json.loads(json.dumps(item))
    at: Any = whole
    while True:
        keys = list(at) if isinstance(at, dict) else range(len(at))
        key = rng.choice(list(keys)) if len(at) else None
        if key is not None and isinstance(at[key], dict | list) and at[key] and rng.random() < 0.8:
            at = at[key]
            continue
        kind = rng.choice(["remove", "replace", "add"])
        if kind == "remove" and key is not None and isinstance(at, dict):
            del at[key]
        elif kind == "add" and isinstance(at, dict):
            at[rng.choice(["surplus", "nmae", "labels", "port"])] = rng.choice(VALUES)
        elif key is not None:
            at[key] = rng.choice(VALUES)
        return whole


@pytest.fixture(scope="module", autouse=True)
def read_once() -> Iterator[None]:
    """kubernetes-validate parses megabytes of definitions for every object."""
    plain = kubernetes_validate.utils.schema_contents
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kubernetes_validate.utils, "schema_contents", functools.cache(plain))
        yield


@settings(max_examples=300, deadline=None)
@given(index=st.integers(0, len(OWN) - 1), seed=st.integers(0, 10**9))
def test_the_schema_agrees_with_kubernetes_own(index: int, seed: int) -> None:
    item = spoil(OWN[index], random.Random(seed))
    if not isinstance(item.get("apiVersion"), str) or not isinstance(item.get("kind"), str):
        return  # without these there is no schema to ask
    try:
        kubernetes_validate.validate(item, "1.37", strict=True)
        valid = True
    except kubernetes_validate.ValidationError:
        valid = False
    except kubernetes_validate.SchemaNotFoundError:
        return
    text = yaml.safe_dump(item)
    ours = [what for manifest in load_text(text, "x") for _, what in faults(manifest)]
    beyond = (
        "metadata.name is missing",
        ' is of type quantity, not "',
    )  # the API server's rules, not the schema's
    ours = [what for what in ours if not any(rule in what for rule in beyond)]
    assert (not ours) == valid, (item, ours)
