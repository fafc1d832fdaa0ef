"""``launch.restart``: causes and delays."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from lllaunch.config import plan
from lllaunch.config.plan import complete, essential, hash_of, plan_hash, plan_text, portable_plan
from lllaunch.config.restart import FIRST_CAUSES
from lllaunch.config.schema import schema_node
from lllaunch.spec import RESTART_CAUSES, RestartPolicy
from tests.unit import launch_nodes
from tests.unit.launch_nodes import complaints, mistakes


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


def test_delays() -> None:
    policy = policy_of({"delay": "10s", "max_delay": "1m"})
    assert (policy.delay, policy.max_delay) == (10, 60)
    assert [policy.wait(n) for n in (1, 2, 3, 4, 5, 9999)] == [10, 20, 40, 60, 60, 60]
    assert policy_of({"delay": 300}).max_delay == 300
    assert policy_of({"max_delay": 0}).max_delay == 0


FIRST = list(plan._DEFAULTS["restart"]["on"])


def test_a_lock_from_before_nodes_could_be_lost_still_fits() -> None:
    assert [*FIRST_CAUSES] == FIRST
    every = spec_of(None)
    assert every.restart.on == {*RESTART_CAUSES} == {*FIRST, "node", "preflight"}
    # as plans had it: a list of all causes that there were, or nothing
    without = essential(portable_plan(every))
    former = {"launch": {**without["launch"], "restart": {"on": FIRST}}}
    assert "restart" not in without["launch"]
    assert hash_of(former) == hash_of(without) == plan_hash(every)
    # an experiment that has always named them all has a lock without a word of it
    named = spec_of({"on": FIRST})
    assert named.restart.on == {*FIRST}
    assert plan_hash(named) == plan_hash(every)
    assert complete(former)["launch"]["restart"]["on"] == "all"
    for spec in (every, named):
        assert portable_plan(spec)["launch"]["restart"]["on"] == "all"
        assert plan_hash(spec_of(complete(portable_plan(spec))["launch"]["restart"])) == plan_hash(
            every
        )


def test_with_several_nodes_it_makes_a_difference_whether_a_lost_one_counts() -> None:
    several = {"nnodes": 2, "rdzv": {"endpoint": "host0"}}
    every, first = spec_of(None, **several), spec_of({"on": FIRST}, **several)
    assert plan_hash(every) != plan_hash(first)
    for spec in (every, first):
        launch = yaml.safe_load(plan_text(spec))["launch"]
        assert spec_of(launch["restart"], **several).restart == spec.restart
        portable = portable_plan(spec)
        assert spec_of(complete(essential(portable))["launch"]["restart"]).restart == spec.restart
    assert portable_plan(every)["launch"]["restart"]["on"] == "all"
    assert portable_plan(first)["launch"]["restart"]["on"] == "failure,signal,oom,hang,timeout"
    left = [spec_of(restart, nnodes="auto") for restart in (None, {"on": FIRST})]
    assert plan_hash(left[0]) != plan_hash(left[1])
    only = spec_of({"on": "node"}, **several)
    assert portable_plan(only)["launch"]["restart"]["on"] == ["node"]


MISTAKES = """
restart: all
    launch.restart: expected a mapping of settings (on, delay, max_delay, window, reset_on,
    max_without_progress, checkpoint, gpu_wait), got 'all'; causes go under 'on': {on: [hang, oom]}
    [type]
restart: {"on": hng}
    launch.restart.on: expected failure, signal, oom, hang, timeout, node, preflight, all or none,
    got 'hng'; did you mean 'hang'? [choice]
restart: {"on": [hang, none]}
    launch.restart.on: expected causes or 'none', not both, got ['hang', 'none'] [choice]
restart: {"on": null}
    launch.restart.on: expected a list of causes (failure, signal, oom, hang, timeout, node,
    preflight), got null; write all or none [choice]
restart: {delay: 10s, max_delay: 5}
    launch.restart.delay: '10s' is more than launch.restart.max_delay, which is 5; set max_delay as
    well [duration]
restart: {reset_on: checkpoint}
    launch.restart.reset_on: expected progress or null, got 'checkpoint'; write progress, and name
    the path as 'checkpoint' [choice]
restart: {backoff: 3}
    launch.restart.backoff: unknown setting; did you mean 'delay'? [unknown-key]
"""


@pytest.mark.parametrize(("node", "told"), mistakes(MISTAKES))
def test_one_mistake_is_one_line(node: Any, told: str) -> None:
    assert complaints(node) == [told]


def test_a_checkpoint_is_the_same_in_another_directory() -> None:
    portable = portable_plan(spec_of({"checkpoint": "/out/day/time/ckpt/latest"}))
    assert portable["launch"]["restart"]["checkpoint"] == "<output_dir>/ckpt/latest"


# The cause `preflight` came later than `node`


SIX = [*FIRST_CAUSES, "node"]


@pytest.mark.parametrize("more", [{}, {"nnodes": 2, "rdzv": {"endpoint": "host0"}}])
def test_all_causes_that_there_were_before_there_was_a_preflight_are_all(more: Any) -> None:
    every, named = spec_of(None, **more), spec_of({"on": SIX}, **more)
    assert plan_hash(every) == plan_hash(named)
    assert portable_plan(named)["launch"]["restart"]["on"] == "all"


def test_with_a_preflight_it_makes_a_difference_whether_it_counts() -> None:
    preflight = {"preflight": ["env"]}
    specs = [spec_of(on, **preflight) for on in (None, {"on": SIX}, {"on": FIRST})]
    assert len({plan_hash(spec) for spec in specs}) == 3
    for spec in specs:
        for written in (yaml.safe_load(plan_text(spec)), complete(essential(portable_plan(spec)))):
            again = spec_of(written["launch"]["restart"], **preflight)
            assert again.restart == spec.restart
