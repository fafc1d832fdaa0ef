"""``launch.restart``: causes and delays."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from lllaunch.config.plan import complete, essential, plan_hash, portable_plan
from lllaunch.config.schema import schema_node
from lllaunch.spec import RESTART_CAUSES, RestartPolicy
from tests.unit import launch_nodes
from tests.unit.launch_nodes import complaints, mistakes, plan_text


def spec_of(restart: Any, **more: Any) -> Any:
    return launch_nodes.spec_of({"restart": restart, **more})


def policy_of(restart: Any) -> RestartPolicy:
    return spec_of(restart).restart


def test_by_default_all_is_tried_again_at_once() -> None:
    assert policy_of(None) == policy_of({}) == policy_of(schema_node()["restart"])
    assert policy_of(None) == RestartPolicy(frozenset(RESTART_CAUSES), 0, 300)


@pytest.mark.parametrize(
    ("on", "causes"),
    [
        (["oom", "hang", "oom"], {"hang", "oom"}),
        ("oom, hang", {"hang", "oom"}),
        ("all", {*RESTART_CAUSES}),
        (["hang", "all"], {*RESTART_CAUSES}),
        (["none"], set()),
        (False, set()),
        (None, {*RESTART_CAUSES}),
    ],
)
def test_causes(on: Any, causes: set[str]) -> None:
    assert policy_of({"on": on}).on == causes


def test_an_unquoted_on_is_true_for_yaml_and_means_the_causes() -> None:
    written = yaml.safe_load("{on: [hang], delay: 1s}")
    assert True in written
    assert policy_of(written) == RestartPolicy(frozenset({"hang"}), 1, 300)
    # the command line's comes later
    assert policy_of({**written, "on": "oom"}).on == {"oom"}
    (line,) = complaints({"restart": {True: ["hgn"]}})
    assert line.startswith("launch.restart.on[0]: expected failure, signal, ")


def test_a_plan_names_the_causes_unless_they_are_all() -> None:
    every, named = spec_of(None), spec_of({"on": ["oom", "hang"]})
    assert plan_hash(every) == plan_hash(spec_of({"on": [*RESTART_CAUSES]}))
    assert plan_hash(every) != plan_hash(named)
    assert "restart" not in essential(portable_plan(every))["launch"]
    assert complete(essential(portable_plan(every)))["launch"]["restart"]["on"] == "all"
    for spec in (every, named):
        launch = yaml.safe_load(plan_text(spec))["launch"]
        assert spec_of(launch["restart"]).restart == spec.restart


MISTAKES = """
restart: all
    launch.restart: expected a mapping of settings (on, delay, max_delay, window, reset_on,
    max_without_progress, checkpoint, gpu_wait), got 'all'; causes go under 'on': {on: [hang, oom]}
    [type]
restart: {"on": hng}
    launch.restart.on: expected failure, signal, oom, hang, timeout, node, preflight, all or none,
    got 'hng'; did you mean 'hang'? [choice]
restart: {"on": [hang, none]}
    launch.restart.on: expected a list of causes (failure, signal, oom, hang, timeout, node,
    preflight), got ['hang', 'none']; write all or none [choice]
restart: {delay: 10s, max_delay: 5}
    launch.restart.delay: '10s' is more than launch.restart.max_delay, 5s; set max_delay as well
    [duration]
restart: {reset_on: checkpoint}
    launch.restart.reset_on: expected progress or null, got 'checkpoint' [choice]
restart: {dealy: 3}
    launch.restart.dealy: unknown setting; did you mean 'delay'? [unknown-key]
"""


@pytest.mark.parametrize(("node", "told"), mistakes(MISTAKES))
def test_one_mistake_is_one_line(node: Any, told: str) -> None:
    assert complaints(node) == [told]


def test_a_checkpoint_is_the_same_in_another_directory() -> None:
    portable = portable_plan(spec_of({"checkpoint": "/out/day/time/ckpt/latest"}))
    assert portable["launch"]["restart"]["checkpoint"] == "<output_dir>/ckpt/latest"
