from __future__ import annotations

from typing import Any

import pytest

from lllaunch.config.plan import plan_node
from tests.unit.launch_nodes import spec_of


@pytest.mark.parametrize(
    ("own", "outer", "expected"),
    [
        ({}, {}, "/home/me"),
        ({}, {"PYTHONPATH": "/lib"}, "/home/me:/lib"),
        ({"PYTHONPATH": "/own"}, {"PYTHONPATH": "/lib"}, "/home/me:/own"),
    ],
)
def test_workers_elsewhere_import_from_where_the_command_was_given(
    own: dict[str, str], outer: dict[str, str], expected: str
) -> None:
    launch = {"entrypoint": "-m json.tool", "env": own}
    places: dict[str, Any] = {"runtime_cwd": "/home/me", "environ": outer}
    here = spec_of(launch, **places)
    assert here.derived_env == {}
    spec = spec_of(launch, **places, job_cwd="/run")
    assert (spec.cwd, spec.spawner_cwd) == ("/run", "/home/me")
    assert spec.env_of(0)["PYTHONPATH"] == expected
    assert plan_node(spec)["launch"] == {**plan_node(here)["launch"], "cwd": "/run"}


def test_a_program_elsewhere_needs_it_only_for_its_preloads() -> None:
    places = {"runtime_cwd": "/home/me", "environ": {}, "job_cwd": "/run"}
    assert spec_of(**places).derived_env == {}
    assert spec_of({"preload": "json"}, **places).derived_env == {"PYTHONPATH": "/home/me"}
