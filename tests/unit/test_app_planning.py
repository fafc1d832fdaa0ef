from __future__ import annotations

from dataclasses import replace

import pytest

from lllaunch.app.planning import variables_elsewhere
from lllaunch.config.plan import plan_node
from lllaunch.spec import Entrypoint, LaunchSpec

SPEC = LaunchSpec(
    entrypoint=Entrypoint("function", "work", "work:train", "train"),
    nproc=1,
    log_dir="/run",
    cwd="/run",
    runtime_cwd="/home/me",
)


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
    found = variables_elsewhere(replace(SPEC, env=own), "/run", outer)
    assert found == {"PYTHONPATH": expected}
    spec = replace(SPEC, env=own, derived_env=found)
    assert spec.env_of(0)["PYTHONPATH"] == expected
    assert plan_node(spec) == plan_node(replace(SPEC, env=own))


def test_a_script_elsewhere_needs_it_only_for_its_preloads() -> None:
    script = replace(SPEC, entrypoint=Entrypoint("script", "/x.py", "x.py"))
    assert variables_elsewhere(script, "/run", {}) == {}
    preloading = replace(script, preload=("work",))
    assert variables_elsewhere(preloading, "/run", {}) == {"PYTHONPATH": "/home/me"}
    assert variables_elsewhere(preloading, "/home/me", {}) == {}
