"""What a job needs, and what is tried before it: ``resources``, ``min_disk``, ``preflight``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from lllaunch.config.plan import plan_node
from lllaunch.config.schema import schema_node
from lllaunch.secret_names import redactor_for
from lllaunch.spec import Preflight, Resources
from lllaunch.sweep.pool import Need, need_of
from tests.unit.launch_nodes import complaints, mistakes, plan_text, read_back, spec_of

MISTAKES = """
resources: {gpus: 1}
    launch.resources.gpus: unknown setting; did you mean 'gpus_per_proc'? [unknown-key]
resources: 2
    launch.resources: expected a mapping of numbers (gpus_per_proc, cpus_per_proc), got 2; did you
    mean {gpus_per_proc: 2}? [type]
preflight: [nowhere-x]
    launch.preflight.command: 'nowhere-x' is not a program on PATH [preflight]
preflight: []
    launch.preflight.command: expected a program and its arguments ([nvidia-smi, -L]), or
    {command: [...], timeout: 5m}, got [] [preflight]
preflight: "env 'A"
    launch.preflight.command: expected a command line, got "env 'A"; No closing quotation
    [preflight]
preflight: {command: env, timeout: 0}
    launch.preflight.timeout: expected a duration of more than 0, got 0 [duration]
min_disk: 0
    launch.min_disk: expected a size of more than 0, got 0; null is for no such limit [size]
"""


@pytest.mark.parametrize(("node", "told"), mistakes(MISTAKES))
def test_one_mistake_is_one_line(
    node: Any, told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "env").symlink_to("/usr/bin/env")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert complaints(node) == [told]


# What a job needs, and GPUs that are only pretended


@pytest.mark.parametrize(
    ("written", "resources"),
    [
        (None, Resources()),
        (schema_node()["resources"], Resources()),
        ({"gpus_per_proc": 2}, Resources(2)),
        ({"gpus_per_proc": "2", "cpus_per_proc": 0}, Resources(2, 0)),
        ({"gpus_per_proc": None, "cpus_per_proc": 4}, Resources(None, 4)),
    ],
)
def test_resources_are_read_and_written(written: Any, resources: Resources) -> None:
    spec = spec_of({"resources": written})
    assert spec.resources == resources
    assert plan_node(spec)["launch"]["resources"] == resources._asdict()
    assert read_back(plan_text(spec)) == spec


def test_a_job_of_more_workers_than_cores_has_them_all() -> None:
    assert need_of(4, (None, None), False, 2) == Need(0, 2)
    assert need_of(4, (None, None), True, 2) == Need(4, 0)
    # who says how many means that
    assert need_of(4, (None, 1), False, 2) == Need(0, 4)


# What is tried before


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (None, None),
        (["env", "-u", 3], Preflight(("env", "-u", "3"), 300.0)),
        ("env -u 'A B'", Preflight(("env", "-u", "A B"), 300.0)),
        ({"command": ["env"], "timeout": None}, Preflight(("env",), 300.0)),
        ({"command": "env -0", "timeout": "30s"}, Preflight(("env", "-0"), 30.0)),
    ],
)
def test_a_command_and_its_time_limit(written: Any, expected: Preflight | None) -> None:
    assert spec_of({"preflight": written}).preflight == expected


@pytest.mark.parametrize(
    ("written", "planned"),
    [
        (["env", "${oc.env:MY_TOKEN}"], ["env", "${oc.env:MY_TOKEN}"]),
        ("env --with ${oc.env:MY_TOKEN}", "env --with ${oc.env:MY_TOKEN}"),
    ],
)
def test_a_secret_argument_is_written_nowhere(
    written: Any, planned: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "hunter2hunter2")
    spec = spec_of({"preflight": written})
    assert spec.preflight is not None
    assert spec.preflight.command[-1] == "hunter2hunter2"
    assert "hunter2" not in repr(spec)
    text = plan_text(spec)
    assert yaml.safe_load(text)["launch"]["preflight"]["command"] == planned
    assert read_back(text) == spec
    hide = redactor_for(spec)
    assert hide(spec.preflight.text) == hide(spec.preflight.text).replace("hunter2", "")
    assert hide("env --with") == "env --with"
