"""The root node ``cluster``: what goes to the site, what is lllaunch's own, and what is refused."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from lllaunch.config.cluster import (
    CLUSTER_DEFAULTS,
    CLUSTER_KEYS,
    IGNORED,
    OPTIONS,
    OWN_KEYS,
    REFUSED,
    SETTINGS,
    SYNONYMS,
)
from lllaunch.config.plan import (
    SOURCES,
    complete,
    essential,
    plan_config,
    plan_hash,
    portable_plan,
)
from lllaunch.config.read import PublicReader
from lllaunch.errors import ConfigError
from lllaunch.spec import Cluster, LaunchSpec, Requeue
from tests.unit import launch_nodes
from tests.unit.launch_nodes import mistakes, plan_text

ROOT = Path(__file__).parents[2]
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "gpu[09-12]",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_GPUS_ON_NODE": "2",
}


def spec_of(
    cluster: Any, launch: dict[str, Any] | None = None, environ: Any = None, **more: Any
) -> LaunchSpec:
    environ = {"PATH": "/usr/bin:/bin", **(environ or {})}
    return launch_nodes.spec_of(launch, {"cluster": cluster}, environ=environ, **more)


def of(launch: dict[str, Any] | None = None, /, **keys: Any) -> Cluster:
    cluster = spec_of({"backend": "slurm", **keys}, launch).cluster
    assert cluster is not None
    return cluster


def problems(launch: dict[str, Any] | None = None, /, **keys: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        spec_of({"backend": "slurm", **keys}, launch)
    return [str(each) for each in caught.value.problems]


def only(launch: dict[str, Any] | None = None, /, **keys: Any) -> str:
    (problem,) = problems(launch, **keys)
    assert problem.endswith(" [cluster]")
    return problem.removesuffix(" [cluster]")


def test_all_is_left_to_the_site_unless_it_is_said() -> None:
    assert of() == Cluster()
    nulls = {name: None for name in CLUSTER_KEYS if name != "backend"}
    assert of(**nulls) == Cluster()
    assert of(requeue={"timeout": None}) == Cluster()


SAID: dict[str, tuple[Any, Any]] = {
    "partition": (["gpu", "long"], "gpu,long"),
    "account": (17, "17"),
    "qos": ("normal", "normal"),
    "gres": ("gpu:a100:4", "gpu:a100:4"),
    "gpus_per_node": ("a100:4", "a100:4"),
    "cpus_per_task": ("8", 8),
    "cpus_per_gpu": (4, 4),
    "mem_gb": (1.5, 1.5),
    "timeout_min": ("1h30s", 61),
    "constraint": ("a100&ib", "a100&ib"),
    "exclude": ("gpu[01-03]", "gpu[01-03]"),
    "nodelist": (["gpu01", "gpu02"], "gpu01,gpu02"),
    "comment": ("of mine", "of mine"),
    "dependency": ("afterok:12", "afterok:12"),
    "exclusive": (True, True),
    "mail_type": (["END", "FAIL"], "END,FAIL"),
    "mail_user": ("me@example.org", "me@example.org"),
    "wckey": ("x", "x"),
    "name": ("train", "train"),
    "setup": (["module load cuda", "export A=\\${HOME}"], ["module load cuda", "export A=${HOME}"]),
    "setup_strict": (False, False),
    "teardown": ("rm -f x", ["rm -f x"]),
    "srun_args": (["--cpu-bind", "none", 1], ["--cpu-bind", "none", "1"]),
    "additional_parameters": (
        {"reservation": "r", "mem_bind": "local", "contiguous": True, "nice": 5, "x11": None},
        {"reservation": "r", "mem-bind": "local", "contiguous": True, "nice": 5},
    ),
}
ALTERNATIVES: dict[str, tuple[Any, Any]] = {
    "mem": ("64G", "64G"),
    "mem_per_gpu": ("8GB", "8GB"),
    "mem_per_cpu": (4000, 4000),
    "time": ("1-12:00:00", "1-12:00:00"),
}


def test_settings_keep_submitits_names() -> None:
    found = of(**{name: given for name, (given, _) in SAID.items()})
    assert found.settings == {name: read for name, (_, read) in SAID.items()}
    assert list(found.settings) == [name for name in SETTINGS if name in SAID]
    assert {*SAID, *ALTERNATIVES} == {*SETTINGS}


@pytest.mark.parametrize("name", [*SAID, *ALTERNATIVES])
def test_each_setting_comes_back_from_the_plan(name: str) -> None:
    given, read = {**SAID, **ALTERNATIVES}[name]
    spec = spec_of({"backend": "slurm", name: given})
    assert spec.cluster is not None
    assert spec.cluster.settings == {name: read}
    again = launch_nodes.read_back(plan_text(spec))
    assert again.cluster == spec.cluster
    assert plan_text(again) == plan_text(spec)


def test_what_lllaunch_has_of_its_own() -> None:
    found = of(
        nodes=3,
        signal_delay_s="2m",
        requeue={"preempted": 1, "timeout": 2, "node_failure": 0},
        array_parallelism=4,
        pack=5,
        detach=True,
        snapshot="none",
    )
    assert found == Cluster({}, 3, 120, Requeue(1, 2, 0), 4, 5, True, "none")
    assert of(max_num_timeout=7).requeue == Requeue(timeout=7)
    assert of(requeue={"preempted": 0}).requeue == Requeue(preempted=0)


def test_names_of_submitit_and_what_happens_anyway_are_taken() -> None:
    ignored = dict.fromkeys(IGNORED, "${nothing.of.the.kind}")
    tasks = {"tasks_per_node": 1, "ntasks_per_node": "1", "ntasks": 1}
    assert of(**ignored, **tasks, use_srun=True, gpus_per_task=None) == Cluster()
    assert of(job_name="a").settings == {"name": "a"}
    assert of(exclusive=False) == Cluster()
    assert of(exclusive="user").settings == {"exclusive": "user"}
    assert of(gpus_per_node=0).settings == {"gpus_per_node": 0}


MISTAKES = """
{backend: slrum}
    backend: expected 'slurm', got 'slrum'; did you mean 'slurm'?
{gpus: 4}
    gpus: unknown setting; did you mean 'gpus_per_node'?
{tasks_per_node: 4}
    tasks_per_node: expected 1, got 4; launch.nproc=N: lllaunch starts the workers of a node from
    one task
{gpus_per_task: 1}
    gpus_per_task: expected null, got 1; set cluster.gpus_per_node: with this one workers do not
    see each other's GPUs
{use_srun: false}
    use_srun: expected true, got false; srun starts lllaunch on each node
{gpus_per_node: four}
    gpus_per_node: expected a number of GPUs (4), or of GPUs of a type ('a100:4'), got 'four'
{mem_gb: 64G}
    mem_gb: expected a number of GB, more than 0, got '64G'; did you mean mem: 64G?
{timeout_min: "1-12:00:00"}
    timeout_min: expected a number of minutes, 1 or more, or a duration (2h, 1d12h), got
    '1-12:00:00'; for sbatch's own form: time: '1-12:00:00'
{signal_delay_s: 5m, timeout_min: 5}
    signal_delay_s: '5m' is not less than the time limit, cluster.timeout_min; the run would end as
    it begins
{requeue: false}
    requeue: expected a mapping of causes to numbers (preempted, timeout, node_failure), got false;
    write {preempted: 0, timeout: 0, node_failure: 0}
{requeue: {timeout: 1}, max_num_timeout: 1}
    requeue.timeout: 1 is said twice: cluster.max_num_timeout says it as well; leave one of them out
{snapshot: false}
    snapshot: expected git, temporary or none, got false; did you mean 'none'?
{timeout_min: 10, time: 20}
    time: 20 is said twice: cluster.timeout_min says it as well; leave one of them out
{signal_delay_s: 0}
    signal_delay_s: expected a number of seconds, 1 or more, got 0
{reservation: mine}
    reservation: unknown setting; options of sbatch belong below cluster.additional_parameters
{additional_parameters: {a b: 1}}
    additional_parameters.a b: expected the name of a long option of sbatch (reservation,
    mem-bind), got 'a b'
{comment: "${worker:rank}"}
    comment: '${worker:rank}' asks for a worker's fact, and no worker is there yet
"""


@pytest.mark.parametrize(("keys", "told"), mistakes(MISTAKES))
def test_what_is_wrong_is_said_with_key_value_and_hint(keys: dict[str, Any], told: str) -> None:
    assert only(**keys) == f"cluster.{told}"


@pytest.mark.parametrize("option", sorted(REFUSED))
def test_what_lllaunch_sets_is_refused_with_the_reason(option: str) -> None:
    told = only(additional_parameters={option: "x"})
    assert f"cannot be given: {REFUSED[option]}" in told


def test_submitits_settings_are_all_known() -> None:
    slurm = pytest.importorskip("submitit.slurm.slurm")
    theirs = {*inspect.signature(slurm._make_sbatch_string).parameters}
    known = {*CLUSTER_KEYS, *IGNORED, *SYNONYMS, "job_name", "use_srun", "gpus_per_task"}
    known |= {"ntasks_per_node"} | {name.replace("-", "_") for name in REFUSED}
    assert theirs <= known


def test_the_page_names_every_key() -> None:
    page = (ROOT / "docs/reference/cluster.md").read_text()
    named = {*re.findall(r"`([a-z_]+)(?:`|: )", page)} | {"requeue"}
    assert {*CLUSTER_KEYS, *IGNORED, "job_name", "use_srun", "gpus_per_task"} <= named
    for name, option in OPTIONS.items():
        assert re.search(rf"^\| `{name}`.*\| `--{option}` \|$", page, re.MULTILINE), name


def test_the_packaged_config_has_every_key_and_says_nothing() -> None:
    text = (ROOT / "lllaunch/conf/cluster/slurm.yaml").read_text()
    node = yaml.safe_load(text)
    assert {*node} == {*CLUSTER_KEYS}
    assert spec_of(node).cluster == Cluster()


@pytest.mark.parametrize("node", [5, "a40", [1], {"n_clusters": 5}, {}])
def test_of_a_users_own_app_only_a_node_with_our_backend_is_ours(node: Any) -> None:
    assert spec_of(node, users_own=True).cluster is None
    assert spec_of(node, {"entrypoint": None}, entrypoint_required=False).cluster is None
    with pytest.raises(ConfigError) as caught:
        spec_of(node)
    (problem,) = caught.value.problems
    assert (problem.code, problem.key) == ("cluster", "cluster")
    assert problem.expected == "a cluster (backend: slurm, ...)"
    assert "write cluster=slurm, or +cluster=slurm" in problem.hint
    assert spec_of({"backend": "slurm", "nodes": 2}, users_own=True).cluster == Cluster(nodes=2)
    assert spec_of({"backend": "dask"}, users_own=True).cluster is None


def nodes_of(spec: LaunchSpec) -> tuple[Any, Any]:
    plan = portable_plan(spec)
    return plan["launch"]["nnodes"], plan["cluster"]["nodes"]


@pytest.mark.parametrize(
    ("nnodes", "nodes", "planned"),
    [
        (None, None, (1, 1)),
        (1, None, (1, 1)),
        (4, None, ("auto", 4)),
        (None, 4, ("auto", 4)),
        ("auto", 4, ("auto", 4)),
        ("auto", None, ("auto", 1)),
    ],
)
def test_nnodes_asks_for_nodes_and_is_auto_there(nnodes: Any, nodes: Any, planned: Any) -> None:
    cluster, launch = {"backend": "slurm", "nodes": nodes}, {"nnodes": nnodes}
    # somebody may submit from a shell within an allocation
    spec = spec_of(cluster, launch, SLURM)
    assert nodes_of(spec) == planned
    assert spec.nodes is None
    assert spec.detected == ()
    assert spec == spec_of(cluster, launch)
    assert nodes_of(launch_nodes.read_back(plan_text(spec))) == planned


def test_nodes_that_do_not_go_together_are_refused() -> None:
    assert only({"nnodes": 4}, nodes=2) == (
        "cluster.nodes: 2 is not launch.nnodes, which is 4; leave one of them out"
    )
    assert only({"nnodes": "1:4"}) == (
        "launch.nnodes: expected one number, as the run goes to a cluster (cluster.backend), "
        "got '1:4'; an allocation has as many nodes as it was asked for"
    )
    assert only({"node_rank": 0, "nnodes": 2}) == (
        "launch.node_rank: 0 is of one node, and a cluster numbers its nodes (cluster.backend); "
        "leave it out"
    )
    (problem,) = problems({"nnodes": "many"})
    assert problem.startswith("launch.nnodes: expected a number of nodes")


def test_in_the_job_the_same_plan_is_counted_there() -> None:
    spec = spec_of({"backend": "slurm", "partition": "gpu"}, {"nnodes": 4})
    written = complete(yaml.safe_load(plan_config(spec)), SOURCES)
    environ = {"PATH": "/usr/bin:/bin", **SLURM}
    job = launch_nodes.read_back(plan_text(spec), environ=environ, submitted=True)
    assert job.nodes is not None
    assert (job.nodes.min_nodes, job.nodes.node_rank, job.nodes.host) == (4, 1, "gpu09")
    assert job.nproc == 2
    assert job.cluster == spec.cluster
    assert portable_plan(job, SOURCES) == portable_plan(spec, SOURCES) == written
    assert plan_hash(job) == plan_hash(spec)


def test_a_plan_says_what_differs_from_the_defaults() -> None:
    plan = portable_plan(spec_of({"backend": "slurm", "detach": True, "max_num_timeout": 3}))
    assert list(plan) == ["launch", "cluster"]
    assert list(plan["cluster"]) == ["backend", *OWN_KEYS]
    short = essential(plan)
    assert short["cluster"] == {"backend": "slurm", "requeue": {"timeout": 3}}
    assert complete(short) == plan
    assert essential({"jobs": {"a=1": plan}}) == {"jobs": {"a=1": short}}
    # what a plan means that does not name them, for ever
    assert CLUSTER_DEFAULTS == {
        "nodes": 1,
        "signal_delay_s": 90,
        "requeue": {"preempted": 20, "timeout": 20, "node_failure": 3},
        "array_parallelism": 256,
        "pack": 1,
        "snapshot": "git",
    }


def test_only_what_matters_changes_the_hash() -> None:
    first = plan_hash(spec_of({"backend": "slurm"}))
    assert first != plan_hash(spec_of(None))
    assert first == plan_hash(spec_of({"backend": "slurm", "detach": True}))
    assert first == plan_hash(spec_of({"backend": "slurm", "pack": 1, "requeue": {"timeout": 20}}))
    assert first != plan_hash(spec_of({"backend": "slurm", "partition": "gpu"}))
    ways = ({"timeout_min": 120}, {"timeout_min": "2h"}, {"timeout_min": "120"})
    assert len({plan_hash(spec_of({"backend": "slurm", **way})) for way in ways}) == 1


SECRET = "tok-8c1d5a77"


def test_what_comes_from_the_environment_is_used_and_never_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TICKET_TOKEN", SECRET)
    monkeypatch.setenv("HOURS", "3")
    variable = "${oc.env:TICKET_TOKEN}"
    cluster = {
        "backend": "slurm",
        "comment": f"for {variable}",
        "exclude": ["a", variable],
        "setup": [f"login {variable}", "true"],
        "additional_parameters": {"reservation": variable},
        "nodes": "${oc.env:HOURS}",
        "requeue": {"preempted": "${oc.env:HOURS}"},
        "max_num_timeout": "${oc.env:HOURS}",
    }
    spec = spec_of(cluster)
    assert spec.cluster is not None
    assert spec.cluster.settings["setup"] == [f"login {SECRET}", "true"]
    assert spec.cluster.settings["additional_parameters"] == {"reservation": SECRET}
    assert (spec.cluster.nodes, spec.cluster.requeue) == (3, Requeue(3, 3))
    text = plan_text(spec)
    assert SECRET not in text + repr(spec)
    plan = yaml.safe_load(text)["cluster"]
    assert (plan["comment"], plan["exclude"]) == (f"for {variable}", f"a,{variable}")
    assert plan["setup"] == [f"login {variable}", "true"]
    assert plan["additional_parameters"] == {"reservation": variable}
    assert (plan["nodes"], plan["requeue"]["timeout"]) == ("${oc.env:HOURS}",) * 2
    assert {value for _, value, _ in spec.withheld} >= {SECRET, f"for {SECRET}"}
    # a variable that is not set is a mistake where it is submitted, and nowhere else
    monkeypatch.delenv("TICKET_TOKEN")
    with pytest.raises(ConfigError, match="the variable TICKET_TOKEN is not set"):
        spec_of(cluster)
    for there in ({"here": False}, {"submitted": True}):
        assert plan_text(spec_of(cluster, {"nproc": 1}, SLURM, **there)).count(variable) == 4


def test_a_jobs_identity_does_not_hold_our_node() -> None:
    theirs = {"cluster": {"n_clusters": 5}, "a": 1}
    assert PublicReader(OmegaConf.create(theirs)).config() == theirs
    ours = {"cluster": {"backend": "slurm", "partition": "gpu"}, "a": 1}
    assert PublicReader(OmegaConf.create(ours)).config() == {"a": 1}
