"""The table of Kubernetes' own kinds in `src/knee/deploy/data/kubernetes.json`, made from its schemas.

`python -m tests.deploy.kubernetes_table` writes it; a test compares what is committed with what this makes.
"""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

VERSION = "1.37.0"
KINDS = {
    "apps/v1": ("DaemonSet", "Deployment", "StatefulSet"),
    "autoscaling/v2": ("HorizontalPodAutoscaler",),
    "batch/v1": ("Job",),
    "policy/v1": ("PodDisruptionBudget",),
    "v1": (
        "ConfigMap",
        "Namespace",
        "PersistentVolumeClaim",
        "Pod",
        "Secret",
        "Service",
        "ServiceAccount",
    ),
}
TABLE = Path(__file__).parents[2] / "src/knee/deploy/data/kubernetes.json"


def make() -> dict[str, Any]:
    folder = files("kubernetes_validate") / "kubernetes-json-schema" / f"v{VERSION}-local-strict"
    definitions = json.loads((folder / "_definitions.json").read_text())["$defs"]
    types: dict[str, dict[str, str]] = {}
    kinds: dict[str, str] = {}
    todo: list[str] = []
    for version, names in KINDS.items():
        group = "core.v1" if version == "v1" else version.replace("/", ".")
        for name in names:
            kinds[f"{version} {name}"] = name
            todo.append(f"io.k8s.api.{group}.{name}")
    short: dict[str, str] = {}
    while todo:
        full = todo.pop()
        name = full.rsplit(".", 1)[1]
        if full in short:
            continue
        assert name not in short.values(), f"two types are called {name}"
        short[full] = name
        definition = definitions[full]
        required = definition.get("required", ())
        types[name] = {}
        for field, schema in sorted(definition.get("properties", {}).items()):
            kind = type_of(schema, definitions, todo)
            types[name][field + ("!" if field in required else "")] = kind
    return {"version": VERSION, "kinds": dict(sorted(kinds.items())), "types": dict(sorted(types.items()))}


def type_of(schema: dict[str, Any], definitions: dict[str, Any], todo: list[str]) -> str:
    if "$ref" in schema:
        full = schema["$ref"].rsplit("/", 1)[1]
        target = definitions[full]
        if full.rsplit(".", 1)[1] in ("IntOrString", "Quantity"):
            return "quantity" if full.endswith("Quantity") else "intstring"
        if "properties" not in target:
            return str(type_of(target, definitions, todo) if target.get("type") else "any")
        todo.append(full)
        return "#" + str(full).rsplit(".", 1)[1]
    kind = schema.get("type", "any")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "array":
        return "[]" + type_of(schema["items"], definitions, todo)
    if kind == "object":
        values = schema.get("additionalProperties")
        return "{}" + type_of(values, definitions, todo) if isinstance(values, dict) else "object"
    return str(kind)


def written(table: dict[str, Any]) -> str:
    lines = [f'  "version": {json.dumps(table["version"])},', f'  "kinds": {json.dumps(table["kinds"])},']
    rows = [f"    {json.dumps(name)}: {json.dumps(fields)}" for name, fields in table["types"].items()]
    return "{\n" + "\n".join(lines) + '\n  "types": {\n' + ",\n".join(rows) + "\n  }\n}\n"


if __name__ == "__main__":
    TABLE.write_text(written(make()))
