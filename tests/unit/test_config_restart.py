"""``launch.restart``: causes and delays."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from lllaunch.config import plan
from lllaunch.config.plan import (
    complete,
    essential,
    hash_of,
    plan_hash,
    plan_text,
    portable_plan,
)
from lllaunch.config.resolve import resolve
from lllaunch.config.restart import FIRST_CAUSES, RESTART_KEYS, SYNONYMS
from lllaunch.config.schema import schema_node
from lllaunch.errors import ConfigError
from lllaunch.spec import RESTART_CAUSES, LaunchSpec, RestartPolicy


def spec_of(restart: Any, **more: Any) -> LaunchSpec:
    cfg = OmegaConf.create({"launch": {"entrypoint": "env", "restart": restart, **more}})
    return resolve(cfg, runtime_cwd="/", output_dir="/out")


def policy_of(restart: Any) -> RestartPolicy:
    return spec_of(restart).restart


def complaints(restart: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        spec_of(restart)
    return str(caught.value).splitlines()


def test_by_default_all_is_tried_again_at_once() -> None:
    assert policy_of(None) == policy_of({}) == policy_of(schema_node()["restart"])
    assert policy_of(None) == RestartPolicy(frozenset(RESTART_CAUSES), 0, 300)


@pytest.mark.parametrize(
    ("on", "causes"),
    [
        (["hang", "oom"], {"hang", "oom"}),
        (["oom", "hang", "oom"], {"hang", "oom"}),
        ("oom, hang", {"hang", "oom"}),
        ("signal", {"signal"}),
        ("all", {*RESTART_CAUSES}),
        (["all"], {*RESTART_CAUSES}),
        (["hang", "all"], {*RESTART_CAUSES}),
        ("none", set()),
        (["none"], set()),
        ([], set()),
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
    (line,) = complaints({True: ["hgn"]})
    assert line.startswith("launch.restart.on[0]: expected failure, signal, ")
    (line,) = complaints({True: ["${nope}"]})
    assert line.startswith("launch.restart.on[0]: '${nope}' cannot be resolved")


def test_delays() -> None:
    policy = policy_of({"delay": "10s", "max_delay": "1m"})
    assert (policy.delay, policy.max_delay) == (10, 60)
    assert [policy.wait(n) for n in (1, 2, 3, 4, 5, 9999)] == [10, 20, 40, 60, 60, 60]
    assert policy_of({"delay": 300}).max_delay == 300
    assert policy_of({"max_delay": 0}).max_delay == 0


# What there was not at first, as a plan has it if nobody has set it.
NEW = {
    "window": None,
    "reset_on": None,
    "max_without_progress": None,
    "checkpoint": None,
    "gpu_wait": "1m",
}


def test_a_plan_says_all_of_it() -> None:
    said = yaml.safe_load(plan_text(spec_of({"on": "oom,hang", "delay": 90})))["launch"]["restart"]
    assert list(said) == list(RESTART_KEYS)
    assert said == {"on": ["oom", "hang"], "delay": "1m30s", "max_delay": "5m", **NEW}
    hashes = {plan_hash(spec_of({"on": on})) for on in ("oom,hang", "hang,oom", ["hang", "oom"])}
    assert len(hashes) == 1
    assert plan_hash(spec_of(None)) not in hashes


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


def test_what_came_from_the_environment_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAUSES", "hang,oom")
    monkeypatch.setenv("DELAY", "1234s")
    spec = spec_of({"on": "${oc.env:CAUSES}", "delay": "${oc.env:DELAY}", "max_delay": "1h"})
    assert spec.restart == RestartPolicy(frozenset({"hang", "oom"}), 1234, 3600)
    text = plan_text(spec)
    assert yaml.safe_load(text)["launch"]["restart"] == {
        "on": "${oc.env:CAUSES}",
        "delay": "${oc.env:DELAY}",
        "max_delay": "1h",
        **NEW,
    }
    again = resolve(OmegaConf.create(text), runtime_cwd="/", output_dir="/out")
    assert again.restart == spec.restart


def test_a_secret_longest_delay_is_not_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGEST", "77s")
    (line,) = complaints({"delay": "2m", "max_delay": "${oc.env:LONGEST}"})
    assert line == (
        "launch.restart.delay: '2m' is more than launch.restart.max_delay, which is "
        "'${oc.env:LONGEST}'; set max_delay as well [duration]"
    )


def test_a_policy_without_restarts_is_no_mistake() -> None:
    assert spec_of({"delay": "1s"}, max_restarts=0).restart.delay == 1


_NO_CAUSES = "expected a list of causes (failure, signal, oom, hang, timeout, node, preflight)"
_NO_CAUSE = "expected failure, signal, oom, hang, timeout, node, preflight, all or none"
_NO_MAPPING = f"expected a mapping of settings ({', '.join(RESTART_KEYS)})"
_NO_ATTEMPTS = "expected a whole number, 1 or more"
MISTAKES = [
    ("all", f": {_NO_MAPPING}, got 'all'; causes go under 'on': {{on: [hang, oom]}} [type]"),
    (["hang"], f": {_NO_MAPPING}, got ['hang']; causes go under 'on': {{on: [hang, oom]}} [type]"),
    (3, f": {_NO_MAPPING}, got 3; max_restarts says how often [type]"),
    (False, f": {_NO_MAPPING}, got false; max_restarts says how often [type]"),
    ({"on": "hng"}, f".on: {_NO_CAUSE}, got 'hng'; did you mean 'hang'? [choice]"),
    (
        {"on": ["hang", "memory"]},
        f".on[1]: {_NO_CAUSE}, got 'memory'; did you mean 'oom'? [choice]",
    ),
    ({"on": [3]}, f".on[0]: {_NO_CAUSE}, got 3 [choice]"),
    (
        {"on": ["hang", "none"]},
        ".on: expected causes or 'none', not both, got ['hang', 'none'] [choice]",
    ),
    ({"on": None}, f".on: {_NO_CAUSES}, got null; write all or none [choice]"),
    ({"on": True}, f".on: {_NO_CAUSES}, got true; write all or none [choice]"),
    ({"on": ""}, f".on: {_NO_CAUSES}, got ''; write all or none [choice]"),
    ({"on": {"hang": 1}}, f".on: {_NO_CAUSES}, got {{hang: 1}}; write all or none [choice]"),
    (
        {"delay": "10m"},
        (
            ".delay: '10m' is more than launch.restart.max_delay, which is '5m'; set "
            "max_delay as well [duration]"
        ),
    ),
    (
        {"delay": "10s", "max_delay": 5},
        (
            ".delay: '10s' is more than launch.restart.max_delay, which is 5; set "
            "max_delay as well [duration]"
        ),
    ),
    ({"delay": -1}, ".delay: expected a duration of 0 or more, got -1 [duration]"),
    ({"delay": None}, ".delay: expected a duration (90, 90s, 10m, 1h30m, 1d), got null [duration]"),
    (
        {"max_delay": "x"},
        ".max_delay: expected a duration (90, 90s, 10m, 1h30m, 1d), got 'x' [duration]",
    ),
    (
        {"window": 0},
        (
            ".window: expected a duration of more than 0, got 0; null is for as long as the run "
            "goes on [duration]"
        ),
    ),
    (
        {"reset_on": "checkpoint"},
        (
            ".reset_on: expected progress or null, got 'checkpoint'; write progress, and name the "
            "path as 'checkpoint' [choice]"
        ),
    ),
    ({"reset_on": False}, ".reset_on: expected progress or null, got false; write null [choice]"),
    (
        {"reset_on": "progres"},
        ".reset_on: expected progress or null, got 'progres'; did you mean 'progress'? [choice]",
    ),
    (
        {"max_without_progress": 0},
        f".max_without_progress: {_NO_ATTEMPTS}, got 0; write null for no such limit [number]",
    ),
    (
        {"max_without_progress": -1},
        f".max_without_progress: {_NO_ATTEMPTS}, got -1 [number]",
    ),
    ({"checkpoint": ""}, ".checkpoint: expected text that is not empty, got '' [text]"),
    ({"checkpoint": 3}, ".checkpoint: expected text, got 3; quote it [text]"),
    ({"gpu_wait": -1}, ".gpu_wait: expected a duration of 0 or more, got -1 [duration]"),
    (
        {"gpu_wait": None},
        ".gpu_wait: expected a duration (90, 90s, 10m, 1h30m, 1d), got null [duration]",
    ),
    ({"dealy": 3}, ".dealy: unknown setting; did you mean 'delay'? [unknown-key]"),
    (
        {"on": "${worker:rank}"},
        (
            ".on: '${worker:rank}' asks for a worker's fact where all workers have one value; "
            "only args, env, env_per_rank, log_line_prefix may have ${worker:...} [worker-variable]"
        ),
    ),
]


@pytest.mark.parametrize(("restart", "told"), MISTAKES)
def test_one_mistake_is_one_line(restart: Any, told: str) -> None:
    assert complaints(restart) == [f"launch.restart{told}"]


@pytest.mark.parametrize("written", SYNONYMS)
def test_another_word_for_a_key_says_which(written: str) -> None:
    (line,) = complaints({written: 1})
    told = f"unknown setting; did you mean {SYNONYMS[written]!r}? [unknown-key]"
    assert line == f"launch.restart.{written}: {told}"


def test_mistakes_are_told_together() -> None:
    lines = complaints({"on": ["x", "y"], "delay": -1, "max_delay": "x", "z": 1})
    assert [line.partition(": ")[0] for line in lines] == [
        *("launch.restart.z", "launch.restart.on[0]", "launch.restart.on[1]"),
        *("launch.restart.delay", "launch.restart.max_delay"),
    ]


def test_attempts_without_progress_may_be_counted_where_nothing_shows_progress() -> None:
    assert policy_of({"max_without_progress": 2}).max_without_progress == 2


def test_null_is_off() -> None:
    off = dict.fromkeys(("window", "reset_on", "max_without_progress", "checkpoint"))
    assert policy_of(off) == policy_of(None)
    assert not policy_of(off).looks_back


@pytest.mark.parametrize("setting", [{"window": 1}, {"reset_on": "progress"}])
def test_what_looks_back(setting: Any) -> None:
    assert policy_of(setting).looks_back


def test_a_checkpoint_alone_does_not_look_back() -> None:
    assert not policy_of({"checkpoint": "x"}).looks_back


def test_a_checkpoint_is_the_same_in_another_directory() -> None:
    portable = portable_plan(spec_of({"checkpoint": "/out/ckpt/latest"}))
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
