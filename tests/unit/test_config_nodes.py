"""``nnodes``, ``node_rank`` and ``rdzv``: what a config says of nodes, and what is left to them."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from lllaunch.config.nodes import RDZV as FIELDS
from lllaunch.config.plan import (
    SOURCES,
    complete,
    essential,
    group_plan,
    hash_of,
    plan_hash,
    portable_plan,
)
from lllaunch.config.resolve import nodes_ahead
from lllaunch.errors import ConfigError
from lllaunch.spec import LaunchSpec, Nodes, Std
from tests.unit import launch_nodes
from tests.unit.launch_nodes import mistakes, plan_text

SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "gpu[09-10]",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_GPUS_ON_NODE": "4",
}
TRAINJOB = {
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "cpu",
    "PET_NODE_RANK": "0",
    "PET_MASTER_ADDR": "job-node-0-0.job",
    "PET_MASTER_PORT": "29500",
}
ELASTIC = {
    "PET_NNODES": "1:4",
    "PET_RDZV_BACKEND": "etcd-v2",
    "PET_RDZV_ENDPOINT": "etcd",
    "PET_RDZV_ID": "run-7",
    "PET_RDZV_CONF": "protocol=https,timeout=30,join_timeout=120",
}


def spec_of(
    launch: Any = None,
    environ: dict[str, str] | None = None,
    *,
    cwd: str = "/",
    out: str = "/out/day/time",
    here: bool = True,
    **more: Any,
) -> LaunchSpec:
    node = {**(launch or {}), **more}
    places = {"runtime_cwd": cwd, "output_dir": out}
    return launch_nodes.spec_of(node, environ=environ or {}, here=here, **places)


def nodes_of(launch: Any = None, environ: dict[str, str] | None = None, **more: Any) -> Nodes:
    nodes = spec_of(launch, environ, **more).nodes
    assert nodes is not None
    return nodes


def read_back(text: str, environ: dict[str, str] | None = None) -> LaunchSpec:
    return launch_nodes.read_back(text, environ=environ or {})


def complaints(*args: Any, **more: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        spec_of(*args, **more)
    return str(caught.value).splitlines()


# By hand


@pytest.mark.parametrize(
    "launch",
    [
        {},
        {"nnodes": 1},
        {"nnodes": "1:1"},
        {"nnodes": None, "rdzv": None, "node_rank": None},
        {"nnodes": 1, "node_rank": 0},
        {"nnodes": 1, "rdzv": {"backend": "static"}},
    ],
)
def test_one_node_is_none(launch: Any) -> None:
    spec = spec_of(launch)
    assert (spec.nodes, spec.detected, spec.run_id) == (None, (), "day-time")


def test_all_of_it() -> None:
    rdzv = {
        "backend": "etcd-v2",
        "endpoint": "[fe80::1]",
        "id": 4711,
        "conf": {"protocol": "https", "last_call_timeout": 5},
        "interface": "ib0",
        "timeout": "30s",
        "join_timeout": "1h",
    }
    conf = {"protocol": "https", "last_call_timeout": 5}
    assert list(rdzv) == list(FIELDS)
    spec = spec_of(nnodes="1:4", rdzv=rdzv)
    assert spec.nodes == Nodes(
        1, 4, None, "etcd-v2", "fe80::1", 2379, "4711", conf, "ib0", 30.0, 3600.0
    )
    assert spec.run_id == "4711"


@pytest.mark.parametrize(
    ("launch", "run_id", "rdzv_id"),
    [
        ({}, "none", ""),
        ({"rdzv": {"id": "a"}}, "a", "a"),
        ({"run_id": "b"}, "b", "b"),
        ({"run_id": "b", "rdzv": {"id": "a"}}, "b", "a"),
    ],
)
def test_a_group_and_its_run_are_called_the_same_unless_it_is_said(
    launch: Any, run_id: str, rdzv_id: str
) -> None:
    rdzv = {"endpoint": "h", **launch.get("rdzv", {})}
    spec = spec_of(launch, nnodes=2, rdzv=rdzv)
    assert spec.nodes is not None
    assert (spec.run_id, spec.nodes.rdzv_id) == (run_id, rdzv_id)
    # torchrun's --rdzv-id means something on one node, too
    assert spec_of(launch).run_id == (run_id if launch else "day-time")


# A config as YAML, and below it what is told.
MISTAKES = """
{nnodes: 2}
    rdzv.endpoint: expected an endpoint (host:port), as launch.nnodes is 2, got null; give the
    address of node 0, the same on all nodes [endpoint]
{nnodes: 2, node_rank: 2, rdzv: {endpoint: h}}
    node_rank: expected a number from 0 to 1, as launch.nnodes is 2, got 2; the first node is 0
    [nodes]
{node_rank: 1}
    node_rank: expected 0, as launch.nnodes is 1, got 1; set nnodes [nodes]
{nnodes: 2, rdzv: {backend: static, endpoint: h}}
    node_rank: expected a number from 0 to 1, as launch.rdzv.backend is static, got null; set
    it on each node [nodes]
{nnodes: '1:2', node_rank: 0, rdzv: {backend: static, endpoint: h}}
    nnodes: expected one number, as launch.rdzv.backend is static, got '1:2'; use c10d for a
    range [nodes]
{nnodes: atuo}
    nnodes: expected a number of nodes (1, 2, ... or auto, or '1:4' for 1 to 4 of them), got
    'atuo'; did you mean 'auto'? [nodes]
{nnodes: '4:1'}
    nnodes: expected MIN:MAX with a MAX that is not less than MIN, got '4:1'; did you mean
    '1:4'? [nodes]
{rdzv: {endpoint: 'tcp://h:1'}}
    rdzv.endpoint: expected an endpoint (host:port, [IPv6 address]:port), got 'tcp://h:1';
    leave out tcp:// [endpoint]
{rdzv: 'host0:29500'}
    rdzv: expected a mapping of settings (backend, endpoint, id, conf, interface, timeout,
    join_timeout), got 'host0:29500' [type]
{rdzv: {conf: {is_host: true}}}
    rdzv.conf: expected settings that have no place of their own, got {is_host: true}; leave
    is_host out: the node with launch.node_rank 0 is the host [nodes]
{master_addr: h}
    master_addr: unknown setting; several nodes meet at rdzv.endpoint (host:port); the workers
    of one node meet on this machine [unknown-key]
"""


@pytest.mark.parametrize(("launch", "told"), mistakes(MISTAKES))
def test_one_mistake_is_one_line(launch: Any, told: str) -> None:
    assert complaints(launch) == [f"launch.{told}"]


# Left to the environment


def test_auto_takes_what_the_config_does_not_say() -> None:
    spec = spec_of({"nnodes": "auto"}, SLURM)
    assert spec.nodes == Nodes(2, 2, 1, "c10d", "gpu09", 10007, "7.0")
    assert (spec.nproc, spec.run_id) == (4, "7.0")
    assert [each.setting for each in spec.detected] == [
        *("nnodes", "node_rank", "rdzv.endpoint", "rdzv.id", "nproc"),
    ]
    assert spec.tee == {0: Std.ALL, 1: Std.NONE, 2: Std.NONE, 3: Std.NONE}


def test_what_the_config_says_is_stronger_setting_by_setting() -> None:
    given: dict[str, Any] = {
        "nproc": 1,
        "node_rank": 0,
        "rdzv": {"backend": "static", "endpoint": "head:1", "id": "x", "timeout": "5s"},
    }
    spec = spec_of(given, SLURM, nnodes="auto")
    assert spec.nodes == Nodes(2, 2, 0, "static", "head", 1, "x", timeout=5)
    assert (spec.nproc, spec.run_id) == (1, "x")
    assert [each.setting for each in spec.detected] == ["nnodes"]
    one = spec_of({"rdzv": {"endpoint": "head"}}, SLURM, nnodes="auto")
    assert one.nodes == Nodes(2, 2, 1, "c10d", "head", 29400, "7.0")
    assert one.nproc == 4
    # a value that is the default is one that somebody has given
    assert spec_of({"nproc": 1}, SLURM, nnodes="auto").nproc == 1
    named = spec_of({"run_id": "mine"}, SLURM, nnodes="auto")
    assert named.nodes is not None
    assert (named.run_id, named.nodes.rdzv_id) == ("mine", "7.0")


def test_all_that_torchrun_would_take() -> None:
    spec = spec_of({"nnodes": "auto"}, ELASTIC)
    conf = {"protocol": "https"}
    assert spec.nodes == Nodes(
        1, 4, None, "etcd-v2", "etcd", 2379, "run-7", conf, timeout=30, join_timeout=120
    )
    more = {"rdzv": {"conf": {"last_call_timeout": 5}, "join_timeout": "1h"}}
    assert spec_of(more, ELASTIC, nnodes="auto").nodes == Nodes(
        *(1, 4, None, "etcd-v2", "etcd", 2379, "run-7"), {"last_call_timeout": 5}, None, 60, 3600
    )


def test_where_nothing_is_to_run_nothing_is_looked_up() -> None:
    wrong = {**SLURM, "SLURM_NODEID": "9"}
    spec = spec_of({"nnodes": "auto", "tee": "5:all"}, wrong, here=False)
    assert (spec.nodes, spec.nproc, spec.detected) == (None, 1, ())
    (line,) = complaints({"nnodes": "auto"}, wrong)
    assert line == (
        "launch.nnodes: 'auto' cannot be told from the environment: SLURM_NODEID: expected a "
        "number from 0 to 1, as there are 2 nodes, got '9'; mend it, or write launch.nnodes, "
        "launch.node_rank and launch.rdzv.endpoint instead of auto [nodes]"
    )
    # what is written is read all the same
    assert spec_of({"nnodes": 2, "rdzv": {"endpoint": "h"}}, here=False).nodes is not None
    assert complaints({"nnodes": 2}, here=False)[0].startswith("launch.rdzv.endpoint: expected")


# In plans


RDZV = {
    "endpoint": "host0",
    "conf": "last_call_timeout=5,join_timeout=120",
    "interface": "ib0",
    "timeout": 5,
}


@pytest.mark.parametrize(
    "launch",
    [
        {"nnodes": "1:4", "rdzv": RDZV},
        {"nnodes": 2, "node_rank": 1, "rdzv": {**RDZV, "backend": "static", "id": "12"}},
        {"nnodes": 2, "run_id": "x", "rdzv": {**RDZV, "id": "x"}},
        {"nnodes": 2, "run_id": "x", "rdzv": {**RDZV, "id": "\\${y}"}},
        {"nnodes": 2, "rdzv": {**RDZV, "id": "0007", "conf": {"a": 1, "b": True, "c": "1e3"}}},
        {"nnodes": 1, "rdzv": {"backend": "static"}},
        {"nnodes": "auto"},
        {"nnodes": "auto", "node_rank": 1, "rdzv": RDZV, "tee": "0:all 1-2:out", "nproc": 3},
    ],
)
@pytest.mark.parametrize("environ", [{}, SLURM, TRAINJOB])
def test_a_plan_is_a_config_of_the_same_run(launch: Any, environ: dict[str, str]) -> None:
    if launch["nnodes"] == "auto" and "node_rank" in launch:
        environ = environ or SLURM
    spec = spec_of(launch, environ)
    again = read_back(plan_text(spec), environ)
    assert again == spec
    assert plan_text(again) == plan_text(spec)
    # as rerun reads it, on any machine
    read = complete(essential(portable_plan(spec, SOURCES)), SOURCES)["launch"]
    own = {"node_rank": 1} if "node_rank" in launch else {}
    elsewhere = spec_of(
        {**read, "cwd": "/", "log_dir": "/out/day/time", **own}, {**SLURM, "SLURM_NODEID": "0"}
    )
    assert hash_of(portable_plan(elsewhere)) == plan_hash(spec)


@pytest.mark.parametrize(
    "launch",
    [
        {"nnodes": "auto"},
        {"nnodes": "auto", "nproc": 1, "tee": "0:out"},
        {"nnodes": "auto", "rdzv": RDZV},
        {"nnodes": "auto", "run_id": "x"},
    ],
)
def test_what_was_detected_is_in_no_plan(launch: Any) -> None:
    plans = []
    for environ in ({}, SLURM, {**SLURM, "SLURM_NODEID": "0"}, TRAINJOB, ELASTIC):
        for here in (True, False):
            plans.append(portable_plan(spec_of(launch, environ, here=here)))
            text = yaml.safe_dump(plans[-1])
            for detected in ("gpu09", "10007", "7.0", "job-node", "etcd:", "run-7", "https"):
                assert detected not in text
    assert all(each == plans[0] for each in plans)
    assert plans[0]["launch"]["nnodes"] == "auto"
    assert plans[0]["launch"]["nproc"] == launch.get("nproc")


def test_what_is_a_nodes_own_is_in_no_hash() -> None:
    def hash_with(**more: Any) -> str:
        rdzv = {"endpoint": "host0", **more.pop("rdzv", {})}
        return plan_hash(spec_of({"nnodes": 2, "rdzv": rdzv, **more}))

    own = [
        hash_with(node_rank=rank, rdzv={"interface": interface})
        for rank, interface in [(0, "ib0"), (1, "eth0"), (1, None)]
    ]
    others = [
        *(hash_with(nnodes=3), hash_with(nnodes="1:2"), hash_with(rdzv={"endpoint": "host1"})),
        *(hash_with(rdzv={"backend": "etcd-v2"}), hash_with(rdzv={"conf": {"a": 1}})),
    ]
    assert len({*own}) == 1
    assert len({*own, *others}) == 1 + len(others)


def test_what_comes_from_the_environment_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"HEAD": "hidden-head", "JOB": "hidden-job", "WAIT": "77s", "CERT": "/hidden/key"}
    values |= {"NODES": "2", "RANK_HERE": "1", "IFACE": "hidden0"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    rdzv = {
        "endpoint": "${oc.env:HEAD}:29500",
        "id": "${oc.env:JOB}",
        "conf": {"ssl_cert_key": "${oc.env:CERT}", "join_timeout": "${oc.env:WAIT}"},
        "interface": "${oc.env:IFACE}",
    }
    launch = {
        "nnodes": "${oc.env:NODES}",
        "node_rank": "${oc.env:RANK_HERE}",
        "rdzv": rdzv,
    }
    spec = spec_of(launch)
    assert spec.nodes == Nodes(
        *(2, 2, 1, "c10d", "hidden-head", 29500, "hidden-job"),
        conf={"ssl_cert_key": "/hidden/key"},
        interface="hidden0",
        join_timeout=77,
    )
    assert spec.run_id == "hidden-job"
    assert "hidden/key" not in repr(spec)
    assert "hidden" not in plan_text(spec)
    portable = portable_plan(spec)["launch"]
    assert portable["nnodes"] == launch["nnodes"]
    assert portable["rdzv"].items() >= {key: rdzv[key] for key in ("endpoint", "conf")}.items()
    again = read_back(plan_text(spec))
    assert (again.nodes, again.run_id) == (spec.nodes, spec.run_id)
    before = plan_hash(spec)
    monkeypatch.setenv("HEAD", "another")
    assert plan_hash(spec_of(launch)) == before
    (line,) = complaints({**launch, "rdzv": {**rdzv, "endpoint": "${oc.env:HEAD}:x"}})
    assert "another" not in line


# In common to all nodes


def group_hash(launch: Any = None, **more: Any) -> str:
    return hash_of(group_plan(portable_plan(spec_of(launch, **more))))


def test_nodes_may_differ_in_what_is_their_own() -> None:
    several = {"nnodes": 2, "rdzv": {"endpoint": "host0"}}
    common = group_hash(several)
    own: list[dict[str, Any]] = [
        {"nproc": 2},
        {"nproc": 8, "tee": "0:all", "redirects": "all"},
        {"nproc": 2, "local_ranks_filter": 0},
        {"nproc": "cpu"},
        {"node_rank": 1, "log_dir": "/tmp/elsewhere", "run_id": "x"},
        {"rdzv": {"endpoint": "localhost:1234", "interface": "ib0"}},
    ]
    for each in own:
        assert group_hash({**several, **each}) == common
    places = [group_hash(several, cwd=cwd, out=f"{cwd}/out") for cwd in ("/usr", "/tmp")]
    assert places[0] == places[1]


def test_nodes_may_not_differ_in_what_they_run() -> None:
    several = {"nnodes": 2, "rdzv": {"endpoint": "host0"}}
    others: list[dict[str, Any]] = [
        *({"args": ["-0"]}, {"max_restarts": 1}, {"nnodes": 3}, {"watchdog": "strict"}),
        *({"rdzv": {"endpoint": "host0", "backend": "etcd-v2"}}, {"restart": {"on": "none"}}),
    ]
    assert group_hash(several) not in {group_hash({**several, **other}) for other in others}


def test_what_a_config_says_of_nodes_is_known_before_the_run_has_a_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ahead(**said: Any) -> tuple[int | None, str] | None:
        launch = dict.fromkeys(("nnodes", "node_rank", "rdzv")) | said
        found = nodes_ahead(OmegaConf.create({"launch": launch}))
        return None if found is None else (found.node_rank, found.rdzv_id)

    assert ahead() is None
    assert ahead(nnodes=2, node_rank=1, rdzv={"endpoint": "a:1", "id": "mine"}) == (1, "mine")
    environ = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "a", "PET_RDZV_ID": "x"}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert ahead(nnodes="auto") == (1, "x")


def test_auto_where_nothing_says_which_node_this_is_asks_for_it() -> None:
    environ = {"PET_NNODES": "1:4", "PET_RDZV_ENDPOINT": "host0:29400"}
    (line,) = complaints({"nnodes": "auto"}, environ)
    assert line.startswith("launch.node_rank: expected this node's number")
    assert "node 0 holds the rendezvous" in line
    assert nodes_of({"nnodes": "auto", "node_rank": 2}, environ).node_rank == 2
