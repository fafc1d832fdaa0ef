"""``nnodes: auto``: from variables, as what starts processes on nodes sets them, to a placement."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from lllaunch.cluster.detect import Placement, detect
from lllaunch.errors import Unfit

# As srun sets them for the second of two tasks, on nodes of a job that has three.
SLURM = {
    "SLURM_JOB_ID": "4257886",
    "SLURM_JOBID": "4257886",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_NNODES": "2",
    "SLURM_JOB_NODELIST": "gpu[07,09-10]",
    "SLURM_NODELIST": "gpu[07,09-10]",
    "SLURM_STEP_ID": "3",
    "SLURM_STEPID": "3",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "gpu[09-10]",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_NTASKS": "2",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_GPUS_ON_NODE": "4",
}
# As a batch script of it has them.
BATCH = {
    **{name: value for name, value in SLURM.items() if "STEP" not in name},
    **dict.fromkeys(("SLURM_NNODES", "SLURM_NTASKS"), "3"),
    **dict.fromkeys(("SLURM_NODEID", "SLURM_PROCID"), "0"),
}
# As the controller of a TrainJob sets them.
TRAINJOB = {
    "PET_NNODES": "3",
    "PET_NPROC_PER_NODE": "auto",
    "PET_NODE_RANK": "2",
    "PET_MASTER_ADDR": "llm-node-0-0.llm",
    "PET_MASTER_PORT": "29500",
}
# As a PyTorchJob with an elastic policy has them.
ELASTIC = {
    "PET_NNODES": "1:4",
    "PET_NPROC_PER_NODE": "2",
    "PET_RDZV_BACKEND": "c10d",
    "PET_RDZV_ENDPOINT": "llm-worker-0:23456",
    "PET_RDZV_ID": "llm",
    "PET_RDZV_CONF": "last_call_timeout=5,timeout=30",
}
SKYPILOT = {
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NODE_RANK": "0",
    "SKYPILOT_NODE_IPS": "10.0.0.4\n10.0.0.5\n",
    "SKYPILOT_NUM_GPUS_PER_NODE": "8",
    "SKYPILOT_TASK_ID": "sky-2026-01-31-10-20-30-123456_train_1",
}
DSTACK = {
    "DSTACK_NODES_NUM": "2",
    "DSTACK_NODE_RANK": "1",
    "DSTACK_NODES_IPS": "10.0.0.4\n10.0.0.5",
    "DSTACK_MASTER_NODE_IP": "10.0.0.4",
    "DSTACK_GPUS_PER_NODE": "8",
    "DSTACK_GPUS_NUM": "16",
    "DSTACK_RUN_NAME": "train",
    "DSTACK_RUN_ID": "6f5a1f5e-1111-4222-8333-444455556666",
}
SYSTEMS = {"slurm": SLURM, "pet": TRAINJOB, "elastic": ELASTIC, "sky": SKYPILOT, "dstack": DSTACK}


def without(environ: Mapping[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in names}


def complaint(environ: Mapping[str, str]) -> str:
    with pytest.raises(Unfit) as unfit:
        detect(environ)
    assert unfit.value.code == "nodes"
    return unfit.value.at("launch.nnodes", "'auto'").text


def placed(environ: Mapping[str, str]) -> Placement:
    """Return where this node is, without what that was told from."""
    return dataclasses.replace(detect(environ), detected=())


def test_where_nothing_says_more_there_is_one_node() -> None:
    assert detect({"PATH": "/bin", "SLURM_CONF": "/etc/slurm.conf"}) == Placement()


def test_a_step_of_slurm() -> None:
    port = 10_000 + (4257886 + 3 * 1009) % 20_000
    assert placed(SLURM) == Placement(2, 2, 1, "gpu09", port, nproc=4, rdzv_id="4257886.3")
    assert [structs.astuple(each) for each in detect(SLURM).detected] == [
        ("nnodes", "2", "SLURM_STEP_NUM_NODES"),
        ("node_rank", "1", "SLURM_NODEID"),
        ("rdzv.endpoint", f"gpu09:{port}", "SLURM_STEP_NODELIST, SLURM_JOB_ID"),
        ("rdzv.id", "4257886.3", "SLURM_JOB_ID, SLURM_STEP_ID"),
        ("nproc", "4", "SLURM_GPUS_ON_NODE"),
    ]


@pytest.mark.parametrize(
    ("environ", "placement"),
    [
        (TRAINJOB, Placement(3, 3, 2, "llm-node-0-0.llm", 29500, nproc="auto")),
        (
            ELASTIC,
            Placement(
                *(1, 4, None, "llm-worker-0", 23456),
                nproc=2,
                rdzv_id="llm",
                backend="c10d",
                conf={"last_call_timeout": "5", "timeout": "30"},
            ),
        ),
        (SKYPILOT, Placement(2, 2, 0, "10.0.0.4", nproc=8, rdzv_id=SKYPILOT["SKYPILOT_TASK_ID"])),
        (DSTACK, Placement(2, 2, 1, "10.0.0.4", nproc=8, rdzv_id=DSTACK["DSTACK_RUN_ID"])),
    ],
    ids=["trainjob", "elastic", "skypilot", "dstack"],
)
def test_what_other_systems_set(environ: dict[str, str], placement: Placement) -> None:
    assert placed(environ) == placement
    told = {name for each in detect(environ).detected for name in each.variable.split(", ")}
    # all that there is, but for what says the same once more
    assert told == {*environ} - {"DSTACK_NODES_IPS", "DSTACK_GPUS_NUM", "DSTACK_RUN_NAME"}


def test_a_step_of_an_older_slurm_has_what_the_job_has() -> None:
    names = [name for name in SLURM if name.startswith("SLURM_STEP_")]
    environ = {**without(SLURM, *names), "SLURM_NODELIST": "a,b", "SLURM_JOB_NODELIST": "a,b"}
    found = placed(environ)
    assert (found.max_nodes, found.host, found.rdzv_id) == (2, "a", "4257886.3")
    environ = without(environ, "SLURM_JOB_NODELIST", "SLURM_JOB_ID", "SLURM_NNODES")
    assert placed({**environ, "SLURM_JOB_NUM_NODES": "2"}) == found


@given(st.integers(1, 2**31), st.integers(0, 2**16))
def test_the_port_is_one_that_linux_gives_to_nobody(job: int, step: int) -> None:
    environ = {**SLURM, "SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)}
    port = detect(environ).port
    assert port is not None
    assert 10_000 <= port < 30_000
    # what runs beside it on a node has another one
    for change in ({"SLURM_JOB_ID": str(job + 1)}, {"SLURM_STEP_ID": str(step + 1)}):
        assert detect({**environ, **change}).port != port


@pytest.mark.parametrize(
    ("gpus", "nproc", "variable"),
    [
        ({"SLURM_GPUS_ON_NODE": "2", "SLURM_GPUS_PER_NODE": "8"}, 2, "SLURM_GPUS_ON_NODE"),
        ({"SLURM_GPUS_PER_NODE": "8"}, 8, "SLURM_GPUS_PER_NODE"),
        ({"SLURM_GPUS_PER_NODE": "a100:8"}, None, ""),
        ({"SLURM_GPUS_ON_NODE": "0"}, None, ""),
    ],
)
def test_gpus_are_counted_where_it_is_plain(
    gpus: dict[str, str], nproc: int | None, variable: str
) -> None:
    found = detect({**without(SLURM, "SLURM_GPUS_ON_NODE"), **gpus})
    assert found.nproc == nproc
    told = [each.variable for each in found.detected if each.setting == "nproc"]
    assert told == ([variable] if nproc else [])


@pytest.mark.parametrize(
    "environ",
    [
        {**SLURM, "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NODEID": "0"},
        # without srun: a batch script, and the shell that salloc opens
        {**BATCH, "SLURM_JOB_NUM_NODES": "1", "SLURM_NNODES": "1", "SLURM_NTASKS": "8"},
        {"SLURM_JOB_ID": "1", "SLURM_NNODES": "1", "SLURM_GPUS_ON_NODE": "4"},
    ],
)
def test_slurm_on_one_node_is_a_run_of_one_node(environ: dict[str, str]) -> None:
    assert placed(environ) == Placement(nproc=4)


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        (BATCH, "SLURM_JOB_NUM_NODES"),
        # the interactive step of salloc: on one node of several
        ({**BATCH, "SLURM_STEP_ID": "4294967290", "SLURM_JOB_NUM_NODES": "1"}, "SLURM_NNODES"),
    ],
)
def test_without_srun_one_process_is_alone_on_several_nodes(
    environ: dict[str, str], name: str
) -> None:
    assert complaint(environ) == (
        f"'auto' cannot be told from the environment: {name} is 3, but this process is alone: srun "
        "did not start it; start one on each node: srun --ntasks-per-node=1 python -m lllaunch ..."
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"SLURM_STEP_NUM_TASKS": "16"},
            "SLURM_STEP_NUM_TASKS: expected 2 tasks, one per node, got '16'",
        ),
        (
            {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "8"},
            "SLURM_STEP_NUM_TASKS: expected 1 task, as there is one node, got '8'",
        ),
        ({"SLURM_LOCALID": "1"}, "SLURM_LOCALID: expected 0, as one task per node, got '1'"),
    ],
)
def test_slurm_starts_one_task_on_each_node(change: dict[str, str], said: str) -> None:
    mend = "write srun --ntasks-per-node=1 python -m lllaunch ..."
    assert f": {said}; {mend}" in complaint({**SLURM, **change})


# What is wrong, by what is changed.
WRONG: list[tuple[Mapping[str, str], dict[str, str], str]] = [
    (SLURM, {"SLURM_NODEID": "2"}, "SLURM_NODEID: expected a number from 0 to 1, as there are 2"),
    (SLURM, {"SLURM_NODEID": ""}, "SLURM_NODEID is not set, but SLURM_STEP_NUM_NODES is 2"),
    (SLURM, {"SLURM_STEP_NODELIST": "gpu09"}, "SLURM_STEP_NODELIST: expected 2 hosts, as SLURM_"),
    (SLURM, {"SLURM_STEP_NUM_NODES": "0"}, "SLURM_STEP_NUM_NODES: expected a number of nodes"),
    (SLURM, {"SLURM_JOB_ID": "4_2"}, "SLURM_JOB_ID: expected the number of a job, got '4_2'"),
    (TRAINJOB, {"PET_NNODES": "4:1"}, "PET_NNODES: expected MIN:MAX with a MAX that is not less"),
    (TRAINJOB, {"PET_MASTER_ADDR": "a b"}, "PET_MASTER_ADDR: expected the name or the address of"),
    (TRAINJOB, {"PET_MASTER_PORT": "0"}, "PET_MASTER_PORT: expected a port from 1 to 65535"),
    (TRAINJOB, {"PET_RDZV_BACKEND": "etcd"}, "PET_RDZV_BACKEND: expected static, c10d, etcd-v2"),
    (TRAINJOB, {"PET_NPROC_PER_NODE": "0"}, "PET_NPROC_PER_NODE: expected a number of workers"),
    (TRAINJOB, {"PET_RDZV_CONF": "x"}, "PET_RDZV_CONF: expected settings of torch's rendezvous"),
    (
        SKYPILOT,
        {"SKYPILOT_NODE_RANK": ""},
        "SKYPILOT_NODE_RANK is not set, but SKYPILOT_NUM_NODES is 2",
    ),
    (SKYPILOT, {"SKYPILOT_NODE_IPS": "10.0.0.4"}, "SKYPILOT_NODE_IPS: expected 2 addresses, as"),
    (DSTACK, {"DSTACK_NODES_NUM": ""}, "DSTACK_NODES_NUM is not set, but DSTACK_NODE_RANK is"),
    (DSTACK, {"DSTACK_MASTER_NODE_IP": ""}, "DSTACK_MASTER_NODE_IP is not set, but DSTACK_NODES"),
]


@pytest.mark.parametrize(("environ", "change", "said"), WRONG)
def test_what_variables_say_fits_together(
    environ: Mapping[str, str], change: dict[str, str], said: str
) -> None:
    text = complaint({**environ, **change})
    assert text.startswith(f"'auto' cannot be told from the environment: {said}")


def test_an_endpoint_is_stronger_than_an_address() -> None:
    found = detect({**TRAINJOB, "PET_RDZV_ENDPOINT": "[fe80::1]"})
    assert (found.host, found.port, found.node_rank) == ("fe80::1", None, 2)
    found = detect({**without(TRAINJOB, "PET_MASTER_PORT"), "PET_MASTER_ADDR": "[fe80::1]"})
    assert (found.host, found.port) == ("fe80::1", None)


def test_what_opens_doors_is_not_told() -> None:
    conf = "protocol=https,ssl_cert_key=/etc/hidden.pem"
    found = detect({**ELASTIC, "PET_RDZV_CONF": conf})
    assert found.conf["ssl_cert_key"] == "/etc/hidden.pem"
    assert "hidden" not in str(found.detected)
    assert "hidden" not in repr(found)
    text = complaint({**ELASTIC, "PET_RDZV_CONF": f"{conf},rank=0"})
    assert "PET_RDZV_CONF: expected settings that have no place of their own" in text
    assert "launch.node_rank says it" in text
    assert "hidden" not in text


@pytest.mark.parametrize("nproc", ["auto", "GPU", "3", ""])
def test_one_node_of_torchrun(nproc: str) -> None:
    one = {**TRAINJOB, "PET_NNODES": "1", "PET_NPROC_PER_NODE": nproc}
    expected = int(nproc) if nproc.isdecimal() else nproc.lower() or None
    for environ in (one, {**one, "PET_NNODES": "1:1"}, {"PET_NPROC_PER_NODE": nproc}):
        assert placed(environ) == Placement(nproc=expected)


def test_one_node_of_skypilot() -> None:
    one = {"SKYPILOT_NUM_NODES": "1", "SKYPILOT_NODE_IPS": "10.0.0.4"}
    assert placed({**SKYPILOT, **one}) == Placement(nproc=8)
    cpus = {**one, "SKYPILOT_NODE_RANK": "0", "SKYPILOT_NUM_GPUS_PER_NODE": "0"}
    assert placed(cpus) == Placement()
    # what every task has says nothing of nodes
    assert detect({"SKYPILOT_TASK_ID": "sky-1"}) == Placement()


def test_dstacks_runs_may_have_names_alone_and_one_node() -> None:
    assert detect(without(DSTACK, "DSTACK_RUN_ID")).rdzv_id == "train"
    # a development environment, and a task on one node
    one = {**DSTACK, "DSTACK_NODES_NUM": "1", "DSTACK_NODE_RANK": "0", "DSTACK_MASTER_NODE_IP": ""}
    assert placed(one) == Placement(nproc=8)


def test_two_that_agree_are_no_contradiction() -> None:
    # SkyPilot starts its tasks with srun where it runs on Slurm
    both = {**SLURM, **SKYPILOT, "SKYPILOT_NODE_RANK": "1"}
    assert detect(both) == detect({**SKYPILOT, "SKYPILOT_NODE_RANK": "1"})
    one = {**DSTACK, "DSTACK_NODES_NUM": "1", "DSTACK_NODE_RANK": "0"}
    assert detect({**one, "SLURM_JOB_ID": "1", "SLURM_NNODES": "1"}).max_nodes == 1


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        (
            {**SLURM, **SKYPILOT},
            (
                "SkyPilot says 2 nodes, of which this has number 0, and Slurm 2 nodes, of which "
                "this has number 1"
            ),
        ),
        (
            {**SKYPILOT, **DSTACK, "DSTACK_NODES_NUM": "1"},
            "SkyPilot says 2 nodes, of which this has number 0, and dstack one node",
        ),
    ],
)
def test_two_that_contradict_each_other(environ: dict[str, str], said: str) -> None:
    text = complaint(environ)
    assert text.startswith(f"'auto' cannot be told from the environment: {said}; unset what does")


@pytest.mark.parametrize("system", SYSTEMS)
def test_any_part_of_it_is_a_placement_or_a_complaint(system: str) -> None:
    names = list(SYSTEMS[system])

    @given(
        st.dictionaries(
            st.sampled_from(names),
            st.sampled_from(["", "0", "1", "2", "3", "-1", "x", "1:2", "a,b", "a[1-2]", "٣", "\0"])
            | st.text(max_size=5),
        )
    )
    def holds(changes: dict[str, str]) -> None:
        try:
            found = detect({**SYSTEMS[system], **changes})
        except Unfit:
            return
        assert 1 <= found.min_nodes <= found.max_nodes
        assert (found.max_nodes > 1) == bool(found.host)
        assert found.node_rank is None or 0 <= found.node_rank < found.max_nodes

    holds()
