"""The manifests of the how-tos are what Kubernetes and Kubeflow take, and `auto` reads them."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from lllaunch.cluster import detect

DOCS = Path(__file__).parents[2] / "docs"


def manifests() -> dict[str, Any]:
    text = (DOCS / "howto/kubernetes.md").read_text()
    found = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    return {each["kind"]: each for each in found}


def test_the_job_and_its_service_are_those_of_kubernetes() -> None:
    found = manifests()
    models = pytest.importorskip("kubeflow_trainer_api.models")
    of_kinds = {"Job": models.IoK8sApiBatchV1Job, "Service": models.IoK8sApiCoreV1Service}
    for kind, model in of_kinds.items():
        made = model.from_dict(found[kind])
        assert made is not None
        assert made.to_dict() == found[kind]
    pod = found["Job"]["spec"]["template"]["spec"]
    assert pod["subdomain"] == found["Service"]["metadata"]["name"]
    assert found["Service"]["spec"]["selector"] == {"job-name": found["Job"]["metadata"]["name"]}


def test_a_pod_of_the_job_knows_where_it_stands() -> None:
    spec = manifests()["Job"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    environ = {each["name"]: each.get("value", "3") for each in container["env"]}

    found = detect.detect(environ)

    assert (found.max_nodes, found.node_rank) == (spec["completions"], 3)
    assert (found.host, found.port, found.rdzv_id) == ("bert-0.bert", 29500, "bert")


def test_every_variable_that_auto_reads_is_in_the_reference() -> None:
    tree = ast.parse(inspect.getsource(detect))
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    pattern = re.compile(r"(SLURM|PET|SKYPILOT|DSTACK)_[A-Z_]+")
    read = {text for text in texts if isinstance(text, str) and pattern.fullmatch(text)}
    page = (DOCS / "reference/config.md").read_text()
    assert {name for name in read if f"`{name}`" not in page} == set()
