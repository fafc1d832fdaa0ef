"""``nnodes: auto``: what the environment says where something has started a process on each node.

Pure: from variables to a `Placement`. These are read, as their makers document them:

- Slurm: what ``srun`` sets for a step (``SLURM_STEP_*``, ``SLURM_NODEID``, ``SLURM_LOCALID``), and
  what a job has (``SLURM_JOB_*``). ``SLURM_LAUNCH_NODE_IPADDR`` is not: it may be a login node's.
- torchrun's options by environment (``PET_*``), which Kubeflow's TrainJob and PyTorchJob set.
- SkyPilot (``SKYPILOT_*``) and dstack (``DSTACK_*``).

Several of them may be there at once, as SkyPilot starts its tasks with ``srun`` on Slurm; then they
must agree. Nothing is looked up, and no host name is compared: node 0 is who has the number 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from lllaunch.cluster.address import (
    MOST_NODES,
    expand_hosts,
    format_endpoint,
    format_nnodes,
    parse_conf,
    parse_endpoint,
    parse_host,
    parse_nnodes,
    parse_port,
)
from lllaunch.errors import Unfit
from lllaunch.secret_names import is_secret_name
from lllaunch.spec import RDZV_BACKENDS, Detected, RdzvBackend
from lllaunch.text import shorten

NPROC_WORDS: Final = ("auto", "cpu", "gpu")

# Steps that are none of srun's have numbers from here on: batch scripts, interactive shells.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0
# Below 32768, where Linux begins to give ports away, and above what services have.
_PORTS = range(10_000, 30_000)
# Steps of one job and jobs of neighbouring numbers on one machine shall not meet.
_STEP_STRIDE = 1009
_ONE_TASK = "srun --ntasks-per-node=1 python -m lllaunch ..."
_BY_HAND = "write launch.nnodes, launch.node_rank and launch.rdzv.endpoint instead of auto"
_SET_IT = f"set it, or {_BY_HAND}"

_T = TypeVar("_T")


@dataclass(frozen=True)
class Placement:
    """Where this node stands among the nodes; without arguments there is no other."""

    min_nodes: int = 1
    max_nodes: int = 1
    node_rank: int | None = None  # this node's number, from 0; None if it has none
    host: str = ""  # where they meet, without brackets; empty if nothing says
    port: int | None = None  # its port; None if nothing says
    # number of workers, or ``auto``, ``cpu`` or ``gpu``; None if nothing says
    nproc: int | str | None = None
    rdzv_id: str = ""  # identifies the run among others; empty if nothing does
    backend: RdzvBackend | None = None  # of the rendezvous; None if nothing says
    conf: Mapping[str, str | int | float | bool] = field(default_factory=dict, repr=False)
    detected: tuple[Detected, ...] = ()


def detect(environ: Mapping[str, str]) -> Placement:
    """Finds out where this node stands; variables that are empty count as not set.

    Raises:
        Unfit: what is set is incomplete, or contradicts itself; it names the variable, its value
            and what was expected.
    """
    found = []
    for name, read in _SYSTEMS:
        variables = _Variables(environ)
        placement = read(variables)
        if placement is not None:
            found.append((name, replace(placement, detected=tuple(variables.detected))))
    if not found:
        # of torchrun's options this one says something by itself
        variables = _Variables(environ)
        return Placement(nproc=_pet_nproc(variables), detected=tuple(variables.detected))
    (first, placement), *others = found
    for other, its in others:
        if _as_said(its) != _as_said(placement):
            message = f"{first} says {_as_said(placement)}, and {other} {_as_said(its)}"
            raise _unfit(message, f"unset what does not hold, or {_BY_HAND}")
    return placement


def _as_said(placement: Placement) -> str:
    number = format_nnodes(placement.min_nodes, placement.max_nodes)
    if placement.max_nodes == 1:
        return "one node"
    rank = "no number" if placement.node_rank is None else f"number {placement.node_rank}"
    return f"{number} nodes, of which this has {rank}"


def _unfit(detail: str, hint: str = "") -> Unfit:
    message = "cannot be told from the environment"
    return Unfit(message=message, detail=detail, hint=hint, code="nodes")


class _Variables:
    """Reads variables, and notes what was taken from where."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.detected: list[Detected] = []

    def get(self, *names: str) -> tuple[str, str]:
        """Return the first of some variables that is set, and its value; empty texts if none is."""
        for name in names:
            value = self._environ.get(name, "").strip()
            if value:
                return name, value
        return "", ""

    def need(self, *names: str, because: str) -> tuple[str, str]:
        """Return the same; raise `Unfit` if none is, and say why one must be."""
        name, value = self.get(*names)
        if not name:
            raise _unfit(f"{names[0]} is not set, but {because}", _SET_IT)
        return name, value

    def forbid(self, *names: str, without: str) -> None:
        """Raise `Unfit` if one of some variables is set, which mean nothing without another."""
        name, _ = self.get(*names)
        if name:
            raise _unfit(f"{without} is not set, but {name} is", _SET_IT)

    def count(self, name: str, value: str, expected: str, numbers: range) -> int:
        """Return a value as a number; raise `Unfit` if it is none of those that it may be."""
        is_number = value.isascii() and value.isdecimal() and len(value) < 19
        if not is_number or int(value) not in numbers:
            raise self.wrong(name, value, expected)
        return int(value)

    def nodes(self, name: str, value: str) -> int:
        """Return how many nodes there are."""
        return self.count(name, value, "a number of nodes", range(1, MOST_NODES + 1))

    def rank(self, name: str, nodes: int, because: str) -> int:
        """Return this node's number; ``because``: why it must be set."""
        _, value = self.need(name, because=because)
        expected = f"a number from 0 to {nodes - 1}, as there are {nodes} nodes"
        return self.take("node_rank", self.count(name, value, expected, range(nodes)), name)

    def gpus(self, *names: str) -> int | None:
        """Return the number of GPUs of this node; None where nothing says it plainly.

        Forms such as ``a100:4`` are taken for none: they may be of several kinds.
        """
        for name in names:
            _, value = self.get(name)
            if value.isascii() and value.isdecimal() and 0 < len(value) < 6 and int(value):
                return self.take("nproc", int(value), name)
        return None

    def read(self, name: str, value: str, parse: Callable[[str], _T], shown: str = "") -> _T:
        """Return what a value means; `Unfit` names the variable, and what may be ``shown`` of it.

        By default that is all of it.
        """
        try:
            return parse(value)
        except Unfit as unfit:
            expected = "; ".join(filter(None, (unfit.expected, unfit.detail)))
            raise self.wrong(name, shown or value, expected, unfit.hint) from None

    def wrong(self, name: str, value: str, expected: str, hint: str = "") -> Unfit:
        """Return what is wrong with the value of a variable."""
        hint = hint or f"mend it, or {_BY_HAND}"
        return _unfit(f"{name}: expected {expected}, got {shorten(value, 100)!r}", hint)

    def take(self, setting: str, value: _T, name: str) -> _T:
        """Note what stands for a setting, and return it; nothing of what is empty."""
        if value != "":
            self.detected.append(Detected(setting, str(value), name))
        return value


# In a step the second may be what the whole job asked for.
_SLURM_GPUS = ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE")


def _slurm(variables: _Variables) -> Placement | None:
    job_name, job = variables.get("SLURM_JOB_ID", "SLURM_JOBID")
    if not job_name:
        of_job = ("SLURM_STEP_ID", "SLURM_NODEID", "SLURM_JOB_NUM_NODES", "SLURM_NNODES")
        variables.forbid(*of_job, without="SLURM_JOB_ID")
        return None
    job_number = variables.count(job_name, job, "the number of a job", range(2**63))
    step_name, step = variables.get("SLURM_STEP_ID", "SLURM_STEPID")
    numbers = range(2**32)
    step_number = variables.count(step_name, step, "the number of a step", numbers) if step else -1
    if not 0 <= step_number < _FIRST_SPECIAL_STEP:
        return _slurm_without_srun(variables)
    name, value = variables.need(
        *("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"), because=f"{step_name} is"
    )
    nodes = variables.take("nnodes", variables.nodes(name, value), name)
    _expect_one_task(variables, nodes)
    if nodes == 1:
        return Placement(nproc=variables.gpus(*_SLURM_GPUS))
    because = f"{name} is {nodes}"
    rank = variables.rank("SLURM_NODEID", nodes, because)
    listed, value = variables.need(
        *("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"), because=because
    )
    hosts = variables.read(listed, value, expand_hosts)
    if len(hosts) != nodes:
        raise variables.wrong(listed, value, f"{nodes} hosts, as {name} says")
    host = variables.read(listed, hosts[0], parse_host)
    # the same on all nodes without asking anybody, and another one for each step
    port = _PORTS[(job_number + _STEP_STRIDE * step_number) % len(_PORTS)]
    variables.take("rdzv.endpoint", format_endpoint(host, port), f"{listed}, {job_name}")
    run = variables.take("rdzv.id", f"{job_number}.{step_number}", f"{job_name}, {step_name}")
    return Placement(nodes, nodes, rank, host, port, variables.gpus(*_SLURM_GPUS), run)


def _slurm_without_srun(variables: _Variables) -> Placement:
    """Return the one node of a batch script, or of a shell of ``salloc``."""
    # srun sets the one anew for the shell that salloc opens on a node, the job's is in the other
    for name in ("SLURM_JOB_NUM_NODES", "SLURM_NNODES"):
        _, value = variables.get(name)
        if not value:
            continue
        nodes = variables.nodes(name, value)
        if nodes > 1:
            detail = f"{name} is {nodes}, but this process is alone: srun did not start it"
            raise _unfit(detail, f"start one on each node: {_ONE_TASK}")
        if not variables.detected:
            variables.take("nnodes", nodes, name)
    return Placement(nproc=variables.gpus(*_SLURM_GPUS))


def _expect_one_task(variables: _Variables, nodes: int) -> None:
    """Raise if there are more processes than nodes: each would start all workers of its node."""
    name, value = variables.get("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    if name and variables.count(name, value, "a number of tasks", range(1, 2**32)) > nodes:
        text = "1 task, as there is one node" if nodes == 1 else f"{nodes} tasks, one per node"
        raise variables.wrong(name, value, text, f"write {_ONE_TASK}")
    name, value = variables.get("SLURM_LOCALID")
    if name and value != "0":
        raise variables.wrong(name, value, "0, as one task per node", f"write {_ONE_TASK}")


def _pet(variables: _Variables) -> Placement | None:
    name, value = variables.get("PET_NNODES")
    if not name:
        variables.forbid(
            *("PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"),
            *("PET_RDZV_ENDPOINT", "PET_RDZV_BACKEND", "PET_RDZV_ID", "PET_RDZV_CONF"),
            without="PET_NNODES",
        )
        return None
    least, most = variables.read(name, value, parse_nnodes)
    variables.take("nnodes", format_nnodes(least, most), name)
    if most == 1:
        return Placement(nproc=_pet_nproc(variables))
    because = f"PET_NNODES is {value}"
    backend, rank = _pet_backend(variables), None
    endpoint, text = variables.get("PET_RDZV_ENDPOINT")
    # a PyTorchJob with an elastic policy has no number; static cannot do without
    if not endpoint or variables.get("PET_NODE_RANK")[0]:
        rank = variables.rank("PET_NODE_RANK", most, because)
    if endpoint:
        host, port = variables.read(endpoint, text, parse_endpoint)
    else:
        endpoint, text = variables.need("PET_MASTER_ADDR", because=because)
        host = variables.read(endpoint, text, parse_host)
        with_port, text = variables.get("PET_MASTER_PORT")
        port = variables.read(with_port, text, parse_port) if with_port else None
        endpoint = f"{endpoint}, {with_port}" if with_port else endpoint
    variables.take("rdzv.endpoint", format_endpoint(host, port), endpoint)
    run = variables.take("rdzv.id", variables.get("PET_RDZV_ID")[1], "PET_RDZV_ID")
    name, text = variables.get("PET_RDZV_CONF")
    # the key of a certificate may be among them
    shown = variables.take("rdzv.conf", ",".join(map(_without_secret, text.split(","))), name)
    conf = variables.read(name, text, parse_conf, shown)
    return Placement(least, most, rank, host, port, _pet_nproc(variables), run, backend, conf)


def _without_secret(pair: str) -> str:
    name, equals, _ = pair.partition("=")
    return f"{name}{equals}..." if is_secret_name(name.strip()) else pair


def _pet_backend(variables: _Variables) -> RdzvBackend | None:
    name, value = variables.get("PET_RDZV_BACKEND")
    if not name:
        # torchrun would take static. Nodes that all run lllaunch need not: c10d does the same, and
        # knows when one is lost.
        return None
    for backend in RDZV_BACKENDS:
        if value.lower() == backend:
            return variables.take("rdzv.backend", backend, name)
    raise variables.wrong(name, value, ", ".join(RDZV_BACKENDS))


def _pet_nproc(variables: _Variables) -> int | str | None:
    name, value = variables.get("PET_NPROC_PER_NODE")
    if not name:
        return None
    word = value.lower()
    if word in NPROC_WORDS:
        return variables.take("nproc", word, name)
    expected = "a number of workers (1, 2, ... or auto, cpu, gpu)"
    return variables.take("nproc", variables.count(name, value, expected, range(1, 10**6)), name)


def _cloud(
    variables: _Variables, nnodes: str, node_rank: str, hosts: str, gpus: str, *runs: str
) -> Placement | None:
    """Read what SkyPilot and dstack set; ``hosts`` has the address of node 0, or those of all."""
    name, value = variables.get(nnodes)
    if not name:
        variables.forbid(node_rank, hosts, without=nnodes)
        return None
    nodes = variables.take("nnodes", variables.nodes(name, value), name)
    if nodes == 1:
        return Placement(nproc=variables.gpus(gpus))
    because = f"{name} is {nodes}"
    rank = variables.rank(node_rank, nodes, because)
    listed, text = variables.need(hosts, because=because)
    addresses = text.split()
    if hosts == _ALL_HOSTS and len(addresses) != nodes:
        raise variables.wrong(listed, ", ".join(addresses), f"{nodes} addresses, as {name} says")
    host = variables.read(listed, addresses[0], parse_host)
    variables.take("rdzv.endpoint", format_endpoint(host, None), listed)
    run_name, run = variables.get(*runs)
    variables.take("rdzv.id", run, run_name)
    return Placement(nodes, nodes, rank, host, None, variables.gpus(gpus), run)


_ALL_HOSTS = "SKYPILOT_NODE_IPS"
_SKYPILOT = (
    *("SKYPILOT_NUM_NODES", "SKYPILOT_NODE_RANK", _ALL_HOSTS, "SKYPILOT_NUM_GPUS_PER_NODE"),
    "SKYPILOT_TASK_ID",
)
_DSTACK = (
    *("DSTACK_NODES_NUM", "DSTACK_NODE_RANK", "DSTACK_MASTER_NODE_IP", "DSTACK_GPUS_PER_NODE"),
    *("DSTACK_RUN_ID", "DSTACK_RUN_NAME"),
)

# What starts tasks within others comes first: it says most about this one.
_SYSTEMS: tuple[tuple[str, Callable[[_Variables], Placement | None]], ...] = (
    ("torchrun's environment (PET_*)", _pet),
    ("SkyPilot", lambda variables: _cloud(variables, *_SKYPILOT)),
    ("dstack", lambda variables: _cloud(variables, *_DSTACK)),
    ("Slurm", _slurm),
)
